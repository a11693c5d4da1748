"""Stop training when the projected speedup has stopped growing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from ..errors import InputError
from ..training import StopDecision, StopReason, decide
from ._keys import row_step
from .speedup_monitor import SpeedupMonitor

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ["SpeedupEarlyStopping"]


class SpeedupEarlyStopping(Callback):
    """Stops when ``patience`` validations in a row brought no confirmed gain of projected tok/s.

    Reads the :class:`~eagle_speedup.callbacks.SpeedupMonitor` of the same trainer; their order does not matter. Gains
    are judged on the same answers (paired), see :func:`eagle_speedup.training.decide`. A decision waits inside the
    callback until the trainer's ``min_steps`` and ``min_epochs`` are met, and a gain in the meantime revokes it.
    Never acts in sanity checking, ``fast_dev_run`` or ``trainer.validate()``.

    Args:
        min_gain_ratio: smallest relative gain that counts (0.01 = 1 %).
        patience: validations in a row without one that stop.
        monitor: ``name`` of the monitor to read; needed only where there are several.
        verbose: also log a line at validations that do not stop.

    Attributes:
        stop_decision: the last decision, with the numbers in its message; None before the first validation.
        stopped_step: optimizer step at which training was told to stop; None where it was not.
    """

    def __init__(
        self, min_gain_ratio: float = 0.01, patience: int = 3, *, monitor: str | None = None, verbose: bool = False
    ) -> None:
        decide([], min_gain_ratio=min_gain_ratio, patience=patience)  # refuses bad arguments now
        self.min_gain_ratio = min_gain_ratio
        self.patience = patience
        self.monitor = monitor
        self.verbose = verbose
        self.stop_decision: StopDecision | None = None
        self.stopped_step: int | None = None

    @property
    def state_key(self) -> str:
        """One entry per monitor that is read."""
        return f"{type(self).__qualname__}[{self.monitor or 'speedup'}]"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """InputError when there is no monitor to read."""
        self._monitor(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that goes on after a stop is not stopped."""
        self.stopped_step = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide, after the monitor's ``on_validation_epoch_end``."""
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking or _fast_dev_run(trainer):
            return
        history = self._monitor(trainer).history
        decision = decide(history, min_gain_ratio=self.min_gain_ratio, patience=self.patience)
        self.stop_decision = decision
        # The histories are equal on all ranks; were they not, a rank that goes on alone would hang.
        if not trainer.strategy.reduce_boolean_decision(decision.stop, all=False):
            if self.verbose:
                rank_zero_info(f"SpeedupEarlyStopping: {decision.message}")
        elif _may_stop(trainer):
            self._stop(trainer, decision)
        else:
            rank_zero_info(f"SpeedupEarlyStopping: {decision.message}; waiting for min_steps or min_epochs")

    def _stop(self, trainer: Trainer, decision: StopDecision) -> None:
        trainer.should_stop = True
        self.stopped_step = trainer.global_step
        rank_zero_info(f"SpeedupEarlyStopping: {decision.message}")
        monitor = self._monitor(trainer)
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics({f"{monitor.name}/stopped": 1.0}, step=row_step(trainer))
        reason = None if decision.reason is None else decision.reason.value
        for report in monitor.reports(trainer):
            report.summarise({"stop_reason": reason, "stop_message": decision.message})
            report.summarise({"stop_step": trainer.global_step})
            report.alert("Training stopped", decision.message)

    def _monitor(self, trainer: Trainer) -> SpeedupMonitor:
        monitors = [c for c in getattr(trainer, "callbacks", []) if isinstance(c, SpeedupMonitor)]
        names = [m.name for m in monitors]
        if self.monitor is None and len(monitors) > 1:
            raise InputError("monitor", None, f"must name one of the trainer's SpeedupMonitors: {', '.join(names)}")
        for candidate in monitors:
            if self.monitor in (None, candidate.name):
                return candidate
        rule = f"must name a SpeedupMonitor among the trainer's callbacks (found: {', '.join(names) or 'none'})"
        raise InputError("monitor", self.monitor, rule)

    def state_dict(self) -> dict[str, Any]:
        """The decision, as Python values."""
        decision = self.stop_decision
        if decision is None:
            return {"stop_decision": None, "stopped_step": None}
        plain = {
            "stop": decision.stop,
            "reason": None if decision.reason is None else decision.reason.value,
            "message": decision.message,
            "best_step": decision.best_step,
        }
        return {"stop_decision": plain, "stopped_step": self.stopped_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the decision; a resumed run decides anew at its next validation."""
        plain = state_dict["stop_decision"]
        if plain is not None:
            reason = None if plain["reason"] is None else StopReason(plain["reason"])
            self.stop_decision = StopDecision(plain["stop"], reason, plain["message"], plain["best_step"])
        self.stopped_step = state_dict["stopped_step"]


def _may_stop(trainer: Trainer) -> bool:
    """Whether min_steps and min_epochs are met once the running epoch's last batch is counted as its end.

    Setting ``should_stop`` earlier makes Lightning log at every train step from then on (its issue 19990).
    """
    epochs = trainer.current_epoch + (1 if trainer.is_last_batch else 0)
    return trainer.global_step >= (trainer.min_steps or 0) and epochs >= (trainer.min_epochs or 0)


def _fast_dev_run(trainer: Trainer) -> bool:
    return bool(getattr(trainer, "fast_dev_run", False))
