"""The optimistic figure: what served speed stays below."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..projection import SpeedupProjection
from ..throughput import OptimisticOverhead
from .baseline import Baseline
from .simple_rules import SimpleRules

__all__ = ["UpperBound", "credible", "upper_bound"]


@dataclass(frozen=True)
class UpperBound:
    """Speed if verifying several tokens were free."""

    overhead: float
    """Extra time of a round, as a share of a plain step."""
    ratio: float
    """Speedup over no speculation, at most."""
    tok_s: float
    """Tokens per second of the whole batch, at most."""
    accept_length: float
    """The upper end of the accept length, which it takes."""
    note: str | None
    """Why the calibrated interval reaches beyond it; None where it does not."""


def credible(rules: SimpleRules, projection: SpeedupProjection) -> SimpleRules:
    """``rules`` without an optimistic one whose overhead exceeds what the calibrated round takes: it bounds nothing."""
    rule, breakeven = rules.optimistic, projection.breakeven.value
    if rule is None or 1 + rule.draft_overhead <= breakeven:
        return rules
    why = (
        f"the rule optimistic is left out: no upper bound with its overhead of {rule.draft_overhead:g}, since a round "
        f"of depth {projection.depth} is calibrated at {breakeven:.2f} plain steps"
    )
    return replace(rules, optimistic=None, left_out=(*rules.left_out, why))


def upper_bound(projection: SpeedupProjection, rule: OptimisticOverhead | None, baseline: Baseline) -> UpperBound:
    """The bound of the calibration's rule; where it has none, that of rounds as short as a plain step.

    A bound takes the upper end of all that is uncertain: of the accept length, and of a baseline nobody measured.
    """
    accept_length = projection.accept_length.hi
    if rule is None:
        rule = OptimisticOverhead(baseline.tok_s.value if baseline.measured else baseline.tok_s.hi, 0.0)
    ratio, tok_s = rule.ratio(accept_length), rule.tok_s(accept_length)
    note = None
    if projection.tok_s.hi > tok_s or projection.ratio.hi > ratio:
        note = (
            f"The calibrated interval reaches beyond that, to {projection.ratio.hi:.3f}x and {projection.tok_s.hi:.1f} "
            "tok/s: it holds the scatter of a single measurement and, where the points do not exclude them, rounds "
            "shorter than a plain step; neither is speed to expect."
        )
    return UpperBound(rule.draft_overhead, ratio, tok_s, accept_length, note)
