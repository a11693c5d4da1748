"""What a reader must know about a calibration: gaps, outliers, contradictions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from .points import MeasuredPoint

__all__ = ["WHAT_TO_MEASURE", "check_range", "cliffs", "fit_warnings", "inconsistency", "mismatch_alarm"]

WHAT_TO_MEASURE = (
    "serve without speculation and at two depths (say 1 and 4), at the batch sizes that matter, and give the logs to "
    "eagle-speedup calibrate"
)
UNKNOWN_DEPTH = "no measured round has a known depth: how a round grows with depth is a prior"
_FASTER_THAN_STEP = 0.98  # a round verifies a step's tokens and more; below this share of a step, the runs differ
_BASELINE_SPREAD = 2.0  # a workload this much slower than another spends half of its time outside decoding
_FEWER_IN_ALL = 0.6  # tokens per second of a larger batch over those of a smaller one: no cliff is as steep
_OUTLIER = 0.10  # a residual below is none, whatever the noise
_OUTLIER_OF_SCATTER = 0.08  # nor is one below this many times the scatter: the form fits no better there
_DECODING = 0.85  # share of the wall clock, below which a projection of decoding alone is far from tok_s
_CLIFF = 1.05  # a step that grows by more than its tokens, with room for noise
_CLIFF_OF_ROUNDS = 1.15
_FALLS = 0.95  # time that falls by more over more tokens is no noise
_SIGMA = 4.0
_RESTLESS = 2.5  # times the usual scatter


def inconsistency(points: Sequence[MeasuredPoint]) -> str | None:
    """Why points contradict physics or each other; None where they do not.

    Three rules. A round can't be shorter than a plain step of the same conditions (time outside decoding does not
    change that). Baselines of one batch and context can't differ twofold, between workloads or within one, if decoding
    is what was measured. A larger batch does not give fewer tokens per second in all.
    """
    plain: dict[tuple[int, float | None, str | None], float] = {}
    groups: dict[tuple[int, float | None], list[float]] = {}
    for p in points:
        if p.depth == 0 and p.token_ms:
            key = p.batch, p.context_tokens, p.workload
            plain[key] = min(p.token_ms, plain.get(key, math.inf))
            groups.setdefault(key[:2], []).append(p.token_ms)
    worst, where = _FASTER_THAN_STEP, None
    for p in points:
        base = plain.get((p.batch, p.context_tokens, p.workload))
        if p.depth and p.accept_length and p.token_ms and base:
            share = p.accept_length * p.token_ms / base
            if share < worst:
                worst, where = share, p
    if where is not None:
        return (
            f"a round takes {worst:.2f} of a plain step at {_place(where)}, though it contains one: baseline of "
            "another setup, or accept length without the bonus token"
        )
    for (batch, _), times in groups.items():
        ratio = max(times) / min(times)
        if ratio >= _BASELINE_SPREAD:
            return f"baselines at batch {batch} differ {ratio:.1f}-fold: not decoding alone"
    return _fewer_in_all(points)


def _fewer_in_all(points: Sequence[MeasuredPoint]) -> str | None:
    """Where a larger batch gives fewer tokens per second (accept lengths held), as figures of one user do."""
    curves: dict[tuple[Any, ...], dict[int, float]] = {}
    for p in points:
        if p.depth is not None and p.total_tok_s and (p.depth == 0 or p.accept_length):
            key = p.depth, p.topk, p.nodes, p.context_tokens, p.workload
            rate = p.total_tok_s / (p.accept_length or 1.0)
            found = curves.setdefault(key, {})
            found[p.batch] = max(rate, found.get(p.batch, 0.0))
    for (depth, *_), rates in curves.items():
        for low, high in itertools.pairwise(sorted(rates)):
            if rates[high] < _FEWER_IN_ALL * rates[low]:
                share = f"{rates[high] / rates[low]:.2f} times the tok/s of batch {low} in all"
                return f"batch {high} gives {share} at depth {depth}: if tok_s is that of one user, say per_user: true"
    return None


def cliffs(points: Sequence[MeasuredPoint]) -> tuple[tuple[int, int], ...]:
    """Neighbouring tokens per step between which time grows faster than the tokens: another kernel took over.

    Seen in plain steps over the batch size, or in rounds over the batch size at one depth, or over the depth at one
    batch size. Rounds carry the scatter of their accept length, so they must exceed the tokens by more.
    """
    curves: dict[tuple[Any, ...], dict[int, float]] = {}
    for p in points:
        if p.depth is None or p.nodes is None or p.round_ms is None:
            continue
        size, context = round(p.batch * p.nodes), p.context_tokens or 0.0
        fixed = [("depth", p.depth, p.topk, p.nodes)] + ([("batch", p.batch, p.topk)] if p.depth else [])
        for what in fixed:
            times = curves.setdefault((context, p.workload if p.depth else None, *what), {})
            times[size] = min(p.round_ms, times.get(size, p.round_ms))
    found = set()
    for key, times in curves.items():
        room = _CLIFF if key[2:4] == ("depth", 0) else _CLIFF_OF_ROUNDS
        tokens = sorted(times)
        for i, (low, high) in enumerate(itertools.pairwise(tokens)):
            # Time that falls into the step up, or right after it, is one wild measurement: a cliff does not end.
            before, after = times[tokens[max(i - 1, 0)]], times[tokens[min(i + 2, len(tokens) - 1)]]
            wild = times[low] < _FALLS * before or times[high] * _FALLS > after
            if times[high] / times[low] > room * high / low and not wild:
                found.add((low, high))
    return tuple(sorted(found))


def fit_warnings(
    points: Sequence[MeasuredPoint],
    usable: Sequence[MeasuredPoint],
    residuals: Sequence[float],
    noise: float,
    scatter: float,
    inconsistent: str | None,
) -> tuple[str, ...]:
    """Sentences on what the fit could not settle."""
    out = [] if inconsistent is None else [f"inconsistent: {inconsistent}"]
    ignored = len(points) - len(usable)
    if ignored:
        out.append(f"{ignored} point(s) without accept_length and step_ms were not used")
    if not usable:
        return (*out, "nothing was measured: every figure rests on a simulation and on beliefs; " + WHAT_TO_MEASURE)
    shares = [share for p in usable if (share := p.decoding_share) is not None]
    if shares and min(shares) < _DECODING:
        out.append(
            f"decoding takes {min(shares):.0%} of the time that tok_s says (step_ms beside it), and only decoding is "
            "projected: leave step_ms out where the wall clock is wanted"
        )
    contexts = [p.context_tokens for p in points if p.round_ms is not None]
    known = [c for c in contexts if c is not None]
    if known and len(known) < len(contexts):
        what = f"context_tokens was recorded for {len(known)} of {len(contexts)} points"
        out.append(f"{what}: the others are taken at the lowest, {min(known):g}; give it for all of them")
    if not any(p.depth == 0 for p in usable):
        out.append("no baseline (depth 0): the step time, speedup and breakeven come from the prior")
    if any(p.depth is None for p in usable):
        out.append("a point's depth was not recorded: it is treated as unknown")
    if all(p.depth == 0 for p in usable):
        out.append("no speculative point (depth > 0): what drafting and verifying cost is a prior")
    if len({p.depth for p in usable if p.depth}) < 2:
        out.append("fewer than two depths measured: the split into fixed and per-draft cost is a prior")
    for point, residual in zip(usable, residuals, strict=True):
        if abs(math.log1p(residual)) > max(_SIGMA * noise, _OUTLIER, _OUTLIER_OF_SCATTER * scatter):
            out.append(f"outlier: {_place(point)} is {residual:+.0%} off the fit")
    if scatter > _RESTLESS:
        out.append(
            f"the points scatter {scatter:.1f} times as much as usual, about {noise:.0%} each: repeat some of them"
        )
    out += [f"cliff suspected between {low} and {high} tokens per step" for low, high in cliffs(usable)]
    return tuple(out)


def _place(point: MeasuredPoint) -> str:
    tree = f"tree of {point.num_draft_tokens} tokens" if point.is_tree else None
    return ", ".join(filter(None, (f"depth {point.depth}", tree, f"batch {point.batch}", point.workload)))


def check_range(
    points: Sequence[MeasuredPoint],
    depth: int,
    batch: int,
    context_tokens: float | None = None,
    workload: str | None = None,
    nodes: float | None = None,
    *,
    tree: bool = False,
) -> tuple[str, ...]:
    """In what way a query lies outside what was measured; ``nodes``: tokens per request verified, None = a chain's.

    Baselines at a batch size or context say little of rounds there, so a query of depth > 0 is held against points of
    depth > 0, where there are any. Tokens per step are the exception: a plain step is a forward pass of that many.
    """
    rounds = [p for p in points if p.depth != 0]
    seen = rounds if depth and rounds else points
    tokens = round(batch * (nodes or depth + 1))
    measured = [round(p.batch * p.nodes) for p in points if p.nodes is not None]
    contexts = [p.context_tokens for p in seen if p.context_tokens is not None]
    out = []
    if depth and rounds and not any(p.depth for p in rounds):
        out.append(UNKNOWN_DEPTH)
        measured = []  # of plain steps only: no range that rounds could leave
    for name, value, found in (
        ("depth", depth or None, [p.depth for p in rounds if p.depth]),
        ("batch", batch, [p.batch for p in seen]),
        ("tokens per step", tokens, measured),
        ("context_tokens", context_tokens, contexts),
    ):
        if value is not None and found and not min(found) <= value <= max(found):
            out.append(f"{name} {value:g} is outside the calibrated range {min(found):g}..{max(found):g}")
    if context_tokens and points and not contexts:
        out.append(f"context_tokens {context_tokens:g} was not measured: no point recorded its context")
    if contexts and context_tokens and batch <= max(p.batch for p in seen) and context_tokens <= max(contexts):
        together = max(p.batch for p in seen if (p.context_tokens or 0.0) >= context_tokens)
        if batch > together:
            out.append(f"batch {batch} was not measured at context_tokens {context_tokens:g}, only up to {together}")
    if tree and rounds and not any(p.is_tree for p in rounds):
        out.append("no tree was measured, only chains")
    known = sorted({p.workload for p in points if p.workload is not None})
    if workload is not None and points and workload not in known:
        out.append(f"workload {workload!r} was not measured" + (f", only {', '.join(known)}" if known else ""))
    return tuple(out)


def mismatch_alarm(validated: float, served: float, rounds: int) -> str | None:
    """Alarm when served and validated first-step acceptance cannot be those of one drafter; None where they can.

    Validation on text of another author understates acceptance by up to a half (never overstates by as much), engine
    and sampling differences are smaller: a factor of two beyond the binomial noise of ``rounds`` served rounds is a
    wiring fault (wrong taps, weights or template), not something to calibrate away.
    """
    for name, value in (("validated", validated), ("served", served)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise InputError(name, value, "must lie in [0, 1]")
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise InputError("rounds", rounds, "must be a whole number >= 1")
    for bound, low in ((0.5 * validated, True), (min(1.0, 2 * validated), False)):
        noise = _SIGMA * math.sqrt(max(bound * (1 - bound), 1 / rounds) / rounds)
        if (served < bound - noise) if low else (served > bound + noise):
            ratio = served / validated if validated else math.inf
            return (
                f"train/serve mismatch: first-step acceptance {served:.3f} served against {validated:.3f} validated "
                f"(ratio {ratio:.2f} over {rounds} rounds): not the same drafter, or wired differently"
            )
    return None
