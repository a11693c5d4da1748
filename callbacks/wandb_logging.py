"""What Weights & Biases gets beside the scalars; needs wandb only where a ``WandbLogger`` is in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import WandbLogger

from ..acceptance import AcceptanceProfile
from ..projection import SpeedupProjection
from ._keys import HEADLINE, row_step

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from .speedup_monitor import SpeedupMonitor

__all__ = ["WandbReport", "wandb_reports"]

_STEP = "trainer/global_step"
_BEST_AND_LAST = "max,last"
_DEPTH_COLUMNS = ("accept_length", "tok_s", "ratio", "round_ms", "breakeven")


def wandb_reports(trainer: Trainer, monitor: SpeedupMonitor) -> list[WandbReport]:
    """One per WandbLogger of the trainer; none on other ranks, where touching the run raises."""
    if not trainer.is_global_zero:
        return []
    return [WandbReport(logger, monitor) for logger in trainer.loggers if isinstance(logger, WandbLogger)]


class WandbReport:
    """Metric definitions, config, tables, summary entries and alerts of one monitor in one run."""

    def __init__(self, logger: WandbLogger, monitor: SpeedupMonitor) -> None:
        self.logger = logger
        self.name = monitor.name
        self._defined: set[str] = set()
        self._settings = {
            "depth": monitor.depth,
            "batch": monitor.batch,
            "context_tokens": monitor.context_tokens,
            "workload": monitor.workload,
            "mode": monitor.mode,
            "validation_sets": list(monitor.validation_sets),
        }
        calibration = monitor.calibration
        for key in ("node", "verifier", "engine", "engine_version", "parallelism", "draft_sampling"):
            self._settings[key] = getattr(calibration, key)
        self._settings.update(calibration=calibration.name, calibration_fingerprint=calibration.fingerprint)
        self.run.config.update({self.name: self._settings}, allow_val_change=True)

    @property
    def run(self) -> Any:
        """The wandb run."""
        return self.logger.experiment

    def counts(self, trainer: Trainer, profile: AcceptanceProfile, sets: Mapping[str, AcceptanceProfile]) -> None:
        """Keep the raw counts, so that the run can be projected anew; define the metrics at the first call."""
        self._define(profile, sets)
        step = row_step(trainer)
        for prefix, part in [(self.name, profile), *((f"{self.name}/{key}", part) for key, part in sets.items())]:
            columns = ["block", *part.counts.column_names()]
            rows = [[block, *row] for block, row in enumerate(part.counts.flat().tolist())]
            self.logger.log_table(f"{prefix}/counts", columns=columns, data=rows, step=step)

    def by_depth(self, trainer: Trainer, projections: Sequence[SpeedupProjection]) -> None:
        """Table and chart of tok/s over depth, for one projection per batch size."""
        import wandb

        step = row_step(trainer)
        columns = ["batch", "depth", *(f"{key}{end}" for key in _DEPTH_COLUMNS for end in ("", "_lo", "_hi"))]
        rows: list[list[float]] = []
        for projection in projections:
            for point in projection.by_depth:
                estimates = [getattr(point, key) for key in _DEPTH_COLUMNS]
                rows.append([projection.batch, point.depth, *(x for e in estimates for x in (e.value, e.lo, e.hi))])
        self.logger.log_table(f"{self.name}/by_depth", columns=columns, data=rows, step=step)
        depths = [[point.depth for point in p.by_depth] for p in projections]
        tok_s = [[point.tok_s.value for point in p.by_depth] for p in projections]
        labels = [f"batch {p.batch}" for p in projections]
        chart: Any = wandb.plot.line_series(depths, tok_s, keys=labels, title="tok/s over draft depth", xname="depth")
        self.logger.log_metrics({f"{self.name}/tok_s_over_depth": chart}, step=step)

    def alert(self, title: str, text: str) -> None:
        """A W&B alert with the run's numbers."""
        self.run.alert(title=f"{self.name}: {title}", text=text)

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Set summary entries under the monitor's name."""
        for key, value in values.items():
            self.run.summary[f"{self.name}/{key}"] = value

    def _define(self, profile: AcceptanceProfile, sets: Mapping[str, AcceptanceProfile]) -> None:
        """Exact names: a glob is unreliable beside Lightning's own ``*``."""
        keys = list(HEADLINE)
        keys += [f"{kind}_{k}" for kind in ("full_acc", "cond_acc", "step_acc") for k in range(profile.ttt_steps)]
        for prefix in (self.name, *(f"{self.name}/{key}" for key in sets)):
            for key in keys:
                metric = f"{prefix}/{key}"
                if metric not in self._defined:
                    self._defined.add(metric)
                    self.run.define_metric(metric, step_metric=_STEP, summary=_BEST_AND_LAST)
