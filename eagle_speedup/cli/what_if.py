"""What other circumstances would give: other batch sizes, better accuracies, a wished speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..estimate import Estimate
from ..projection import SpeedupProjection
from ..projection.bracket import grid_over
from ..throughput import Calibration
from .baseline import Baseline, baselines_at
from .inputs import Given

__all__ = ["BatchRow", "BestDepths", "PointWorth", "Wish", "batch_rows", "best_depths", "point_worth", "wish"]


@dataclass(frozen=True)
class BestDepths:
    """The best of the given depths at both ends of a bracket; 0 = do not speculate."""

    independence: int
    """If the steps are independent."""
    frechet: int
    """If they are right together as often as they can be."""

    def __str__(self) -> str:
        first, second = (f"{depth} is best" if depth else "none gains" for depth in (self.independence, self.frechet))
        if self.independence == self.frechet:
            return f"{first} at both ends of the bracket"
        return f"{first} if the steps are independent, {second} if they go together as much as they can"


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
    best_depth_bracket: BestDepths | None
    """For marginals, ``best_depth`` at both ends; None for other kinds."""


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
    lengths = {depth: given.lengths.accept_length(depth) for depth in depths}
    grid = grid_over(calibration.model, lengths, batches, context_tokens, workload, is_open=given.is_bracket)
    baselines = baselines_at(calibration, batches, context_tokens, workload)
    at_best = _best_at_frechet(given, calibration, batches, context_tokens, workload)
    rows = []
    for column, batch in enumerate(batches):
        row = max(range(len(depths)), key=lambda i: grid.tok_s.at(i, column).value)
        tok_s, ratio = grid.tok_s.at(row, column), grid.speedup.at(row, column)
        best = depths[row] if ratio.value > 1 else 0
        rows.append(
            BatchRow(
                batch=batch,
                best_depth=best,
                baseline_tok_s=tok_s.value / ratio.value,
                tok_s=tok_s,
                ratio=ratio,
                breakeven=grid.breakeven.at(row, column),
                tok_s_by_depth=tuple(grid.tok_s.at(i, column) for i in range(len(depths))),
                warnings=calibration.model.range_warnings(depths[row], batch, context_tokens, workload),
                baseline=baselines[column],
                best_depth_bracket=BestDepths(best, at_best[column]) if at_best else None,
            )
        )
    return tuple(rows)


def best_depths(given: Given, calibration: Calibration, projection: SpeedupProjection) -> BestDepths | None:
    """For marginals, the best of the given depths at both ends of their bracket; None for other kinds."""
    p = projection
    at_best = _best_at_frechet(given, calibration, [p.batch], p.context_tokens, p.workload)
    return BestDepths(p.best_measured_depth, at_best[0]) if at_best else None


def _best_at_frechet(
    given: Given,
    calibration: Calibration,
    batches: Sequence[int],
    context_tokens: float | None,
    workload: str | None,
) -> list[int]:
    """Best of the given depths at each batch size at the Frechet bound; empty unless marginals were given."""
    curve = given.frechet
    if curve is None:
        return []
    depths = range(1, min(curve.ttt_steps, curve.max_depth) + 1)
    lengths = [curve.accept_length(depth).value for depth in depths]
    grid = calibration.model.grid(depths, batches, context_tokens, lengths, workload)
    best = grid.tok_s.value.argmax(axis=0)
    gains = grid.speedup.value.max(axis=0) > 1
    return [depths[row] if gain else 0 for row, gain in zip(best.tolist(), gains.tolist(), strict=True)]


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
