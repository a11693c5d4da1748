"""Go or no-go, what depth can give, and what would move the answer: each with its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..estimate import Estimate
from ..projection import SpeedupProjection
from ..projection.speedup import DepthProjection
from ..throughput import Calibration
from .inputs import Given
from .what_if import BestDepths, PointWorth
from .wording import figure, times

__all__ = ["NOTHING_MEASURED", "Limit", "Verdict", "levers", "limit_of_depth", "verdict"]

NOTHING_MEASURED = "nothing was measured"


@dataclass(frozen=True)
class Verdict:
    """Whether to speculate at the depth that was asked for."""

    decision: str
    """``go`` (the whole interval gains), ``no-go`` (the whole interval loses) or ``unclear``."""
    reason: str
    """One sentence with the numbers."""


@dataclass(frozen=True)
class Limit:
    """What drafting ever deeper could reach."""

    accept_length: float
    """At unlimited depth; infinite where the tail never misses."""
    tail_conditional: float | None
    """Conditional accuracy assumed of every further step; None where depths were counted instead."""
    reason: str
    """Why depth does not buy more."""
    hi: float
    """Upper end of ``accept_length``, at or above those of all depths."""


def verdict(p: SpeedupProjection, calibration: Calibration, *, bracket: bool) -> Verdict:
    """Judge the interval of the speedup; without a measured point, or by points that contradict, nothing is decided."""
    needs = f"accept length {figure(p.accept_length, bracket)} against a breakeven of {p.breakeven} at depth {p.depth}"
    ratio, whole = times(p.ratio, bracket), "bracket" if bracket else "interval"
    if not calibration.is_measured:
        return Verdict("unclear", f"{NOTHING_MEASURED}; the simulation alone says {needs}, a speedup of {ratio}")
    if (why := calibration.model.inconsistent) is not None:
        return Verdict("unclear", f"the calibration is inconsistent ({why}); by it, {needs}: speedup {ratio}")
    if p.ratio.lo > 1:
        return Verdict("go", f"{needs}: the whole {whole} of the speedup, {ratio}, lies above 1")
    if p.ratio.hi < 1:
        return Verdict("no-go", f"{needs}: the whole {whole} of the speedup, {ratio}, lies below 1")
    leaning = "; a gain is likelier than a loss" if p.ratio.value > 1 else "; a loss is likelier than a gain"
    return Verdict("unclear", f"{needs}: the speedup, {ratio}, may lie on either side of 1{'' if bracket else leaning}")


def limit_of_depth(given: Given) -> Limit:
    """What ever more drafts could add to the given steps."""
    limit, tail, hi = given.limit, given.tail, given.limit_hi
    if limit is None or tail is None or hi is None:
        length = given.lengths.accept_length(given.lengths.max_depth)
        reason = f"counted up to depth {given.lengths.max_depth}; nothing is assumed beyond it"
        return Limit(length.value, None, reason, length.value if math.isnan(length.hi) else length.hi)
    if math.isinf(limit):
        reason = "the given steps never miss once the first is right, so depth has no limit here"
        return Limit(limit, tail, reason, limit)
    measured, last = 1 + math.fsum(given.full_acc), given.full_acc[-1]
    independent = "if the steps are independent, " if given.is_bracket else ""
    reason = (
        f"{independent}each further draft is accepted with {tail:.2f} times the chance of the one before, starting "
        f"from {last:.3f}, so all of them together add {limit - measured:.2f} to {measured:.2f}"
    )
    if hi > limit:
        together = "the steps go together as much as they can and " if given.is_bracket else ""
        end = "has no end" if math.isinf(hi) else f"ends at {hi:.2f}"
        reason += f"; the interval {end}, where {together}that chance is the highest the given steps leave open"
    if last > 0:
        wished = math.ceil(10 * (limit + 0.2)) / 10
        required = (wished - measured) / (wished - measured + last)
        reason += f"; {wished:.1f} would take a conditional of {required:.2f} at every further step"
    return Limit(limit, tail, reason, hi)


def levers(
    p: SpeedupProjection, worth: Sequence[PointWorth], *, best: BestDepths | None, measured: bool = True
) -> tuple[str, ...]:
    """What would move the answer; ``best``: the best depths at both ends of a bracket."""
    bracket = best is not None
    steps = ", ".join(f"step {step.step}: {step.tok_s:+.2f}" for step in worth) or "none is above 0"
    independent = ", if the steps are independent" if bracket else ""
    out = ["accuracies: log joint ones (full_acc), which close the bracket"] if bracket else []
    out += [
        _needed(p.accept_length, p.breakeven, p.depth),
        f"accuracy: one more point of full_acc, later conditionals held, in tok/s{independent}: {steps}",
    ]
    out += _depths(p, best)
    if p.best_beyond is not None:
        out.append(_beyond(p.best_beyond, p.measured_steps, bracket))
    if not measured or p.tok_s.half_width > 0.1 * p.tok_s.value:
        out.append(
            f"measurement: serve this drafter at two depths (say 1 and {max(3, p.depth)}) and without speculation, "
            "then calibrate on those points: that narrows the interval most"
        )
    return tuple(out)


def _depths(p: SpeedupProjection, best: BestDepths | None) -> list[str]:
    """The best of the measured depths, where it is not the one asked about."""
    if best is not None and best.independence != best.frechet:
        return [f"depth: {best}; full_acc would tell"]
    if p.best_measured_depth == 0:
        return ["depth: none of the measured ones gains; do not speculate with this drafter at this batch"]
    if p.best_measured_depth == p.depth:
        return []
    row, bracket = p.by_depth[p.best_measured_depth - 1], best is not None
    tok_s, length = figure(row.tok_s, bracket), figure(row.accept_length, bracket)
    return [f"depth: {row.depth} drafts would give {tok_s} tok/s at accept length {length}"]


def _beyond(best: DepthProjection, steps: int | None, bracket: bool) -> str:
    """What the continuation promises is no recommendation: nobody measured the accuracies it rests on."""
    tok_s, length = figure(best.tok_s, bracket), figure(best.accept_length, bracket)
    return (
        f"depth, extrapolated: {best.depth} drafts might give {tok_s} tok/s, if the steps beyond step {steps} go "
        f"on as assumed (accept length {length}); validate with {best.depth} steps before serving it"
    )


def _needed(accept_length: Estimate, breakeven: Estimate, depth: int) -> str:
    if accept_length.lo > breakeven.hi:
        return f"accept length: would have to fall to {breakeven.value:.2f} before speculation loses"
    return (
        f"accept length: {breakeven.value:.2f} breaks even at depth {depth} as far as the calibration can tell; "
        f"{breakeven.hi:.2f} is the upper end of that figure's 90 % interval"
    )
