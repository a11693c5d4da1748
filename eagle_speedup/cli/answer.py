"""The answer to ``estimate``, layer by layer, as one value; printing it is another module's work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..estimate import Estimate
from ..projection import SpeedupProjection, project
from ..projection.bracket import BracketCurve
from ..projection.speedup import DepthProjection
from ..throughput import Calibration, LinearBreakeven, OptimisticOverhead
from .baseline import Baseline, baselines_at
from .inputs import Given
from .served import ServedCheck, check_served
from .simple_rules import SimpleRules, simple_rules
from .what_if import BatchRow, PointWorth, Wish, batch_rows, point_worth, wish

__all__ = ["SCHEMA", "Answer", "Limit", "Verdict", "answer"]

SCHEMA = "eagle-speedup/estimate/1"
_Simple = LinearBreakeven | OptimisticOverhead


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


@dataclass(frozen=True)
class Answer:
    """All layers of one estimate."""

    given: Given
    calibration: Calibration
    projection: SpeedupProjection
    rules: SimpleRules
    """The calibration's simple rules, where they hold."""
    baseline: Baseline
    """Without speculation."""
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
    def optimistic(self) -> OptimisticOverhead:
        """The calibration's upper bound; where it has none, that of rounds as short as a plain step."""
        return self.rules.optimistic or OptimisticOverhead(self.baseline_tok_s, 0.0)

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
        if not isinstance(self.given.lengths, BracketCurve) or self.given.kind != "marginal":
            return None
        curves = self.given.lengths.low, self.given.lengths.high
        low, high = (curve.accept_length(self.projection.depth).value for curve in curves)
        return low, high

    def as_dict(self) -> dict[str, Any]:
        """The keys listed in ``eagle-speedup estimate --help``; they are only ever added to."""
        p, given = self.projection, self.given
        accept_length = p.accept_length.value
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
            "optimistic": {"overhead": self.optimistic.draft_overhead, **_simple(self.optimistic, accept_length)},
            "linear": {
                name: {"breakeven": rule.breakeven_accept_length, **_simple(rule, accept_length)}
                for name, rule in self.linear.items()
            },
            "calibrated": {
                "tok_s": p.tok_s,
                "tok_s_per_user": p.tok_s_per_user,
                "ratio": p.ratio,
                "round_ms": p.round_ms,
                "breakeven": p.breakeven,
                "baseline_tok_s": self.baseline_tok_s,
                "baseline": vars(self.baseline),
            },
            "verdict": vars(self.verdict),
            "by_depth": [self._row(row) for row in p.by_depth],
            "best_depth": p.best_measured_depth,
            "best_beyond": p.best_beyond and self._row(p.best_beyond),
            "by_batch": [{**vars(row), "baseline": vars(row.baseline)} for row in self.by_batch],
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
    return Answer(
        given=given,
        calibration=calibration,
        projection=projection,
        rules=simple_rules(calibration, batch, context_tokens, workload),
        baseline=baselines_at(calibration, [batch], context_tokens, workload)[0],
        verdict=_verdict(projection),
        limit=_limit(given),
        worth=worth,
        by_batch=batch_rows(given, calibration, batches, context_tokens, workload),
        wish=None if want_tok_s is None else wish(projection, want_tok_s),
        served=None if served_first_step is None else check_served(given.full_acc[0], served_first_step),
        what_would_change_it=_levers(projection, worth),
    )


def _simple(rule: _Simple, accept_length: float) -> dict[str, float]:
    return {"ratio": rule.ratio(accept_length), "tok_s": rule.tok_s(accept_length)}


def _verdict(p: SpeedupProjection) -> Verdict:
    needs = f"accept length {p.accept_length} against a breakeven of {p.breakeven} at depth {p.depth}"
    ratio = f"{p.ratio.value:.2f}x [{p.ratio.lo:.2f}, {p.ratio.hi:.2f}]"
    if p.ratio.lo > 1:
        return Verdict("go", f"{needs}: the whole interval of the speedup, {ratio}, lies above 1")
    if p.ratio.hi < 1:
        return Verdict("no-go", f"{needs}: the whole interval of the speedup, {ratio}, lies below 1")
    leaning = "a gain is likelier than a loss" if p.ratio.value > 1 else "a loss is likelier than a gain"
    return Verdict("unclear", f"{needs}: the speedup, {ratio}, may lie on either side of 1; {leaning}")


def _limit(given: Given) -> Limit:
    limit, tail = given.limit, given.tail
    if limit is None or tail is None:
        depth = given.lengths.max_depth
        reason = f"counted up to depth {depth}; nothing is assumed beyond it"
        return Limit(given.lengths.accept_length(depth).value, None, reason)
    if math.isinf(limit):
        return Limit(limit, tail, "the given steps never miss once the first is right, so depth has no limit here")
    measured, last = 1 + math.fsum(given.full_acc), given.full_acc[-1]
    reason = (
        f"each further draft is accepted with {tail:.2f} times the chance of the one before, starting from "
        f"{last:.3f}, so all of them together add at most {limit - measured:.2f} to {measured:.2f}"
    )
    if last > 0:
        wished = math.ceil(10 * (limit + 0.2)) / 10
        required = (wished - measured) / (wished - measured + last)
        reason += f"; {wished:.1f} would take a conditional of {required:.2f} at every further step"
    return Limit(limit, tail, reason)


def _levers(p: SpeedupProjection, worth: Sequence[PointWorth]) -> tuple[str, ...]:
    """What would move the answer."""
    steps = ", ".join(f"step {step.step}: {step.tok_s:+.2f}" for step in worth) or "none is above 0"
    out = [
        _needed(p.accept_length, p.breakeven, p.depth),
        f"accuracy: one more point of full_acc, later conditionals held, in tok/s: {steps}",
    ]
    if p.best_measured_depth not in (0, p.depth):
        best = p.by_depth[p.best_measured_depth - 1]
        out.append(f"depth: {best.depth} drafts would give {best.tok_s} tok/s at accept length {best.accept_length}")
    if p.best_measured_depth == 0:
        out.append("depth: none of the measured ones gains; do not speculate with this drafter at this batch")
    if p.best_beyond is not None:
        out.append(_beyond(p.best_beyond, p.measured_steps))
    if p.tok_s.half_width > 0.1 * p.tok_s.value:
        out.append(
            f"measurement: serve this drafter at two depths (say 1 and {max(3, p.depth)}) and without speculation, "
            "then calibrate on those points: that narrows the interval most"
        )
    return tuple(out)


def _beyond(best: DepthProjection, steps: int | None) -> str:
    """What the continuation promises is no recommendation: nobody measured the accuracies it rests on."""
    return (
        f"depth, extrapolated: {best.depth} drafts might give {best.tok_s} tok/s, if the steps beyond step {steps} go "
        f"on as assumed (accept length {best.accept_length}); validate with {best.depth} steps before serving it"
    )


def _needed(accept_length: Estimate, breakeven: Estimate, depth: int) -> str:
    if accept_length.lo > breakeven.hi:
        return f"accept length: would have to fall to {breakeven.value:.2f} before speculation loses"
    return (
        f"accept length: {breakeven.value:.2f} breaks even at depth {depth} as far as the calibration can tell, "
        f"{breakeven.hi:.2f} for certain"
    )
