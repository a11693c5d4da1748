"""tok/s without speculation: measured, or estimated and then said to be."""

from __future__ import annotations

from dataclasses import dataclass

from ..estimate import Estimate
from ..throughput import Calibration

__all__ = ["Baseline", "baseline_at"]


@dataclass(frozen=True)
class Baseline:
    """What the node serves without speculation, all users together."""

    tok_s: Estimate
    """By the calibration, as the next measurement would show it."""
    measured: bool
    """Whether the calibration holds a point without speculation at this batch size."""

    def __str__(self) -> str:
        return str(self.tok_s) if self.measured else f"{self.tok_s} (estimated, not measured)"


def baseline_at(calibration: Calibration, batch: int, context_tokens: float | None = None) -> Baseline:
    """The baseline at a batch size and context (None = as calibrated)."""
    measured = any(p.depth == 0 and p.batch == batch for p in calibration.points)
    return Baseline(calibration.model.tok_s(1.0, 0, batch, context_tokens), measured)
