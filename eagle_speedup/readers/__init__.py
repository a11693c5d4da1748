"""Readers of what trainings and engines leave behind; each gives the values the rest of the package works on."""

from .wandb_file import WandbRun, WandbTable, counts_from_run, merge_wandb_runs, read_wandb_run

__all__ = ["WandbRun", "WandbTable", "counts_from_run", "merge_wandb_runs", "read_wandb_run"]
