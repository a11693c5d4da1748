"""What Weights & Biases gets, read back from the offline file of a real run."""

from __future__ import annotations

import time

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, WandbLogger

from eagle_speedup.acceptance import AcceptanceProfile
from eagle_speedup.callbacks import SpeedupEarlyStopping, SpeedupMonitor
from eagle_speedup.projection import project
from eagle_speedup.readers import counts_from_run, merge_wandb_runs, read_wandb_run

from .test_speedup_monitor import KEYS
from .toy import ToyDrafter, toy_calibration, toy_loader, toy_trainer

SKILLS = [0.1, 0.1, 0.05, 0.05, 0.5, 0.5, 0.8, 0.8, 0.3]


def read_when_whole(folder):
    """``finish`` can return before the file is whole: wait for the exit record."""
    for _ in range(200):
        run = read_wandb_run(folder)
        if run.finished:
            return run
        time.sleep(0.05)
    raise AssertionError("no exit record")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(monitor, stopping, run that was read back) of a training that gains until step 6."""
    import wandb

    folder = tmp_path_factory.mktemp("wandb")
    patch = pytest.MonkeyPatch()
    patch.setenv("WANDB_MODE", "offline")
    patch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=folder, project="toy")
    monitor = SpeedupMonitor(toy_calibration(), draft_vocab=torch.arange(100), table_batches=(1, 8))
    stopping = SpeedupEarlyStopping(0.01, 2)
    best = ModelCheckpoint(folder / "checkpoints", monitor="speedup/tok_s", mode="max")
    options = {"logger": [CSVLogger(folder), logger], "enable_checkpointing": True, "max_steps": 30}
    toy_trainer(folder, [monitor, stopping, best], **options).fit(ToyDrafter(SKILLS), toy_loader(), toy_loader())
    wandb.finish()
    patch.undo()
    (run_folder,) = (folder / "wandb").glob("offline-run-*")
    return monitor, stopping, read_when_whole(run_folder)


def test_every_validation_has_every_key(trained):
    monitor, _, run = trained
    rows = [row for row in run.history if "speedup/tok_s" in row]
    assert [v.global_step for v in monitor.history] == [2, 4, 6, 8, 10]
    assert [row["trainer/global_step"] for row in rows] == [1, 3, 5, 7, 9]
    for row, validation in zip(rows, monitor.history, strict=True):
        assert set(row) >= KEYS
        assert row["speedup/tok_s"] == pytest.approx(validation.tok_s, rel=1e-6)
        assert row["speedup/counts"]["nrows"] == 64  # the table is in the row of its validation


def test_summary_holds_best_and_last_and_the_reason(trained):
    monitor, stopping, run = trained
    assert run.summary["speedup/tok_s"]["max"] == pytest.approx(monitor.history[2].tok_s, rel=1e-6)
    assert run.summary["speedup/tok_s"]["last"] == pytest.approx(monitor.history[-1].tok_s, rel=1e-6)
    assert set(run.summary["speedup/cond_acc_2"]) == {"max", "last"}
    assert run.summary["speedup/best_step"] == 6
    assert run.summary["speedup/stop_reason"] == "stalled"
    assert run.summary["speedup/stop_message"] == stopping.stop_decision.message
    assert run.summary["speedup/stopped"] == 1


def test_config_names_node_and_calibration(trained):
    monitor, _, run = trained
    settings = run.config["speedup"]
    assert settings["calibration_fingerprint"] == monitor.calibration.fingerprint
    assert (settings["node"], settings["verifier"], settings["mode"]) == ("toy_node", "toy_verifier", "greedy")


def test_alerts_once_on_breakeven_and_once_on_stopping(trained):
    _, stopping, run = trained
    assert [title for title, _ in run.alerts] == ["speedup: Breakeven crossed", "speedup: Training stopped"]
    assert "step 4" in run.alerts[0][1] and run.alerts[1][1] == stopping.stop_decision.message


def test_the_run_can_be_projected_again(trained):
    monitor, _, run = trained
    counts = counts_from_run(run)
    assert [step for step, _ in counts] == [1, 3, 5, 7, 9]
    assert [c for _, c in counts] == [v.profile.counts for v in monitor.history]
    other = project(AcceptanceProfile(counts[-1][1]), toy_calibration("fast", 300.0))
    assert other.tok_s.value > 2 * monitor.last.tok_s.value


def test_table_over_depth_and_batch(trained):
    monitor, _, run = trained
    _, table = run.tables("speedup/by_depth")[-1]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["batch"], row["depth"]) for row in rows] == [(b, d) for b in (1, 8) for d in (1, 2, 3)]
    assert rows[2]["tok_s"] == monitor.last.by_depth[2].tok_s.value
    assert len(run.tables("speedup/tok_s_over_depth_table")) == 5


def test_parts_of_a_resumed_run_merge_by_step(trained):
    _, _, run = trained
    merged = merge_wandb_runs([run, run])
    assert len(merged.history) == len(run.history)
    assert merged.tables("speedup/counts") == run.tables("speedup/counts")
