"""The answer to ``estimate``, layer by layer, as one value; printing it is another module's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..estimate import Estimate
from ..projection import SpeedupProjection, project
from ..projection.bracket import open_bracket
from ..projection.speedup import DepthProjection
from ..throughput import Calibration, LinearBreakeven
from .baseline import Baseline, baselines_at
from .inputs import Given
from .reasons import Limit, Verdict, levers, limit_of_depth, verdict
from .served import ServedCheck, check_served
from .simple_rules import SimpleRules, simple_rules
from .upper_bound import UpperBound, credible, upper_bound
from .what_if import BatchRow, BestDepths, PointWorth, Wish, batch_rows, best_depths, point_worth, wish

__all__ = ["SCHEMA", "Answer", "answer"]

SCHEMA = "eagle-speedup/estimate/1"


@dataclass(frozen=True)
class Answer:
    """All layers of one estimate."""

    given: Given
    calibration: Calibration
    projection: SpeedupProjection
    rules: SimpleRules
    """The calibration's simple rules, where they hold."""
    bound: UpperBound
    """What served speed stays below."""
    baseline: Baseline
    """Without speculation."""
    best_depths: BestDepths | None
    """For marginals: the best of the given depths at both ends."""
    verdict: Verdict
    limit: Limit
    worth: tuple[PointWorth, ...]
    """What one more point of each full_acc brings."""
    by_batch: tuple[BatchRow, ...]
    """Best depth per batch size."""
    wish: Wish | None
    """What a wished tok/s takes."""
    served: ServedCheck | None
    """Served first-step acceptance against the validated one."""
    what_would_change_it: tuple[str, ...]

    @property
    def baseline_tok_s(self) -> float:
        """Expected tok/s without speculation."""
        return self.baseline.tok_s.value

    @property
    def is_bracket(self) -> bool:
        """Whether the accept length is a bracket, so that its single values mean nothing."""
        return self.given.is_bracket

    @property
    def linear(self) -> Mapping[str, LinearBreakeven]:
        """The calibration's linear rules."""
        return self.rules.linear

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the values and of the calibration."""
        served = (self.served.message,) if self.served is not None and self.served.alarm else ()
        rows = [warning for row in self.by_batch for warning in row.warnings]
        found = (*served, *self.given.warnings, *self.projection.warnings, *self.rules.left_out, *rows)
        return tuple(dict.fromkeys(found))

    @property
    def bracket(self) -> tuple[float, float] | None:
        """For marginals: textbook accept length if independent, and at the Frechet bound."""
        bracket = open_bracket(self.given.lengths)
        if bracket is None:
            return None
        low, high = (curve.accept_length(self.projection.depth).value for curve in (bracket.low, bracket.high))
        return low, high

    def as_dict(self) -> dict[str, Any]:
        """The keys listed in ``eagle-speedup estimate --help``; they are only ever added to."""
        p, given = self.projection, self.given
        return {
            "schema": SCHEMA,
            "depth": p.depth,
            "batch": p.batch,
            "context_tokens": p.context_tokens,
            "workload": p.workload,
            "calibration": self.calibration.name,
            "fingerprint": p.fingerprint,
            "given": {"kind": given.kind, "values": given.values, "source": given.source},
            "full_acc": given.full_acc,
            "conditionals": given.conditionals,
            "accept_length": p.accept_length,
            "bracket": self.bracket and dict(zip(("independence", "frechet"), self.bracket, strict=True)),
            "optimistic": vars(self.bound),
            "linear": {name: _simple(rule, p.accept_length) for name, rule in self.linear.items()},
            "calibrated": {
                "tok_s": p.tok_s,
                "tok_s_per_user": p.tok_s_per_user,
                "ratio": p.ratio,
                "round_ms": p.round_ms,
                "breakeven": p.breakeven,
                "baseline_tok_s": self.baseline_tok_s,
                "baseline": vars(self.baseline),
                "is_bracket": self.is_bracket,
                "is_measured": self.calibration.is_measured,
            },
            "verdict": vars(self.verdict),
            "by_depth": [self._row(row) for row in p.by_depth],
            "best_depth": p.best_measured_depth,
            "best_depth_bracket": self.best_depths and vars(self.best_depths),
            "best_beyond": p.best_beyond and self._row(p.best_beyond),
            "by_batch": [_batch_row(row) for row in self.by_batch],
            "limit": vars(self.limit),
            "worth_of_a_point": [vars(step) for step in self.worth],
            "wish": self.wish and vars(self.wish),
            "served": self.served and vars(self.served),
            "what_would_change_it": self.what_would_change_it,
            "warnings": self.warnings,
        }

    def _row(self, row: DepthProjection) -> dict[str, Any]:
        return {**vars(row), "measured": row.depth <= self.given.lengths.ttt_steps}


def answer(
    given: Given,
    calibration: Calibration,
    *,
    depth: int | None = None,
    batch: int = 1,
    context_tokens: float | None = None,
    workload: str | None = None,
    batches: Sequence[int] = (),
    want_tok_s: float | None = None,
    served_first_step: float | None = None,
) -> Answer:
    """Answer for a drafter under a calibration.

    Args:
        given: what is known of the drafter.
        calibration: of the node, verifier and engine.
        depth: draft depth of the headline; default: the steps that were given, since that is what was measured.
        batch: requests decoded together.
        context_tokens: context per request; None = as calibrated.
        workload: traffic, as the calibration's points name it; None = the one closest to decoding alone.
        batches: batch sizes to find the best depth for.
        want_tok_s: a wished tok/s.
        served_first_step: acceptance of the first draft position as an engine prints it.

    Raises:
        InputError: anything out of range.
    """
    depth = given.lengths.ttt_steps if depth is None else depth
    given.lengths.accept_length(depth)  # refuses a depth out of range before anything is computed
    last = max(depth, given.table_depth)
    projection = project(
        given.lengths,
        calibration,
        depth=depth,
        batch=batch,
        context_tokens=context_tokens,
        workload=workload,
        max_depth=last,
    )
    worth = point_worth(given, projection)
    rules = credible(simple_rules(calibration, batch, context_tokens, workload), projection)
    baseline = baselines_at(calibration, [batch], context_tokens, workload)[0]
    best, measured = best_depths(given, calibration, projection), calibration.is_measured
    return Answer(
        given=given,
        calibration=calibration,
        projection=projection,
        rules=rules,
        bound=upper_bound(projection, rules.optimistic, baseline),
        baseline=baseline,
        best_depths=best,
        verdict=verdict(projection, calibration, bracket=given.is_bracket),
        limit=limit_of_depth(given),
        worth=worth,
        by_batch=batch_rows(given, calibration, batches, context_tokens, workload),
        wish=None if want_tok_s is None else wish(projection, want_tok_s),
        served=None if served_first_step is None else check_served(given.full_acc[0], served_first_step),
        what_would_change_it=levers(projection, worth, best=best, measured=measured),
    )


def _simple(rule: LinearBreakeven, accept_length: Estimate) -> dict[str, Any]:
    """A straight line carries the ends of the accept length to those of its own figures."""
    value, ends = accept_length.value, (accept_length.lo, accept_length.hi)
    return {
        "breakeven": rule.breakeven_accept_length,
        "ratio": rule.ratio(value),
        "tok_s": rule.tok_s(value),
        "ratio_range": [rule.ratio(end) for end in ends],
        "tok_s_range": [rule.tok_s(end) for end in ends],
    }


def _batch_row(row: BatchRow) -> dict[str, Any]:
    best = row.best_depth_bracket
    return {**vars(row), "baseline": vars(row.baseline), "best_depth_bracket": best and vars(best)}
