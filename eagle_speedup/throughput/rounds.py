"""Round time as a function of depth, tree, batch size and context: the physical form that a calibration fits.

    round_ms = V(B * nodes) + attention(B, C, nodes) + (d * draft + overhead) * V(1)**(1 - g) * V(B)**g
    step_ms  = V(B)         + attention(B, C, 1)
    token_ms = round_ms / accept_length + outside
    attention(B, C, n) = a * C * sqrt(1 + (B * n**p / B0)**2)

``V`` is the verifier's forward pass over so many tokens. It is one curve for plain steps and for verification, read on
the axis that both share: tokens per step. Its elasticity d log V / d log T is constant within an octave and wanders
between octaves, so dense models (flat), mixtures of experts (steep early) and cliffs need no case of their own.
Draft steps and the fixed time grow with the batch by less than the verifier does, by a power ``g`` that is a parameter.
``attention`` reads the context: split over idle cores up to about ``B0`` requests, in proportion to the load above.
``outside`` is the time per token that a workload spends outside decoding (prefill, ragged tail); it does not shrink
with the accept length, and shows in the workload's own baseline against the fastest one of the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import cliffs
from .points import MeasuredPoint
from .posterior import Array
from .prior import Prior

__all__ = ["Cells", "RoundTime"]

_OCTAVES = 12  # the curve has knots at 1, 2, 4, ... 4096 tokens per step
_MAX_ELASTICITY = 1.4  # above 1: a cliff, where another kernel takes over
_DRIFT = 0.22  # the elasticity's logit rises so much per octave: compute takes over from reading weights
_FIRST_KNEE = 4  # octave, 16 tokens per step, before which no slope turns
_SHARP_KNEE = 6  # octave before which a slope that points determine in part holds to the nearest knot
_ROUNDS = 64.0  # tokens per step up to which rounds tell the slope too; a dear one beyond may as well cost fixed time
_ORDINARY = -0.5  # logit of an elasticity of one half, to which it returns beyond the points,
_RETURN = 0.75  # by so much of the way in an octave
_CHEAPEST = -0.05  # effect of a deepest chain that still carries on to deeper ones
_CLIFF_SPREAD = 4.0  # where the baselines show a cliff, the elasticity is left to the data
_STEP_SPREAD = 4.0  # the step time itself is left to the data: a factor of 50 either way
_LOAD_SPREAD = 0.1  # spread of attention per e-fold of batch or context beyond those measured together
_SHORT = 1000.0  # tokens of a context that is 0 or was not recorded
_CROWD_BATCH = 16.0  # beyond it, prefill is interleaved anyway
_SCATTER = ("workload", "config")
_LN2 = float(np.log(2.0))


@dataclass(frozen=True)
class Cells:
    """Conditions to evaluate, as arrays of one length N."""

    depth: Array
    """Draft steps; nan = the unrecorded depth."""
    nodes: Array
    """Tokens per request that a round verifies; nan with ``depth``."""
    topk: Array
    """Branches per draft step."""
    batch: Array
    """Requests."""
    context: Array
    """Tokens of context per request."""
    workload: Array
    """Index of the workload (whole numbers), -1 = one that was never measured."""
    config: Array
    """Index of the configuration (whole numbers), -1 = one that was never measured."""
    below: Array
    """Of a chain never measured: index of the next shallower one measured under the same conditions, -1 = none."""
    above: Array
    """The same for the next deeper one."""

    def plain(self) -> Cells:
        """The same conditions without speculation."""
        one = np.ones_like(self.batch)
        return Cells(0 * one, one, one, self.batch, self.context, self.workload, -one, -one, -one)

    def first(self, n: int) -> Cells:
        """The first ``n`` conditions."""
        return self.at(slice(n))

    def at(self, index: slice | NDArray[np.intp]) -> Cells:
        """The conditions at ``index``."""
        return Cells(*(getattr(self, f.name)[index] for f in fields(self)))


class RoundTime:
    """The formula above with its parameters laid out in one vector ``theta`` of unconstrained reals.

    Arrays of parameters are [n, P]: n draws at once, of which the first is the mode where it matters.
    """

    def __init__(self, points: Sequence[MeasuredPoint], prior: Prior) -> None:
        self.prior = prior
        self.workloads: tuple[str | None, ...] = tuple(dict.fromkeys(p.workload for p in points))
        self.configs = tuple(dict.fromkeys(_config(p) for p in points if p.depth))
        self._workload_at = {w: i for i, w in enumerate(self.workloads)}
        self._config_at = {c: i for i, c in enumerate(self.configs)}
        self.default_context = min((p.context_tokens or 0.0 for p in points), default=0.0)
        wall = {p.workload for p in points if p.step_ms is None}
        # A workload known by engine time alone has nothing outside decoding: its figures never held it.
        self._no_outside = np.array([w not in wall for w in self.workloads] + [not wall])
        tokens = [min(p.batch * p.nodes, _ROUNDS if p.depth else np.inf) for p in points if p.nodes is not None]
        self._shape = _Shape(float(np.log2(max(tokens, default=1.0))), prior.curve is not None)
        self._cliffs = {int(np.log2(low)) for low, _ in cliffs(points)}
        loads = {(p.batch, p.context_tokens or _SHORT) for p in points}
        self._loads = np.array(sorted(loads), dtype=float).reshape(-1, 2).T
        n = len(self.workloads)
        names = ["step", "level", *(f"walk{i}" for i in range(1, _OCTAVES)), "draft", "overhead", "growth"]
        names += ["tree", "depth", "attention", "attention_batch", "attention_nodes", "outside"]
        names += [f"outside{i}" for i in range(n)] + [f"workload{i}" for i in range(n)]
        names += [f"config{i}" for i in range(len(self.configs))]
        self._at = {name: i for i, name in enumerate(names)}
        self.scatters = np.array([name.rstrip("0123456789") in _SCATTER for name in names])
        """Parameters that stand for scatter, [P]: their spread follows that of the measurements."""
        self.size = len(names)

    def prior_moments(self, level: float) -> tuple[Array, Array]:
        """Prior mean and standard deviation of the parameters, [P] each; ``level``: rough log step time."""
        p = self.prior
        step = (level, _STEP_SPREAD) if p.step_ms is None else (np.log(p.step_ms), p.step_spread)
        logits = _logits([p.elasticity] if p.curve is None else p.curve)
        moments = {
            "step": step,
            "level": (logits[0], p.elasticity_spread),
            "draft": (np.log(p.draft_share), p.draft_spread),
            "overhead": (np.log(p.overhead_share), p.overhead_spread),
            "growth": (_logit(p.growth), p.growth_spread),
            "tree": (np.log(p.tree_factor), p.tree_spread),
            "depth": (np.log(p.unknown_depth), p.unknown_depth_spread),
            "attention": (np.log(p.attention_share), p.attention_spread),
            "attention_batch": (np.log(p.attention_batch), p.attention_batch_spread),
            "attention_nodes": (_logit(p.attention_nodes), p.attention_nodes_spread),
            "outside": (np.log(p.outside_share if any(self.workloads) else p.outside_unnamed), p.outside_spread),
        }
        by_family = {"walk": p.elasticity_walk, "outside": p.outside_spread, "workload": p.workload_spread}
        mean, spread = np.zeros(self.size), np.ones(self.size)
        for name, i in self._at.items():
            if name in moments:
                mean[i], spread[i] = moments[name]
            else:
                spread[i] = by_family.get(name.rstrip("0123456789"), p.config_spread)
        if p.curve is not None:
            mean[self._at["walk1"] :][: _OCTAVES - 1] = np.diff(logits) - _DRIFT
        known = self._shape.known
        spread[self._at["walk1"] + known - 1 :][: max(0, _OCTAVES - known)] = p.elasticity_beyond
        for octave in self._cliffs & set(range(1, _OCTAVES - 1)):
            spread[self._at[f"walk{octave}"]] = spread[self._at[f"walk{octave + 1}"]] = _CLIFF_SPREAD
        return mean, spread

    def first_guess(self, points: Sequence[MeasuredPoint], prior_mean: Array) -> Array:
        """Parameters to begin a fit from, [P]: as believed, and each workload's time outside decoding as its baseline
        shows it beside the fastest of the same batch and context.

        From the belief alone (near 0) a fit may not find a large share: the exponential is flat there, and the baseline
        passes for an outlier.
        """
        baselines: dict[tuple[int, float | None], dict[str | None, float]] = {}
        for p in points:
            if p.depth == 0 and p.step_ms is None and p.token_ms:
                times = baselines.setdefault((p.batch, p.context_tokens), {})
                times[p.workload] = min(p.token_ms, times.get(p.workload, np.inf))
        guess = prior_mean.copy()
        for (batch, _), times in baselines.items():
            fastest = min(times.values())
            for workload, time in times.items():
                if time > fastest:
                    share = np.log(time / fastest - 1.0) - self._crowding(float(batch))
                    i = self._at[f"outside{self._workload_at[workload]}"]
                    guess[i] = max(guess[i], share - prior_mean[self._at["outside"]])
        return guess

    def cells(
        self, depth: Array, nodes: Array, topk: Array, batch: Array, context: Array, workload: Sequence[str | None]
    ) -> Cells:
        """Conditions, known or new, from columns of one length."""
        columns = (depth, topk, nodes, batch, context)
        config = np.full(len(depth), -1.0)
        for i, key in enumerate(self.configs):
            same = depth == key[0]
            if same.any():
                config[np.logical_and.reduce([same, *(c == v for c, v in zip(columns[1:], key[1:], strict=True))])] = i
        names = np.array([self._workload_at.get(w, -1) for w in workload], dtype=float)
        below, above = self._neighbours(depth, (config < 0) & (topk == 1) & (depth > 0), batch, context)
        return Cells(depth, nodes, topk, batch, context, names, config, below, above)

    def _neighbours(self, depth: Array, wanted: NDArray[np.bool_], batch: Array, context: Array) -> tuple[Array, Array]:
        """`Cells.below` and `Cells.above` of the cells ``wanted``."""
        below, above = np.full(len(depth), -1.0), np.full(len(depth), -1.0)
        chains: dict[tuple[float, float], list[tuple[int, int]]] = {}
        for i, (d, topk, _, b, c) in enumerate(self.configs):
            if topk == 1:
                chains.setdefault((b, c), []).append((d, i))
        for (b, c), found in chains.items():
            at = np.flatnonzero(wanted & (batch == b) & (context == c))
            if len(at):
                depths, index = np.array(sorted(found)).T
                place = np.searchsorted(depths, depth[at])
                padded = np.array([-1, *index, -1])
                below[at], above[at] = padded[place], padded[place + 1]
        return below, above

    def cells_of(self, points: Sequence[MeasuredPoint]) -> Cells:
        """The conditions of points; a context that was not recorded counts as 0."""
        rows = [(p.depth, p.nodes, p.topk, p.batch, p.context_tokens or 0.0) for p in points]
        columns = np.array([[np.nan if v is None else v for v in row] for row in rows], dtype=float).reshape(-1, 5).T
        depth, nodes, topk, batch, context = columns
        return self.cells(depth, nodes, topk, batch, context, [p.workload for p in points])

    def log_round(self, theta: Array, cells: Cells) -> Array:
        """Log milliseconds of a round (a plain step where depth is 0), decoding only, [n, N]."""
        depth, nodes = cells.depth, cells.nodes
        if np.isnan(depth).any():
            drawn = np.exp(self._get(theta, "depth"))
            depth = np.where(np.isnan(depth), drawn, depth)
            nodes = np.where(np.isnan(nodes), drawn + 1.0, nodes)
        elastic = self.elasticity(theta)
        total = self._shape.exp_curve(elastic, cells.batch * nodes)
        if cells.context.any():
            total += self._attention(theta, cells, nodes)
        if not depth.any():
            return self._get(theta, "step") + np.log(total, out=total)

        power = _logistic(self._get(theta, "growth"))

        def beside(name: str, tokens: Array) -> Array:
            """A cost besides verification: exp(parameter) * V(tokens)**power."""
            return self._shape.exp_curve(elastic, tokens, power, self._get(theta, name))

        extra = depth * beside("draft", cells.batch * cells.topk) + beside("overhead", cells.batch)
        total += np.where(depth > 0, extra, 0.0)
        result: Array = np.log(total, out=total)
        result += self._get(theta, "step")
        if (cells.topk > 1).any():
            result += np.where(cells.topk > 1, self._get(theta, "tree"), 0.0)
        if (cells.config >= 0).any():
            result += self._effect(theta, "config", cells.config)
        near = np.flatnonzero((cells.below >= 0) | (cells.above >= 0))
        if len(near):
            result[:, near] += self._between(theta, cells.at(near), result[:, near])
        return result

    def _between(self, theta: Array, cells: Cells, smooth: Array) -> Array:
        """Effects of chains between measured depths, [n, N], from those of the neighbours; ``smooth``: without effects.

        Interpolated over the smooth log time, not the depth: only so is the sum monotone wherever its ends are. A plain
        step has no effect; beyond the deepest chain its own carries on.
        """
        depths = np.array([0.0, *(c[0] for c in self.configs)])

        def end(index: Array) -> tuple[Array, Array]:
            depth, none = depths[index.astype(int) + 1], np.full(len(index), -1.0)
            there = replace(cells, depth=depth, nodes=depth + 1.0, config=none, below=none, above=none)
            return self.log_round(theta, there), self._effect(theta, "config", index)

        (start, low), (stop, high) = end(cells.below), end(np.where(cells.above < 0, cells.below, cells.above))
        share = np.clip((smooth - start) / np.where(stop > start, stop - start, 1.0), 0.0, 1.0)
        beyond = np.maximum(low, _CHEAPEST)  # a deepest chain much cheaper than the form contradicts it, no more
        result: Array = np.where(cells.above < 0, beyond, low + share * (high - low))
        return result

    def outside(self, theta: Array, plain: Cells, log_step: Array) -> Array:
        """Milliseconds per token outside decoding, [n, N]; ``log_step``: `log_round` of the ``plain`` cells."""
        index = plain.workload.astype(int)
        if self._no_outside[index].all():
            return np.zeros((1, 1))
        share = self._get(theta, "outside") + self._effect(theta, "outside", plain.workload)
        if (index < 0).any():
            new = np.random.default_rng(7).standard_normal((len(theta), 1)) * self.prior.outside_spread
            new[0] = 0.0
            share = np.where(index < 0, share + new, share)
        crowded = share + self._crowding(plain.batch)
        result: Array = np.where(self._no_outside[index], 0.0, np.exp(crowded + log_step))
        return result

    def _crowding(self, batch: Array | float) -> Array:
        """Log factor on the share outside decoding at a batch size."""
        result: Array = self.prior.outside_crowding * np.log(np.minimum(batch, _CROWD_BATCH))
        return result

    def workload_effect(self, theta: Array, cells: Cells) -> Array:
        """Log factor of a workload on the rounds of the node, [n, N]; 0 for plain steps."""
        result: Array = np.where(cells.depth == 0, 0.0, self._effect(theta, "workload", cells.workload))
        return result

    def unseen_spread(self, cells: Cells) -> Array:
        """Standard deviation of the log round time that a new configuration adds, [N]."""
        # To its own scatter comes that of the effects taken over: of one that carries on, or the mean of two.
        ends = np.where(cells.above >= 0, np.sqrt(1.5), np.where(cells.below >= 0, np.sqrt(2.0), 1.0))
        result: Array = np.where((cells.config < 0) & (cells.depth > 0), ends * self.prior.config_spread, 0.0)
        return result

    def unseen_load_spread(self, theta: Array, cells: Cells, log_round: Array) -> Array:
        """The same for a context and batch size beyond all that were measured together, [N]; ``theta`` [1, P].

        How attention fills the cores turns on their product. The spread is of Kimi-K2.6, by contexts at batch 1 alone.
        """
        if not self._loads.size or not cells.context.any():
            return np.zeros(len(cells.batch))
        batch, context = self._loads
        with np.errstate(divide="ignore"):
            beyond = np.maximum(np.log(cells.batch[:, None] / batch), 0.0)
            beyond += np.maximum(np.log(cells.context[:, None] / context), 0.0)
        attention = np.exp(self._get(theta, "step")) * self._attention(theta, cells, cells.nodes)
        result: Array = _LOAD_SPREAD * beyond.min(axis=1) * (attention / np.exp(log_round))[0]
        return result

    def elasticity(self, theta: Array) -> Array:
        """d log V / d log T of every octave of tokens per step, [n, octaves]."""
        first = self._at["level"]
        logit = theta[:, first : first + _OCTAVES] @ self._shape.walk + self._shape.offset
        result: Array = _MAX_ELASTICITY / (1.0 + np.exp(-logit))
        return result

    def _effect(self, theta: Array, family: str, index: Array) -> Array:
        """Effects ``family0``, ``family1``, ... by index, [n, N]; 0 where the index is -1."""
        chosen = index.astype(int)
        first = self._at.get(f"{family}0")
        if first is None or (chosen < 0).all():
            return np.zeros((1, 1))
        if (chosen == chosen[0]).all():
            return theta[:, first + chosen[0], None]
        result: Array = np.where(chosen < 0, 0.0, theta[:, first + np.maximum(chosen, 0)])
        return result

    def _get(self, theta: Array, name: str) -> Array:
        i = self._at[name]
        result: Array = theta[:, i : i + 1]
        return result

    def _attention(self, theta: Array, cells: Cells, nodes: Array) -> Array:
        power = _logistic(self._get(theta, "attention_nodes"))
        load = np.exp(np.log(cells.batch) + power * np.log(nodes) - self._get(theta, "attention_batch"))
        result: Array = np.exp(self._get(theta, "attention")) * cells.context / 1000.0 * np.hypot(1.0, load)
        return result


class _Shape:
    """How the curve's elasticity runs over the octaves: as the points have it as far as they reach, unknown beyond.

    Beyond, the last slope says little: a dense model turns from free to bound by compute within two octaves, a mixture
    of experts from steep to free once all experts are read. So the elasticity goes back to an ordinary one, with wide
    steps (`Prior.elasticity_beyond`), and a new octave begins where the points end.
    """

    def __init__(self, reach: float, simulated: bool) -> None:
        """``reach``: log2 of the largest tokens per step of a point; a simulated curve knows what lies beyond."""
        end = np.ceil(reach) if reach > _SHARP_KNEE else max(_FIRST_KNEE, np.round(reach))
        self.known = _OCTAVES if simulated else min(_OCTAVES, int(end))
        """Octaves that follow the points."""
        self._reach = reach if self.known < _OCTAVES and reach > _SHARP_KNEE else np.inf
        gap = float(np.ceil(reach)) - reach
        self._gap = gap if np.isfinite(self._reach) else 0.0
        self.walk, self.offset = np.eye(_OCTAVES), np.zeros(_OCTAVES)
        for octave in range(1, _OCTAVES):
            keep, mean = (1.0, _DRIFT) if octave <= self.known else (1.0 - _RETURN, _RETURN * _ORDINARY)
            self.walk[:, octave] += keep * self.walk[:, octave - 1]
            self.offset[octave] = keep * self.offset[octave - 1] + mean

    def exp_curve(
        self, elastic: Array, tokens: Array, power: Array | float = 1.0, offset: Array | float = 0.0
    ) -> Array:
        """exp(offset) * (V(tokens) / V(1))**power, [n, N]; a number of tokens that comes often is computed once."""
        if tokens.ndim > 1:
            result: Array = np.exp(offset + power * self._curve(elastic, tokens))
            return result
        distinct, at = np.unique(tokens, return_inverse=True)
        result = np.exp(offset + power * self._curve(elastic, distinct))[:, at]
        return result

    def _curve(self, elastic: Array, tokens: Array) -> Array:
        """Log of V(tokens) / V(1), [n, N], from elasticities [n, octaves]; ``tokens`` is [N] or [n, N]."""
        x = np.log2(tokens)
        x = np.where(x > self._reach, x + self._gap, x)
        part = np.clip(x[..., None] - np.arange(_OCTAVES), 0.0, 1.0)
        part[..., -1] += np.maximum(x - _OCTAVES, 0.0)
        if self._gap:  # the octave in which the points end is cut short
            part[..., self.known - 1] = np.minimum(part[..., self.known - 1], 1.0 - self._gap)
        result: Array = _LN2 * (elastic @ part.T if x.ndim == 1 else np.einsum("no,nio->ni", elastic, part))
        return result


def _logistic(logit: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-logit)))


def _logit(share: Array | float) -> Array:
    return np.asarray(np.log(share / (1.0 - share)))


def _logits(elasticities: Sequence[float]) -> Array:
    """Logits, in units of the largest elasticity, of all octaves [octaves]; the last one given holds beyond."""
    known = list(elasticities)[:_OCTAVES]
    share = np.clip([*known, *known[-1:] * (_OCTAVES - len(known))], 0.01, 0.9 * _MAX_ELASTICITY) / _MAX_ELASTICITY
    return _logit(share)


def _config(point: MeasuredPoint) -> tuple[Any, ...]:
    return (point.depth, point.topk, point.nodes, point.batch, point.context_tokens or 0.0)
