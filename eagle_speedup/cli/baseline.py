"""tok/s without speculation: measured, or estimated and then said to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..estimate import Estimate
from ..throughput import Calibration, MeasuredPoint

__all__ = ["Baseline", "baselines_at", "plain_points"]


@dataclass(frozen=True)
class Baseline:
    """What the node serves without speculation, all users together."""

    tok_s: Estimate
    """By the calibration, as the next measurement would show it."""
    measured: bool
    """Whether the calibration holds a point without speculation at this batch size and context, of this workload."""


def baselines_at(
    calibration: Calibration,
    batches: Sequence[int],
    context_tokens: float | None = None,
    workload: str | None = None,
) -> tuple[Baseline, ...]:
    """The baseline at each batch size, at a context and of a workload (None = as calibrated)."""
    measured = {p.batch for p in plain_points(calibration, context_tokens, workload)}
    tok_s = calibration.model.grid([0], batches, context_tokens, [1.0], workload).tok_s
    return tuple(Baseline(tok_s.at(0, column), batch in measured) for column, batch in enumerate(batches))


def plain_points(
    calibration: Calibration, context_tokens: float | None = None, workload: str | None = None
) -> tuple[MeasuredPoint, ...]:
    """The points without speculation at a context and of a workload.

    None is what the model takes it for (`ThroughputModel.conditions`). A point of unrecorded context matches None
    alone, and no context that is asked for by number.
    """
    usual, workload = calibration.model.conditions(None, workload)
    plain = [p for p in calibration.points if p.depth == 0 and p.round_ms is not None and p.workload == workload]
    if context_tokens is None:
        return tuple(p for p in plain if p.context_tokens in (None, usual))
    return tuple(p for p in plain if p.context_tokens == context_tokens)
