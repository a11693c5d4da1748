"""Accept length and a calibration joined to what the node would serve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from ..errors import InputError
from ..estimate import Estimate
from ..throughput import Calibration
from .bracket import grid_over, open_bracket

__all__ = ["AcceptLengths", "DepthProjection", "SpeedupProjection", "project"]


class AcceptLengths(Protocol):
    """Anything that knows its accept length at every depth (a profile from counts, a curve from published figures)."""

    @property
    def ttt_steps(self) -> int:
        """Steps that were measured."""

    @property
    def max_depth(self) -> int:
        """Largest depth it can answer for."""

    def accept_length(self, depth: int) -> Estimate:
        """Tokens per round at a draft depth, bonus token included."""


@dataclass(frozen=True)
class DepthProjection:
    """What one draft depth would serve."""

    depth: int
    accept_length: Estimate
    """Tokens per round, bonus token included."""
    round_ms: Estimate
    """Milliseconds of one round."""
    tok_s: Estimate
    """Tokens per second of the whole batch."""
    ratio: Estimate
    """tok/s over tok/s without speculation."""
    breakeven: Estimate
    """Accept length at which speculation neither gains nor loses."""


@dataclass(frozen=True)
class SpeedupProjection:
    """What a drafter of this accept length would serve under one calibration. A value: nothing applies it twice."""

    headline: DepthProjection
    """At the depth that was asked for, else at the best one."""
    by_depth: tuple[DepthProjection, ...]
    """Depth 1, 2, .. in order."""
    best_depth: int
    """Depth of the highest tok/s; 0 where every depth is slower than no speculation."""
    batch: int
    context_tokens: float | None
    fingerprint: str
    """Of the calibration; only projections under one fingerprint may be compared."""
    warnings: tuple[str, ...]
    """What a reader must know before trusting the figures."""
    measured_steps: int | None = None
    """Depth up to which the accept lengths were measured; None = all of ``by_depth``."""
    workload: str | None = None
    """Traffic whose share outside decoding is counted; None = the one of the calibration's fastest baseline."""

    @property
    def best_measured_depth(self) -> int:
        """Depth of the highest tok/s among those whose accept length was measured; 0 where none of them gains."""
        rows = self.by_depth[: self.measured_steps]
        best = max(rows, key=lambda p: p.tok_s.value)
        return best.depth if best.ratio.value > 1 else 0

    @property
    def best_beyond(self) -> DepthProjection | None:
        """The fastest depth, where it lies beyond the measured ones: an extrapolation, not a recommendation."""
        return self.by_depth[self.best_depth - 1] if self.best_depth > self.best_measured_depth else None

    @property
    def depth(self) -> int:
        """Depth of the headline."""
        return self.headline.depth

    @property
    def accept_length(self) -> Estimate:
        """Of the headline."""
        return self.headline.accept_length

    @property
    def round_ms(self) -> Estimate:
        """Of the headline."""
        return self.headline.round_ms

    @property
    def tok_s(self) -> Estimate:
        """Of the headline: tokens per second of the whole batch."""
        return self.headline.tok_s

    @property
    def tok_s_per_user(self) -> Estimate:
        """Of the headline: tokens per second of one request."""
        return self.tok_s.scaled(1 / self.batch)

    @property
    def ratio(self) -> Estimate:
        """Of the headline: speedup over no speculation."""
        return self.headline.ratio

    @property
    def breakeven(self) -> Estimate:
        """Of the headline: accept length at which speculation neither gains nor loses."""
        return self.headline.breakeven


def project(
    lengths: AcceptLengths,
    calibration: Calibration,
    *,
    depth: int | None = None,
    batch: int = 1,
    context_tokens: float | None = None,
    workload: str | None = None,
    max_depth: int | None = None,
) -> SpeedupProjection:
    """Project what the calibrated node serves.

    Args:
        lengths: accept length at every depth.
        calibration: of the node, verifier and engine.
        depth: draft depth of the headline; None = the one of the highest tok/s.
        batch: requests in flight.
        context_tokens: context per request; None = as calibrated.
        workload: data set or traffic, as the calibration's points name it: its own share of time outside decoding is
            then in tok/s and speedup. None = the workload of the fastest baseline, the closest to decoding alone.
        max_depth: largest depth of ``by_depth``; default: the measured steps, or ``depth`` where that is larger.

    Raises:
        InputError: depth or batch out of range, or an accept length without data (no answers).
    """
    measured = min(lengths.ttt_steps, lengths.max_depth)
    depths = range(1, max(depth or 1, max_depth or measured) + 1)
    usable = {d: _usable(lengths.accept_length(d), d) for d in depths}
    model = calibration.model
    is_open = open_bracket(lengths) is not None
    grid = grid_over(model, usable, [batch], context_tokens, workload, is_open=is_open)
    by_depth = tuple(
        DepthProjection(
            depth=depth,
            accept_length=usable[depth],
            round_ms=grid.round_ms.at(row, 0),
            tok_s=grid.tok_s.at(row, 0),
            ratio=grid.speedup.at(row, 0),
            breakeven=grid.breakeven.at(row, 0),
        )
        for row, depth in enumerate(depths)
    )
    fastest = max(by_depth, key=lambda p: p.tok_s.value)
    headline = fastest if depth is None else by_depth[depth - 1]
    outside = model.range_warnings(headline.depth, batch, context_tokens, workload)
    warnings = (*calibration.caveats, *outside)
    if headline.depth > lengths.ttt_steps:
        warnings += (f"depth {headline.depth} is beyond the {lengths.ttt_steps} TTT steps that were run",)
    return SpeedupProjection(
        headline=headline,
        by_depth=by_depth,
        best_depth=fastest.depth if fastest.ratio.value > 1 else 0,
        batch=batch,
        context_tokens=context_tokens,
        fingerprint=calibration.fingerprint,
        warnings=warnings,
        measured_steps=measured,
        workload=workload,
    )


def _usable(accept_length: Estimate, depth: int) -> Estimate:
    if math.isnan(accept_length.value):
        raise InputError("accept_length", accept_length.value, "needs at least one answer with two tokens")
    if math.isnan(accept_length.lo) or math.isnan(accept_length.hi):
        # One block of answers has no spread to show; all that is certain is the range of possible accept lengths.
        return Estimate(accept_length.value, 1.0, depth + 1.0, accept_length.level)
    return accept_length
