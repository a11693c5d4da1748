"""Where the accept length will be at the end of the budget: a learning curve with an honest band.

Model: accept length at step s is ``a - b (s / s_n)^-c`` with b >= 0, s_n the last validation, so a - b is the level
now, b all that is still to come, and c how fast. Given c this is linear in (a, b); c is summed over a grid.

- Prior: a flat; b half-normal with scale 0.7 max(AL_n - 1, 0.5), that is, training may still add about half of the
  accepted drafts it has; c log-normal around 0.5 (a factor 1.8). With one validation the band is this prior.
- Noise: a validation set's sampling error is mostly shared by its validations (the same answers), which moves the
  whole curve, and partly its own. The own share of each interval is summed over a grid; the rest widens the result.
- No learning curve is a power law: each e-fold of steps away from the last validation adds an error of 3 % of the
  accepted drafts, so old validations count less, and a far end is less sure.

It knows nothing of learning-rate schedules, and b >= 0 keeps it from forecasting a decline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..estimate import Estimate
from ..projection import AcceptLengths

__all__ = ["ForecastCurve", "forecast_curve", "forecast_final"]

Array = npt.NDArray[np.float64]

_RATES = np.geomspace(0.12, 2.0, 16)
_RATE_MEDIAN, _RATE_FACTOR = 0.5, 1.8
_REMAINING_SCALE, _LEAST_DRAFTS = 0.7, 0.5
_OWN_SHARES = np.array([0.1, 0.2, 0.4, 0.7, 1.0])  # of the standard error that is a validation's own
_DISCREPANCY = 0.03
_LEVEL_SCALE = 10.0  # flat in practice: an accept length lies within a few units of the last one
_LEAST_ERROR = 1e-3  # intervals of width 0 (perfect or hopeless drafters) must not make a point infinitely heavy
_UNKNOWN_ERROR = 0.25  # of the value, where one block of answers shows no spread
_B_NODES, _NOISE_NODES = 15, 9


@dataclass(frozen=True)
class ForecastCurve:
    """Accept length over depth at the end of the budget; can be projected like a profile."""

    final_step: int
    ttt_steps: int
    lengths: tuple[Estimate, ...]

    @property
    def max_depth(self) -> int:
        """Largest depth that was forecast."""
        return len(self.lengths)

    def accept_length(self, depth: int) -> Estimate:
        """Tokens per round, bonus token included."""
        if not 1 <= depth <= self.max_depth:
            raise InputError("depth", depth, f"must lie in [1, {self.max_depth}]")
        return self.lengths[depth - 1]


def forecast_curve(
    steps: Sequence[int], lengths: Sequence[AcceptLengths], final_step: int, *, max_depth: int | None = None
) -> ForecastCurve:
    """:func:`forecast_final` at depth 1..``max_depth`` (default: what was walked)."""
    if not lengths:
        raise InputError("lengths", [], "must hold at least one validation")
    depths = range(1, (max_depth or lengths[-1].max_depth) + 1)
    ends = [
        forecast_final(steps, [curve.accept_length(depth) for curve in lengths], final_step, ceiling=depth + 1.0)
        for depth in depths
    ]
    return ForecastCurve(int(final_step), lengths[-1].ttt_steps, tuple(ends))


def forecast_final(
    steps: Sequence[int | float],
    accept_lengths: Sequence[Estimate],
    final_step: int | float,
    *,
    ceiling: float = math.inf,
) -> Estimate:
    """Accept length at ``final_step``, with its band.

    Args:
        steps: optimizer steps of the validations, rising; those at step 0 (untrained) or without answers are left out.
        accept_lengths: what they measured, same length; their intervals are the observation noise.
        final_step: end of the budget. Not after the last validation: that validation is the answer.
        ceiling: largest possible value (depth + 1).

    Returns:
        Median and band at the level of the last validation; NaN where no validation can be used.
    """
    if len(steps) != len(accept_lengths):
        raise InputError("steps", len(steps), f"must be as many as accept_lengths ({len(accept_lengths)})")
    if not math.isfinite(final_step):
        raise InputError("final_step", final_step, "must be finite")
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise InputError("steps", list(steps), "must rise")
    used = [(s, y) for s, y in zip(steps, accept_lengths, strict=True) if s > 0 and not math.isnan(y.value)]
    if not used:
        nan = math.nan
        return Estimate(nan, nan, nan, accept_lengths[-1].level if accept_lengths else 0.90)
    last_step, last = used[-1]
    if final_step <= last_step:
        return last
    step = np.array([s for s, _ in used], dtype=np.float64)
    value = np.array([y.value for _, y in used])
    error = np.array([_standard_error(y) for _, y in used])
    ends, weight = _posterior(step / last_step, value, error, final_step / last_step)
    lo, middle, hi = _quantiles(ends, weight, [0.5 - last.level / 2, 0.5, 0.5 + last.level / 2])
    lo, middle, hi = (float(np.clip(x, 1.0, ceiling)) for x in (lo, middle, hi))
    return Estimate(middle, lo, hi, last.level)


def _standard_error(estimate: Estimate) -> float:
    from scipy.special import ndtri  # 0.1 s to import, and `--help` needs none of it

    width = estimate.half_width
    if math.isnan(width):
        return _UNKNOWN_ERROR * estimate.value
    return max(width / float(ndtri(0.5 + estimate.level / 2)), _LEAST_ERROR)


def _posterior(step: Array, value: Array, error: Array, final: float) -> tuple[Array, Array]:
    """Nodes of the accept length at ``final`` and their weights; steps in units of the last validation's.

    For each rate c and own share: Bayesian linear regression of the values on (1, -step^-c).
    """
    from scipy.special import log_ndtr

    level = value[-1]
    drafts = max(float(level) - 1, _LEAST_DRAFTS)
    own = _OWN_SHARES[None, :, None] * error
    precision = 1 / (own**2 + (_DISCREPANCY * drafts * np.log(step)) ** 2)  # [1, shares, n]
    shape = -(step[None, None, :] ** -_RATES[:, None, None])  # [rates, 1, n]
    y = value - level
    # Precision matrix ((aa, ab), (ab, bb)) and right-hand side of the normal equations, [rates, shares].
    prior_a, prior_b = _LEVEL_SCALE**-2, (_REMAINING_SCALE * drafts) ** -2
    aa = precision.sum(-1) + prior_a + np.zeros_like(shape[..., 0])
    ab = (precision * shape).sum(-1)
    bb = (precision * shape**2).sum(-1) + prior_b
    right_a, right_b = (precision * y).sum(-1) + np.zeros_like(aa), (precision * shape * y).sum(-1)
    determinant = aa * bb - ab**2
    mean_a, mean_b = (bb * right_a - ab * right_b) / determinant, (aa * right_b - ab * right_a) / determinant
    sd_b = np.sqrt(aa / determinant)
    evidence = 0.5 * (np.log(precision).sum(-1) - np.log(determinant))
    evidence = evidence - 0.5 * ((precision * y**2).sum(-1) - mean_a * right_a - mean_b * right_b)
    evidence = evidence + log_ndtr(mean_b / sd_b)
    evidence = evidence - 0.5 * (np.log(_RATES / _RATE_MEDIAN) / math.log(_RATE_FACTOR))[:, None] ** 2
    weight = np.exp(evidence - evidence.max())

    b, noise = _positive_nodes(mean_b, sd_b), _normal_nodes(_NOISE_NODES)
    a = mean_a[..., None] - (ab / aa)[..., None] * (b - mean_b[..., None])
    ends = level + a - b * (final**-_RATES)[:, None, None]
    shared = (1 - _OWN_SHARES**2) * error[-1] ** 2
    spread = np.sqrt(1 / aa + shared + (_DISCREPANCY * drafts * math.log(final)) ** 2)
    nodes = ends[..., None] + spread[..., None, None] * noise
    return nodes, np.broadcast_to(weight[..., None, None], nodes.shape)


def _normal_nodes(count: int) -> Array:
    """Equally likely values of a standard normal."""
    from scipy.special import ndtri

    nodes: Array = ndtri((np.arange(count) + 0.5) / count)
    return nodes


def _positive_nodes(mean: Array, sd: Array) -> Array:
    """Equally likely values of normals cut off below 0: [..., nodes]."""
    from scipy.special import ndtr, ndtri

    z = np.maximum(mean / sd, -8.0)  # further out, all of the mass lies at 0
    tail = ndtr(z)[..., None] * (1 - (np.arange(_B_NODES) + 0.5) / _B_NODES)
    return np.maximum(mean[..., None] - sd[..., None] * ndtri(tail), 0.0) * (mean / sd > -8.0)[..., None]


def _quantiles(values: Array, weight: Array, probabilities: Sequence[float]) -> list[float]:
    order = np.argsort(values, axis=None)
    cumulative = np.cumsum(weight.ravel()[order])
    at = np.searchsorted(cumulative, np.asarray(probabilities) * cumulative[-1])
    return [float(v) for v in values.ravel()[order][at]]
