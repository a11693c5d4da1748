"""The simple rules that stand beside the calibrated figure: which of them hold, and with which baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..throughput import Calibration, LinearBreakeven, MeasuredPoint, OptimisticOverhead
from .baseline import plain_points

__all__ = ["SimpleRules", "rebased", "simple_rules"]

_Rule = LinearBreakeven | OptimisticOverhead

# A stated breakeven was read off somewhere, so it differs a little from what its own points imply (4 % in the origin
# case); beyond this share it belongs to other points.
_CONTRADICTS = 0.10
_SAME = 1e-6


@dataclass(frozen=True)
class SimpleRules:
    """The rules of a calibration that hold at one batch size and context, for one workload."""

    optimistic: OptimisticOverhead | None
    """The upper bound; None where the calibration has none that holds."""
    linear: Mapping[str, LinearBreakeven]
    """By name, without its ``linear_``."""
    left_out: tuple[str, ...]
    """Rules that contradict the calibration's points: one sentence each."""


def simple_rules(
    calibration: Calibration, batch: int, context_tokens: float | None = None, workload: str | None = None
) -> SimpleRules:
    """The rules that hold here: made from a baseline measured under these conditions, in keeping with the points."""
    here = {p for p in plain_points(calibration, context_tokens, workload) if p.batch == batch}
    optimistic: OptimisticOverhead | None = None
    linear: dict[str, LinearBreakeven] = {}
    left_out = []
    for name, rule in calibration.simple_models.items():
        origins = {p for p in calibration.points if p.depth == 0 and _equal(p.total_tok_s, rule.baseline_tok_s)}
        if origins and not origins & here:
            continue
        contradiction = _contradiction(rule, calibration, batch)
        if contradiction is not None:
            left_out.append(f"the rule {name} is left out: {contradiction}")
        elif isinstance(rule, LinearBreakeven):
            linear[name.removeprefix("linear_")] = rule
        else:
            optimistic = rule
    return SimpleRules(optimistic, linear, tuple(left_out))


def rebased(before: Calibration, after: Calibration) -> Calibration:
    """``after`` (``before`` with values replaced) with its rules moved to the baseline that ``after`` holds.

    A rule's baseline repeats a point's, and an inferred breakeven follows from one: both change with their points,
    unless the rule itself was replaced. A stated breakeven stays what was stated.
    """
    rules = {
        name: _moved(before.simple_models[name], rule, before, after) if name in before.simple_models else rule
        for name, rule in after.simple_models.items()
    }
    return after if rules == dict(after.simple_models) else replace(after, simple_models=rules)


def _moved(old: _Rule, new: _Rule, before: Calibration, after: Calibration) -> _Rule:
    if type(old) is not type(new) or old.baseline_tok_s != new.baseline_tok_s:
        return new
    baseline = new.baseline_tok_s
    pairs = list(zip(before.points, after.points, strict=False))
    for was, now in pairs:
        alike = (was.depth, was.batch, was.per_user) == (now.depth, now.batch, now.per_user)
        if alike and was.depth == 0 and now.total_tok_s and _equal(was.total_tok_s, old.baseline_tok_s):
            baseline = now.total_tok_s
            break
    if isinstance(new, OptimisticOverhead) or isinstance(old, OptimisticOverhead):
        return replace(new, baseline_tok_s=baseline)
    breakeven = new.breakeven_accept_length
    if breakeven == old.breakeven_accept_length:
        for was, now in pairs:
            implied = _implied(now, baseline)
            if implied is not None and was.batch == now.batch and _equal(_implied(was, old.baseline_tok_s), breakeven):
                breakeven = implied
                break
    return LinearBreakeven(baseline, breakeven)


def _implied(point: MeasuredPoint, baseline: float) -> float | None:
    """The breakeven that a served point and a baseline imply."""
    if point.depth == 0 or not point.accept_length or not point.total_tok_s:
        return None
    return point.accept_length * baseline / point.total_tok_s


def _contradiction(rule: _Rule, calibration: Calibration, batch: int) -> str | None:
    """How a rule and the measured points of its batch exclude each other; None where they do not."""
    plain = {p.total_tok_s: p.batch for p in calibration.points if p.depth == 0 and p.total_tok_s}
    if not any(_equal(tok_s, rule.baseline_tok_s) for tok_s in plain):
        measured = ", ".join(f"{tok_s:g}" for tok_s, at in plain.items() if at == batch) or f"none at batch {batch}"
        return f"its baseline of {rule.baseline_tok_s:g} tok/s is none of the calibration's ({measured})"
    linear = isinstance(rule, LinearBreakeven)
    if isinstance(rule, LinearBreakeven) and rule.breakeven_accept_length < 1:
        short = f"{rule.breakeven_accept_length:.3g}"
        return f"its breakeven of {short} would make a round shorter than the plain step it contains"
    rounds = [p for p in calibration.points if p.depth != 0 and p.accept_length and p.total_tok_s]
    served = [p for p in rounds if p.batch == batch]
    if not served:
        return f"no round was served at batch {batch}, its baseline's" if linear and rounds else None
    off = [(rule.tok_s(p.accept_length or 1.0) / (p.total_tok_s or 1.0), p) for p in served]
    if isinstance(rule, OptimisticOverhead):
        ratio, point = min(off, key=lambda item: item[0])
        what = f"no upper bound with its overhead of {rule.draft_overhead:g}" if ratio < 1 else None
    else:  # it holds at one depth, so one point in keeping with it is enough
        ratio, point = min(off, key=lambda item: abs(item[0] - 1))
        far = abs(ratio - 1) > _CONTRADICTS
        what = f"its breakeven of {rule.breakeven_accept_length:g} contradicts the points" if far else None
    if what is None:
        return None
    tok_s = point.total_tok_s or 0.0
    return f"{what}: it gives {ratio * tok_s:.1f} tok/s at accept length {point.accept_length:g}, measured {tok_s:g}"


def _equal(a: float | None, b: float) -> bool:
    return a is not None and math.isclose(a, b, rel_tol=_SAME)
