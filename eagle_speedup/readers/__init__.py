"""Readers of what trainings and engines leave behind; each gives the values the rest of the package works on."""

from typing import TYPE_CHECKING

from .._lazy import lazy_exports

if TYPE_CHECKING:
    from .measurements import read_measurements
    from .reading import Hints, Reading
    from .trainer_logs import TrainerReading, read_trainer_log
    from .wandb_file import WandbRun, WandbTable, counts_from_run, merge_wandb_runs, read_wandb_run

_EXPORTS = {
    "Hints": ".reading",
    "Reading": ".reading",
    "TrainerReading": ".trainer_logs",
    "WandbRun": ".wandb_file",
    "WandbTable": ".wandb_file",
    "counts_from_run": ".wandb_file",
    "merge_wandb_runs": ".wandb_file",
    "read_measurements": ".measurements",
    "read_trainer_log": ".trainer_logs",
    "read_wandb_run": ".wandb_file",
}

__all__ = [
    "Hints",
    "Reading",
    "TrainerReading",
    "WandbRun",
    "WandbTable",
    "counts_from_run",
    "merge_wandb_runs",
    "read_measurements",
    "read_trainer_log",
    "read_wandb_run",
]

__getattr__ = lazy_exports(__name__, _EXPORTS)
