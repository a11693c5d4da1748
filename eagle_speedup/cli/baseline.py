"""tok/s without speculation: measured, or estimated and then said to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..estimate import Estimate
from ..throughput import Calibration

__all__ = ["Baseline", "baselines_at"]


@dataclass(frozen=True)
class Baseline:
    """What the node serves without speculation, all users together."""

    tok_s: Estimate
    """By the calibration, as the next measurement would show it."""
    measured: bool
    """Whether the calibration holds a point without speculation at this batch size."""


def baselines_at(
    calibration: Calibration,
    batches: Sequence[int],
    context_tokens: float | None = None,
    workload: str | None = None,
) -> tuple[Baseline, ...]:
    """The baseline at each batch size, at a context and of a workload (None = as calibrated)."""
    measured = {p.batch for p in calibration.points if p.depth == 0 and workload in (None, p.workload)}
    tok_s = calibration.model.grid([0], batches, context_tokens, [1.0], workload).tok_s
    return tuple(Baseline(tok_s.at(0, column), batch in measured) for column, batch in enumerate(batches))
