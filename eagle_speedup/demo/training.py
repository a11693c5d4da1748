"""The two fits under Lightning: the first steps, and the main one with the speedup callbacks."""

from __future__ import annotations

import contextlib
import io
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import WandbLogger

from ..acceptance import AcceptanceProfile, TTTAcceptance
from ..callbacks import SpeedupEarlyStopping, SpeedupMonitor
from ..eagle3.data import FeatureRow, make_loader
from ..eagle3.drafter import Eagle3Drafter
from ..eagle3.lightning_module import Eagle3Module
from ..throughput import Calibration
from ..training import Validation
from .budget import StepBudget
from .folder import RunFolder
from .settings import Settings
from .story import Story
from .watching import Deadline, StepClock, TrainingBar, ValidationLine

__all__ = ["Fit", "FitWatch", "MainFit", "WarmUp", "finished_fit", "main_fit", "profile_of", "restore", "warm_up"]

_VALIDATION_BATCH = 8
_NEVER = 10**9


@dataclass(frozen=True)
class WarmUp:
    """The first steps."""

    steps: int
    step_s: float
    """Seconds a step."""


@dataclass(frozen=True)
class Fit:
    """What both fits need."""

    module: Callable[[int], Eagle3Module]
    """A new module for a schedule of so many steps."""
    rows: Sequence[FeatureRow]
    """Training."""
    held_out: Sequence[FeatureRow]
    """Validation."""
    batch_size: int
    seed: int


@dataclass(frozen=True)
class FitWatch:
    """Clock and story of the main fit."""

    story: Story
    until_s: float
    """Elapsed seconds at which it ends at the latest."""
    elapsed: Callable[[], float]
    after_validation: Callable[[], None]
    """Called after every validation."""
    node: str | None = None
    """Named beside the tok/s where they are not this machine's."""


@dataclass(frozen=True)
class MainFit:
    """How the main fit went."""

    history: tuple[Validation, ...]
    best: Validation
    """The validation whose checkpoint was kept."""
    best_checkpoint: Path
    reason: str
    """Why it ended: "stalled" and the like, "step budget" or "time budget"."""
    message: str
    """The same as a sentence with the numbers."""
    steps: int


def warm_up(
    fit: Fit, checkpoint: Path, *, story: Story, until_s: float, elapsed: Callable[[], float], least_steps: int
) -> WarmUp:
    """Train by the clock, without validation, and keep the checkpoint."""
    begin = elapsed()
    clock, deadline = StepClock(), Deadline(until_s, elapsed, least_steps)
    bar = TrainingBar(story, lambda: (elapsed() - begin) / max(until_s - begin, 1e-9))
    # The schedule's length is not known before a step has been timed; the first steps are warm-up and peak in any case.
    module = fit.module(_NEVER)
    trainer = _trainer([clock, deadline, bar], max_steps=_NEVER, limit_val_batches=0)
    _fit(trainer, module, train_dataloaders=make_loader(fit.rows, fit.batch_size, shuffle=True, seed=fit.seed))
    trainer.save_checkpoint(checkpoint)
    return WarmUp(trainer.global_step, clock.step_s)


def main_fit(
    fit: Fit,
    resume_from: Path,
    steps: StepBudget,
    *,
    calibration: Calibration,
    settings: Settings,
    folder: RunFolder,
    config: dict[str, Any],
    watch: FitWatch,
) -> MainFit:
    """Go on from a checkpoint, with the monitor, early stopping on it, the best checkpoint and an offline W&B run.

    Args:
        fit: data and module.
        resume_from: checkpoint to go on from.
        steps: the budget.
        calibration: what tok/s are projected with.
        settings: patience and the like.
        folder: where checkpoints and the W&B run go.
        config: what the W&B run should know of this demo.
        watch: clock and story.
    """
    module = fit.module(steps.last_step)
    monitor = _monitor(fit, calibration, settings)
    stopping = SpeedupEarlyStopping(settings.training.min_gain_ratio, settings.training.patience)
    deadline = Deadline(watch.until_s, watch.elapsed)
    best, last = _checkpoints(folder)
    line = ValidationLine(watch.story, watch.elapsed, watch.after_validation, watch.node)
    logger = _logger(folder.path, config)
    trainer = _trainer(
        [monitor, stopping, line, TrainingBar(watch.story), deadline, best, last],
        max_steps=steps.last_step,
        val_check_interval=steps.interval,
        check_val_every_n_epoch=None,
        logger=logger,
        log_every_n_steps=10,
    )
    train = make_loader(fit.rows, fit.batch_size, shuffle=True, seed=fit.seed + 1)
    validation = make_loader(fit.held_out, _VALIDATION_BATCH, shuffle=False)
    try:
        _fit(trainer, module, train_dataloaders=train, val_dataloaders=validation, ckpt_path=resume_from)
        reason, message = _why(stopping, deadline, trainer.global_step)
        logger.experiment.summary.update({"speedup/stop_reason": reason, "speedup/stop_message": message})
    finally:
        _finish_wandb()
    end: dict[str, Any] = {
        "reason": reason,
        "message": message,
        "steps": trainer.global_step,
        "best": best.best_model_path,
    }
    torch.save({"monitor": monitor.state_dict(), "end": end}, folder.trained)
    return _ended(monitor, **end)


def _checkpoints(folder: RunFolder) -> tuple[ModelCheckpoint, ModelCheckpoint]:
    """The checkpoint of the highest projected tok/s, and that of the last validation, to go on from.

    Two callbacks, since ``save_last`` writes only where the best one changes: going on would repeat all since then.
    """
    where: dict[str, Any] = {"dirpath": folder.checkpoints, "enable_version_counter": False}
    best = ModelCheckpoint(filename="best", monitor="speedup/tok_s", mode="max", **where)
    return best, ModelCheckpoint(filename=folder.last_checkpoint.stem, **where)


def finished_fit(fit: Fit, calibration: Calibration, settings: Settings, folder: RunFolder) -> MainFit | None:
    """The main fit of an interrupted run, where it had come to its end."""
    if not folder.trained.is_file():
        return None
    kept = torch.load(folder.trained, weights_only=True)
    monitor = _monitor(fit, calibration, settings)
    monitor.load_state_dict(kept["monitor"])
    return _ended(monitor, **kept["end"])


def _monitor(fit: Fit, calibration: Calibration, settings: Settings) -> SpeedupMonitor:
    module = fit.module(1)
    return SpeedupMonitor(
        calibration,
        max_depth=max(module.config.validation_ttt_steps, *settings.serving.depths),
        draft_vocab=module.drafter.d2t,
        blocks=max(64, len(fit.held_out)),
    )


def _ended(monitor: SpeedupMonitor, *, reason: str, message: str, steps: int, best: str) -> MainFit:
    step = torch.load(best, map_location="cpu", weights_only=True, mmap=True)["global_step"]
    kept = next(v for v in monitor.history if v.global_step == step)
    return MainFit(tuple(monitor.history), kept, Path(best), reason, message, steps)


def restore(module: Eagle3Module, checkpoint: Path) -> Eagle3Drafter:
    """The drafter that a checkpoint would serve."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    module.load_state_dict(state["state_dict"])
    return module.eval().served_drafter()


def profile_of(module: Eagle3Module, rows: Sequence[FeatureRow], max_depth: int) -> tuple[AcceptanceProfile, float]:
    """Acceptance on the rows, one row a block, and the seconds it took: what a validation costs."""
    start = time.perf_counter()
    metric = TTTAcceptance(module.config.validation_ttt_steps, max_depth, blocks=max(64, len(rows)))
    module.on_validation_start()
    for batch_idx, batch in enumerate(make_loader(rows, _VALIDATION_BATCH, shuffle=False)):
        metric.update(**module.validation_step(batch, batch_idx))
    module.on_validation_end()
    return metric.compute(), time.perf_counter() - start


def _trainer(callbacks: list[Callback], **options: Any) -> Trainer:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    given: dict[str, Any] = {
        "logger": False,
        "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
    }
    return Trainer(accelerator="cpu", devices=1, callbacks=callbacks, max_epochs=-1, **quiet, **(given | options))


def _fit(trainer: Trainer, module: LightningModule, **options: Any) -> None:
    """Fit; Ctrl-C comes out as KeyboardInterrupt (Lightning makes it an exit and leaves the signal ignored)."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, **options)
    except SystemExit:
        if trainer.interrupted:
            signal.signal(signal.SIGINT, handler)
            raise KeyboardInterrupt from None
        raise


def _logger(folder: Path, config: dict[str, Any]) -> WandbLogger:
    import wandb

    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_machine_info=True)
    logger = WandbLogger(project="eagle-speedup-demo", save_dir=folder, config=config, settings=settings)
    with contextlib.redirect_stderr(io.StringIO()):  # it warns of an argument that Lightning passes
        _ = logger.experiment
    return logger


def _finish_wandb() -> None:
    """Close the run's file; without this a later run in the same process would be written to it."""
    import wandb

    if wandb.run is not None:
        wandb.finish()


def _why(stopping: SpeedupEarlyStopping, deadline: Deadline, step: int) -> tuple[str, str]:
    decision = stopping.stop_decision
    if stopping.stopped_step is not None and decision is not None:
        return ("stopped" if decision.reason is None else decision.reason.value), decision.message
    last = f"; last decision: {decision.message}" if decision else ""
    if deadline.reached:
        return "time budget", f"the time budget ended the training at step {step}{last}"
    return "step budget", f"the step budget ended the training at step {step}{last}"
