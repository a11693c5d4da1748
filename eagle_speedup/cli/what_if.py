"""What other circumstances would give: other batch sizes, better accuracies, a wished speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..estimate import Estimate
from ..projection import SpeedupProjection
from ..throughput import Calibration
from .baseline import Baseline, baselines_at
from .inputs import Given

__all__ = ["BatchRow", "PointWorth", "Wish", "batch_rows", "point_worth", "wish"]


@dataclass(frozen=True)
class BatchRow:
    """The best depth at one batch size."""

    batch: int
    best_depth: int
    """0 = do not speculate."""
    baseline_tok_s: float
    """Without speculation."""
    tok_s: Estimate
    """At the best depth (at depth 1 where none gains)."""
    ratio: Estimate
    """Over no speculation."""
    breakeven: Estimate
    """Accept length at which that depth breaks even."""
    tok_s_by_depth: tuple[Estimate, ...]
    """At depth 1, 2, .."""
    warnings: tuple[str, ...]
    """Where this batch size lies outside what was measured."""
    baseline: Baseline
    """Without speculation, with its interval."""


@dataclass(frozen=True)
class PointWorth:
    """What one more point (0.01) of one joint accuracy brings, the later conditionals held."""

    step: int
    """TTT step, from 1."""
    accept_length: float
    """More tokens per round."""
    tok_s: float
    """More tokens per second of the whole batch."""


@dataclass(frozen=True)
class Wish:
    """What a wished speed takes at the headline's depth."""

    tok_s: float
    """As wished."""
    depth: int
    accept_length: Estimate
    """Needed; its interval is that of the round time."""
    reachable: bool
    """Whether it is at most depth + 1."""
    conditional: float | None
    """Conditional accuracy that, equal at every step, gives it; None where out of reach."""


def batch_rows(
    given: Given,
    calibration: Calibration,
    batches: Sequence[int],
    context_tokens: float | None,
    workload: str | None = None,
) -> tuple[BatchRow, ...]:
    """The best depth, up to the given steps, at each batch size."""
    if not batches:
        return ()
    depths = range(1, min(given.lengths.ttt_steps, given.lengths.max_depth) + 1)
    lengths = [_bounded(given.lengths.accept_length(depth), depth) for depth in depths]
    grid = calibration.model.grid(depths, batches, context_tokens, lengths, workload)
    baselines = baselines_at(calibration, batches, context_tokens, workload)
    rows = []
    for column, batch in enumerate(batches):
        row = max(range(len(depths)), key=lambda i: grid.tok_s.at(i, column).value)
        tok_s, ratio = grid.tok_s.at(row, column), grid.speedup.at(row, column)
        rows.append(
            BatchRow(
                batch=batch,
                best_depth=depths[row] if ratio.value > 1 else 0,
                baseline_tok_s=tok_s.value / ratio.value,
                tok_s=tok_s,
                ratio=ratio,
                breakeven=grid.breakeven.at(row, column),
                tok_s_by_depth=tuple(grid.tok_s.at(i, column) for i in range(len(depths))),
                warnings=calibration.model.range_warnings(depths[row], batch, context_tokens, workload),
                baseline=baselines[column],
            )
        )
    return tuple(rows)


def point_worth(given: Given, projection: SpeedupProjection) -> tuple[PointWorth, ...]:
    """Worth of a point of full_acc at each step up to the headline's depth.

    Raising step k by 0.01 raises the later joint accuracies in proportion; the accept length gains
    0.01 / full_acc_k * sum of full_acc from k on.
    """
    full_acc = given.full_acc[: projection.depth]
    textbook = 1 + math.fsum(full_acc)
    length, tok_s, outside = projection.accept_length.value, projection.tok_s.value, _outside(projection)
    out = []
    for k, value in enumerate(full_acc):
        if value > 0:
            gain = length * 0.01 / value * math.fsum(full_acc[k:]) / textbook
            decoding = (1 / tok_s - outside) * length / (length + gain)
            out.append(PointWorth(k + 1, gain, 1 / (decoding + outside) - tok_s))
    return tuple(out)


def wish(projection: SpeedupProjection, tok_s: float) -> Wish:
    """The accept length that serves ``tok_s`` at the headline's depth and batch."""
    if not (math.isfinite(tok_s) and tok_s > 0):
        raise InputError("want_tok_s", tok_s, "must be a finite number > 0")
    depth, round_ms = projection.depth, projection.round_ms
    left = 1 / tok_s - _outside(projection)
    decoding = (1 / projection.tok_s.value - _outside(projection)) * projection.accept_length.value
    value = decoding / left if left > 0 else math.inf
    needed = Estimate(value, value * round_ms.lo / round_ms.value, value * round_ms.hi / round_ms.value, round_ms.level)
    reachable = 1 <= value <= depth + 1
    return Wish(tok_s, depth, needed, reachable, _equal_conditional(value, depth) if reachable else None)


def _outside(projection: SpeedupProjection) -> float:
    """Seconds per token that no accept length shortens: what tok/s holds beyond round_ms / accept length."""
    decoding = projection.round_ms.value / (1000.0 * projection.batch * projection.accept_length.value)
    return max(0.0, 1 / projection.tok_s.value - decoding)


def _bounded(length: Estimate, depth: int) -> Estimate:
    """With one block of answers there is no spread to show; all that is certain is what is possible."""
    if math.isnan(length.lo) or math.isnan(length.hi):
        return Estimate(length.value, 1.0, depth + 1.0, length.level)
    return length


def _equal_conditional(accept_length: float, depth: int) -> float:
    """c with 1 + c + c^2 + .. + c^depth = accept_length, by bisection."""
    lo, hi = 0.0, 1.0
    for _ in range(50):
        middle = (lo + hi) / 2
        if 1 + math.fsum(middle**k for k in range(1, depth + 1)) < accept_length:
            lo = middle
        else:
            hi = middle
    return (lo + hi) / 2
