"""From measured points to a model of round time and tok/s."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from ..errors import InputError
from ..estimate import Estimate
from .advice import Advice, Option, choose
from .checks import WHAT_TO_MEASURE, check_range, fit_warnings, inconsistency
from .grid import Grid, interval
from .points import MeasuredPoint, check_nodes
from .posterior import Array, Fit, Problem, fit_map
from .prior import Prior
from .rounds import Cells, RoundTime

__all__ = ["ThroughputModel", "calibrate"]

MODEL_VERSION = 8  # part of every fingerprint: another formula is another calibration
_N_DRAWS = 400
_LARGEST = 10**9
_ROUNDING = 1.0 + 1e-6  # an accept length averaged in single precision may exceed its limit by so much
_MAX_DRAWN = 60_000  # draws times cells: large grids make do with fewer draws
_SCATTER = 1.25  # Student-t noise of 5 degrees of freedom as wide, at 90 %, as a normal one of this many scales
_SCATTER_FLOOR = 0.008  # no published benchmark repeats better than this


def calibrate(points: Sequence[MeasuredPoint], *, prior: Prior | None = None) -> ThroughputModel:
    """Fit the round-time model to measured points.

    Works from one point upward; what the points do not determine stays at the prior, and the intervals show it. Points
    of depth > 0 without accept length and without ``step_ms`` say nothing about round time: they are set aside with a
    warning. Raises InputError when no usable point is left, unless the prior holds a simulated step time.

    >>> model = calibrate([MeasuredPoint(0, 90.0), MeasuredPoint(3, 120.0, accept_length=2.3)])
    >>> 115 < model.tok_s(2.3, depth=3).value < 125
    True
    """
    if not isinstance(points, Iterable):
        raise InputError("points", type(points).__name__, "must be a sequence of MeasuredPoint")
    points = tuple(points)
    for i, point in enumerate(points):
        if not isinstance(point, MeasuredPoint):
            raise InputError(f"points[{i}]", point, "must be a MeasuredPoint")
    usable = _in_one_context([p for p in points if p.round_ms is not None])
    if prior is not None and not isinstance(prior, Prior):
        raise InputError("prior", prior, "must be a Prior or null")
    prior = prior or Prior()
    if not usable and prior.step_ms is None:
        rule = "must hold a baseline, or a point with accept_length or step_ms; no figure is invented: "
        raise InputError("points", len(points), rule + WHAT_TO_MEASURE)
    return ThroughputModel(points, usable, prior)


class ThroughputModel:
    """Round time, step time and tok/s at any depth, tree, batch size and context, with intervals.

    Made by `calibrate`; immutable in use. ``level`` of all intervals is 0.90. ``context_tokens=None`` means the lowest
    calibrated context. Times are those of decoding; tok/s and speedup are wall clock, like the points they come from.
    """

    def __init__(self, points: Sequence[MeasuredPoint], usable: Sequence[MeasuredPoint], prior: Prior) -> None:
        self.points = tuple(points)
        self.prior = prior
        self._usable = tuple(sorted(usable, key=canonical_point))
        self._form = RoundTime(self._usable, prior)
        self._fit: Fit = _fit(self._form, self._usable, prior)
        self._theta = np.concatenate([self._fit.theta[None], self._fit.draws(_N_DRAWS)])
        self.fingerprint: str = fingerprint(self.points, prior)
        """12 hex digits of the points, the prior and the model's version; the order of the points does not matter."""
        self.residuals: tuple[float, ...] = tuple(float(r) for r in np.expm1(self._fit.residuals))
        """Measured over fitted time, minus 1, of every usable point in canonical order."""
        self.noise: float = self._fit.scatter * prior.noise
        """Scatter of one measurement, relative, estimated from the residuals."""
        self.inconsistent: str | None = inconsistency(self._usable)
        """Why the points contradict each other or physics; None where they do not."""
        self.warnings: tuple[str, ...] = fit_warnings(
            self.points, self._usable, self.residuals, self.noise, self._fit.scatter, self.inconsistent
        )
        """What the fit itself could not settle."""

    # ---- times ----

    def round_ms(self, depth: int, batch: int = 1, context_tokens: float | None = None) -> Estimate:
        """Milliseconds of one round of a chain of ``depth`` draft tokens (``depth=0``: a plain step), decoding only."""
        return self.grid([depth], [batch], context_tokens).round_ms.at(0, 0)

    def step_ms(self, batch: int = 1, context_tokens: float | None = None) -> Estimate:
        """Milliseconds of one step without speculation, decoding only."""
        return self.round_ms(0, batch, context_tokens)

    def round_draws(
        self, depths: Sequence[int], batch: int = 1, context_tokens: float | None = None, n: int = 500
    ) -> tuple[Array, Array]:
        """Posterior draws ``(round_ms [n, len(depths)], step_ms [n])``; deterministic, and paired over depths."""
        cells = self._cells([0, *depths], [batch], context_tokens)
        times = self._form.log_round(self._fit.draws(n), cells)
        unseen = self._unseen(cells, self._form.log_round(self._fit.theta[None], cells))
        unseen = unseen * np.random.default_rng(5).standard_normal(times.shape)
        times = np.exp(times + unseen)
        return times[:, 1:], times[:, 0]

    # ---- throughput ----

    def tok_s(
        self,
        accept_length: float | Estimate,
        depth: int,
        batch: int = 1,
        context_tokens: float | None = None,
        workload: str | None = None,
        *,
        topk: int = 1,
        num_draft_tokens: int | None = None,
    ) -> Estimate:
        """Total tokens per second of the batch, as the next measurement would show it (its scatter is included)."""
        cells = self._cells([depth], [batch], context_tokens, workload, [topk], [num_draft_tokens])
        return self._evaluate(cells, np.array([_accept_length(accept_length, depth)])).tok_s.at(0, 0)

    def speedup(
        self,
        accept_length: float | Estimate,
        depth: int,
        batch: int = 1,
        context_tokens: float | None = None,
        workload: str | None = None,
        *,
        topk: int = 1,
        num_draft_tokens: int | None = None,
    ) -> Estimate:
        """tok/s over tok/s without speculation at the same batch, context and workload."""
        cells = self._cells([depth], [batch], context_tokens, workload, [topk], [num_draft_tokens])
        return self._evaluate(cells, np.array([_accept_length(accept_length, depth)])).speedup.at(0, 0)

    def breakeven(self, depth: int, batch: int = 1, context_tokens: float | None = None) -> Estimate:
        """Accept length at which a round of ``depth`` drafts neither gains nor loses: round_ms / step_ms."""
        return self.grid([depth], [batch], context_tokens).breakeven.at(0, 0)

    def grid(
        self,
        depths: Sequence[int],
        batches: Sequence[int] = (1,),
        context_tokens: float | None = None,
        accept_length: Sequence[float | Estimate] | Mapping[int, float | Estimate] | None = None,
        workload: str | None = None,
    ) -> Grid:
        """Everything over depths x batches in one go: round_ms, breakeven, tok_s, speedup, each [depth, batch].

        ``accept_length`` by depth (one per depth, or a mapping); without it tok_s and speedup are those of accept
        length 1, of use only for ratios.
        """
        if accept_length is None:
            lengths: list[float | Estimate] = [1.0] * len(depths)
        elif isinstance(accept_length, Mapping):
            lengths = [_lookup(accept_length, d) for d in depths]
        else:
            lengths = list(accept_length)
        if len(lengths) != len(depths):
            raise InputError("accept_length", len(lengths), f"must hold one value per depth, {len(depths)}")
        cells = self._cells(depths, batches, context_tokens, workload)
        al = np.array([_accept_length(a, d) for a, d in zip(lengths, depths, strict=True)])
        al = np.repeat(al, len(batches), axis=0)
        return self._evaluate(cells, al, len(batches))

    # ---- decisions ----

    def best_depth(
        self,
        accept_length_by_depth: Mapping[int, float],
        batch: int = 1,
        context_tokens: float | None = None,
        workload: str | None = None,
    ) -> int:
        """The depth of highest expected tok/s among the given ones; 0 = do not speculate."""
        if not isinstance(accept_length_by_depth, Mapping):
            rule = "must map depths to accept lengths, such as {1: 1.6, 3: 2.2}"
            raise InputError("accept_length_by_depth", accept_length_by_depth, rule)
        return self.advice(accept_length_by_depth, batch, context_tokens, workload).depth

    def advice(
        self,
        options: Sequence[Option] | Mapping[int, float],
        batch: int = 1,
        context_tokens: float | None = None,
        workload: str | None = None,
    ) -> Advice:
        """Which of the options (depths or trees with their accept lengths) to serve, "do not speculate" included."""
        if isinstance(options, Mapping):
            options = [Option(d, a) for d, a in options.items()]
        if not isinstance(options, Sequence) or not all(isinstance(o, Option) for o in options):
            raise InputError("options", options, "must be a list of Option, or map depths to accept lengths")
        if not options:
            raise InputError("options", [], "must hold at least one option")
        options = sorted(options, key=lambda o: (o.depth, o.topk, o.num_draft_tokens or 0))
        columns = [[getattr(o, name) for o in options] for name in ("depth", "topk", "num_draft_tokens")]
        cells = self._cells(columns[0], [batch], context_tokens, workload, columns[1], columns[2])
        grid = self._evaluate(cells, np.array([_accept_length(o.accept_length, o.depth) for o in options]))
        outside = [
            self.range_warnings(
                o.depth, batch, context_tokens, workload, topk=o.topk, num_draft_tokens=o.num_draft_tokens
            )
            for o in options
        ]
        return choose(options, grid, self.inconsistent, outside)

    def range_warnings(
        self,
        depth: int,
        batch: int = 1,
        context_tokens: float | None = None,
        workload: str | None = None,
        *,
        topk: int = 1,
        num_draft_tokens: int | None = None,
    ) -> tuple[str, ...]:
        """In what way a query lies outside what was measured."""
        _check_query(depth, batch, context_tokens, topk, num_draft_tokens)
        nodes = num_draft_tokens if topk > 1 else None
        return check_range(self._usable, depth, batch, context_tokens, workload, nodes, tree=topk > 1)

    def conditions(self, context_tokens: float | None = None, workload: str | None = None) -> tuple[float, str | None]:
        """Context and workload that a query means by None.

        The lowest calibrated context, 0 where none was recorded; the workload whose baseline is fastest, so
        the least outside decoding, unless there are points without one.
        """
        if workload is None and None not in self._form.workloads:
            plain = [p for p in self._usable if p.depth == 0] or list(self._usable)
            workload = min(plain, key=lambda p: (p.round_ms or 0.0, p.workload or "")).workload if plain else None
        return self._form.default_context if context_tokens is None else context_tokens, workload

    # ---- inside ----

    def _cells(
        self,
        depths: Sequence[int],
        batches: Sequence[int],
        context_tokens: float | None,
        workload: str | None = None,
        topk: Sequence[int] = (1,),
        num_draft_tokens: Sequence[int | None] = (None,),
    ) -> Cells:
        """Cells of depths x batches, the batch running fastest; trees by depth."""
        for name, given in (("depths", depths), ("batches", batches)):
            if len(given) == 0:
                raise InputError(name, [], "must hold at least one value")
        trees = list(zip(depths, topk, num_draft_tokens, strict=True)) if len(topk) == len(depths) else []
        for d, k, n in trees or [(d, 1, None) for d in depths]:
            _check_query(d, 1, context_tokens, k, n)
        for b in batches:
            _check_query(0, b, context_tokens, 1, None)
        rows = trees or [(d, 1, None) for d in depths]
        columns = np.repeat([[d, d + 1 if k == 1 else n, k] for d, k, n in rows], len(batches), axis=0).T.astype(float)
        size = columns.shape[1]
        batch = np.tile(np.array(batches, dtype=float), len(rows))
        context, known = self.conditions(context_tokens, workload)
        return self._form.cells(columns[0], columns[1], columns[2], batch, np.full(size, context), [known] * size)

    def _unseen(self, cells: Cells, log_rounds: Array) -> Array:
        """Standard deviation of the log round time of what was not measured, [N]; row 0 of ``log_rounds``: the mode."""
        load = self._form.unseen_load_spread(self._fit.theta[None], cells, log_rounds[0])
        result: Array = np.hypot(self._fit.wide * self._form.unseen_spread(cells), load)
        return result

    def _evaluate(self, cells: Cells, accept_length: Array, width: int = 1) -> Grid:
        """Grid of `_cells` with ``width`` batch sizes; ``accept_length`` [N, 3] holds value, lo, hi."""
        shape = (len(cells.depth) // width, width)
        theta = self._theta[: 1 + max(64, min(_N_DRAWS, _MAX_DRAWN // len(cells.depth)))]
        form, plain = self._form, cells.first(width).plain()
        steps = form.log_round(theta, plain)
        rounds = form.log_round(theta, cells)
        outside = form.outside(theta, plain, steps)
        value, lo, hi = accept_length.T
        token = rounds + form.workload_effect(theta, cells) - np.log(value)
        base = steps
        if outside.any():
            token = np.log(np.exp(token).reshape(-1, *shape) + outside[:, None]).reshape(rounds.shape)
            base = np.log(np.exp(steps) + outside)
        unseen = self._unseen(cells, rounds)
        new_workload = np.where((cells.workload < 0) & (cells.depth > 0), self.prior.workload_spread, 0.0)
        again = np.hypot(self.prior.noise_single / cells.batch, _SCATTER_FLOOR)
        noise = _SCATTER * np.hypot(self._fit.wide * self.prior.noise, again)
        scatter = np.hypot(np.hypot(unseen, self._fit.wide * new_workload), noise)
        sides = np.log([lo / value, hi / value])
        per_second = np.log(1000.0 * cells.batch)
        repeated = np.tile(steps, shape[0])
        return Grid(
            depths=cells.depth.reshape(shape)[:, 0].astype(int),
            batches=cells.batch[:width].astype(int),
            round_ms=interval(rounds, unseen, None, shape),
            breakeven=interval(rounds - repeated, unseen, None, shape),
            tok_s=interval(per_second - token, scatter, sides, shape),
            speedup=interval(np.tile(base, shape[0]) - token, scatter, sides, shape),
        )


def _in_one_context(points: Sequence[MeasuredPoint]) -> tuple[MeasuredPoint, ...]:
    """Points of unrecorded context among others of a recorded one are taken at the lowest recorded one.

    At 0 tokens, a baseline from a log and a round from a client of one and the same run would differ by the attention.
    """
    lowest = min((p.context_tokens for p in points if p.context_tokens is not None), default=None)
    return tuple(replace(p, context_tokens=lowest) if p.context_tokens is None else p for p in points)


def _fit(form: RoundTime, points: Sequence[MeasuredPoint], prior: Prior) -> Fit:
    """Posterior of the round-time parameters from log token times (or log round times where ``step_ms`` is given)."""
    cells = form.cells_of(points)
    engine = np.array([p.step_ms is not None for p in points])
    accept = np.array([p.accept_length or 1.0 for p in points])
    observed = np.log(np.array([p.step_ms or p.token_ms for p in points], dtype=float))
    weight = np.array([p.weight or 1.0 for p in points])

    plain = cells.plain()

    def predict(theta: Array) -> Array:
        decode = form.log_round(theta, cells) + form.workload_effect(theta, cells)
        outside = form.outside(theta, plain, form.log_round(theta, plain))
        result: Array = np.where(engine, decode, np.log(np.exp(decode) / accept + outside))
        return result

    level = float(np.sort(observed + np.log(accept))[len(observed) // 2]) if len(observed) else 0.0
    mean, spread = form.prior_moments(level)
    problem = Problem(predict, observed, weight, mean, spread, form.scatters, prior.noise)
    return fit_map(problem, form.first_guess(points, mean))


def fingerprint(points: Sequence[MeasuredPoint], prior: Prior) -> str:
    """First 12 hex digits of the SHA-256 of what determines a projection."""
    content = {"model": MODEL_VERSION, "points": sorted(map(canonical_point, points)), "prior": prior.as_dict()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def canonical_point(point: MeasuredPoint) -> str:
    """A point as canonical JSON; its source is left out, whole numbers and floats are alike."""
    fields = {k: float(v) if isinstance(v, int) and not isinstance(v, bool) else v for k, v in point.as_dict().items()}
    fields.pop("source", None)
    return json.dumps(fields, sort_keys=True)


def _lookup(accept_length: Mapping[int, float | Estimate], depth: int) -> float | Estimate:
    if depth not in accept_length:
        raise InputError("accept_length", sorted(accept_length), f"must hold depth {depth}")
    return accept_length[depth]


def _check_query(depth: object, batch: object, context_tokens: object, topk: object, nodes: object) -> None:
    for name, value, least in (("depth", depth, 0), ("batch", batch, 1), ("topk", topk, 1)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise InputError(name, value, f"must be a whole number >= {least}")
        if value > _LARGEST:
            raise InputError(name, value, "must be at most 1e9")
    if context_tokens is not None and not (isinstance(context_tokens, (int, float)) and 0 <= context_tokens < 1e9):
        raise InputError("context_tokens", context_tokens, "must be a number in [0, 1e9) or null")
    if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, (int, np.integer)) or nodes < 1):
        raise InputError("num_draft_tokens", nodes, "must be a whole number >= 1 or null")
    check_nodes(int(cast(int, depth)), int(cast(int, topk)), None if nodes is None else int(nodes))


def _accept_length(value: object, depth: int) -> tuple[float, float, float]:
    """As (value, lo, hi), none below 1 or above what ``depth`` drafts can give; rounding is forgiven."""
    estimate = value if isinstance(value, Estimate) else None
    number = estimate.value if estimate else value
    if isinstance(number, bool) or not isinstance(number, (int, float, np.floating)) or not 1 <= number < 1e6:
        raise InputError("accept_length", number, "must be a finite number >= 1 (bonus token included)")
    most = depth + 1.0
    if number > most * _ROUNDING:
        rule = f"must be at most depth + 1 = {depth + 1}" if depth else "must be 1 at depth 0 (no speculation)"
        raise InputError("accept_length", number, rule)
    length = min(float(number), most)
    if estimate is None:
        return length, length, length
    if np.isnan(estimate.lo) or np.isnan(estimate.hi):
        return length, 1.0, most  # no spread was known: all that is certain is what is possible
    # The ends come from interval arithmetic, which knows nothing of the depth.
    return length, min(max(estimate.lo, 1.0), length), max(min(estimate.hi, most), length)
