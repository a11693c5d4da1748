"""Small Lightning callbacks of the demo: a progress bar, a line per validation, the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from ..callbacks import SpeedupMonitor
from .story import Story, clock_text

__all__ = ["Deadline", "StepClock", "TrainingBar", "ValidationLine"]


class StepClock(Callback):
    """Measures the time of a training step.

    Args:
        skip: first steps that do not count (they allocate).
    """

    def __init__(self, skip: int = 5) -> None:
        self.skip = skip
        self.steps = 0
        self._first = self._last = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the time."""
        self._last = time.perf_counter()
        self.steps += 1
        if self.steps <= self.skip:
            self._first = self._last

    @property
    def step_s(self) -> float:
        """Mean seconds a step; NaN before enough steps."""
        counted = self.steps - self.skip
        return (self._last - self._first) / counted if counted > 0 else float("nan")


class Deadline(Callback):
    """Ends the fit at a moment, after a last validation (which Lightning makes when it is told to stop).

    Args:
        until_s: the moment, on the clock of ``elapsed``.
        elapsed: seconds now.
        least_steps: steps to do even if the moment has passed.
    """

    def __init__(self, until_s: float, elapsed: Callable[[], float], least_steps: int = 0) -> None:
        self.until_s, self.elapsed, self.least_steps = until_s, elapsed, least_steps
        self.reached = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the clock."""
        if not self.reached and trainer.global_step >= self.least_steps and self.elapsed() >= self.until_s:
            self.reached = True
            trainer.should_stop = True


class TrainingBar(Callback):
    """A bar of steps with the loss and what the last validation said.

    Args:
        story: where it is shown.
        fraction: for a fit that ends by the clock, the share of it that has passed; None = by steps.
    """

    def __init__(self, story: Story, fraction: Callable[[], float] | None = None) -> None:
        self._story, self._fraction = story, fraction
        self._stack = ExitStack()
        self._update: Callable[..., None] | None = None
        self._shown = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show it."""
        unit = "steps" if self._fraction is None else "%"
        self._update = self._stack.enter_context(self._story.bar(unit, loss="", speed=""))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move it, a few times a second."""
        now = time.monotonic()
        if self._update is None or now - self._shown < 0.25:
            return
        self._shown = now
        metrics = trainer.callback_metrics
        loss, speed = metrics.get("train/loss"), metrics.get("speedup/tok_s")
        texts = {
            "loss": "" if loss is None else f"loss {float(loss):.2f}",
            "speed": "" if speed is None else f"{float(speed):.1f} tok/s",
        }
        if self._fraction is None:
            self._update(trainer.global_step, trainer.max_steps, **texts)
        else:
            self._update(min(100, round(100 * self._fraction())), 100, **texts)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take it away."""
        self._stack.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take it away."""
        self._stack.close()


class ValidationLine(Callback):
    """One line per validation, and a call for whoever keeps the run's state.

    Args:
        story: where it is printed.
        elapsed: seconds now.
        then: called after every validation.
        tok_s_of: name of the node the tok/s are for; None = this machine.
    """

    def __init__(
        self, story: Story, elapsed: Callable[[], float], then: Callable[[], None], tok_s_of: str | None = None
    ) -> None:
        self._story, self._elapsed, self._then = story, elapsed, then
        self._suffix = f" (of {tok_s_of})" if tok_s_of else ""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After the monitor has projected."""
        monitor = next((c for c in trainer.callbacks if isinstance(c, SpeedupMonitor)), None)  # type: ignore[attr-defined]
        if monitor is None or trainer.sanity_checking or not monitor.history:
            return
        p = monitor.history[-1].projected
        style = "green" if p.ratio.lo > 1 else ""
        self._story.say(
            f"{clock_text(self._elapsed()):>5}  step {trainer.global_step:>5}   accept length {p.accept_length}   "
            f"{p.tok_s} tok/s{self._suffix}   {p.ratio.value:.2f}x at depth {p.depth}",
            style,
        )
        self._then()
