"""Robust maximum a posteriori fit with a Gaussian prior, and draws around it.

All parameters are unconstrained reals (logarithms of positive quantities), so every draw is a physical model. The
likelihood is Student-t, so one wild point moves the fit little; the scale of the noise is estimated from the residuals
with a prior, so one or two points do not look perfect only because they can be fitted exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fit", "fit_map"]

Array = NDArray[np.float64]

_DOF = 5.0  # Student-t degrees of freedom of the measurement noise
_SCALE_DOF = 4.0  # how many points the prior on the noise scale is worth
_MAX_STEPS = 60
_RETURN_STEPS = 4  # iterations that lead a draw back to the data
_RIDGE = 0.1  # share of the noise variance within which that need not be exact


@dataclass(frozen=True)
class Fit:
    """Posterior mode and its Gaussian approximation."""

    theta: Array
    """Mode, [P]."""
    root: Array
    """Square root of the posterior covariance, [P, P]: ``root @ root.T`` is the covariance."""
    noise: float
    """Scale of one ordinary point's residual (in the units of the observations: a natural logarithm)."""
    residuals: Array
    """Observed minus fitted, [N]."""
    predict: Callable[[Array], Array]
    """Predictions [n, N] of parameters [n, P]."""
    jacobian: Array
    """Of the predictions at the mode, [N, P]."""
    prior_sd: Array
    """Prior standard deviations, [P]."""

    def draws(self, n: int, seed: int = 0) -> Array:
        """``n`` draws of the parameters, [n, P]; the same for the same seed.

        A draw of the Gaussian approximation leaves the curved set of parameters that explain the data; it is led back
        to it: its predictions at the data must be those of the linearised model (randomise, then optimise; Bardsley et
        al. 2014, here with the Jacobian frozen at the mode and the prior as metric).
        """
        theta = self.theta + np.random.default_rng(seed).standard_normal((n, self.theta.size)) @ self.root.T
        mode = self.predict(self.theta[None])[0]
        target = mode + (theta - self.theta) @ self.jacobian.T
        scaled = self.jacobian * self.prior_sd**2
        ridge = _RIDGE * self.noise**2 * np.eye(len(mode))
        gain = np.linalg.solve(scaled @ self.jacobian.T + ridge, scaled)
        for _ in range(_RETURN_STEPS):
            miss = np.clip(target - self.predict(theta), -1.0, 1.0)
            theta = theta + miss @ gain
        return theta


def fit_map(
    predict: Callable[[Array], Array],
    observed: Array,
    weight: Array,
    prior_mean: Array,
    prior_sd: Array,
    noise_prior: float,
) -> Fit:
    """Fit ``observed ~ predict(theta) + noise`` under ``theta ~ N(prior_mean, prior_sd**2)``.

    ``predict`` maps parameters [n, P] to predictions [n, N] (all draws in one call); ``weight`` [N] multiplies each
    point's precision; ``noise_prior`` is the scale expected of one point's residual.
    """
    theta, scale, damping = prior_mean.copy(), noise_prior, 1e-3
    precision = 1.0 / prior_sd**2

    def cost_at(values: Array, at: Array) -> float:
        z2 = weight * (observed - values) ** 2 / scale**2
        return float(0.5 * (_DOF + 1) * np.log1p(z2 / _DOF).sum() + 0.5 * (precision * (at - prior_mean) ** 2).sum())

    for _ in range(_MAX_STEPS):
        fitted, jacobian = _linearise(predict, theta)
        cost, settled = cost_at(fitted, theta), False
        w = _robust_weights(observed - fitted, weight, scale)
        hessian = (jacobian.T * w) @ jacobian + np.diag(precision)
        gradient = (jacobian.T * w) @ (observed - fitted) - precision * (theta - prior_mean)
        while damping < 1e8:
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
            trial = theta + np.clip(step, -1.0, 1.0)
            values = predict(trial[None])[0]
            gain = cost - cost_at(values, trial)
            if gain >= 0:
                break
            damping *= 8.0
        else:
            break
        rescaled = _noise_scale(observed - values, weight, noise_prior)
        settled = gain < 1e-3 and abs(rescaled / scale - 1) < 1e-3
        theta, scale, damping = trial, rescaled, max(damping / 4.0, 1e-9)
        if settled:
            break
    fitted, jacobian = _linearise(predict, theta)
    residual = observed - fitted
    hessian = (jacobian.T * _robust_weights(residual, weight, scale)) @ jacobian + np.diag(precision)
    root = np.linalg.inv(np.linalg.cholesky(hessian)).T
    return Fit(theta, root, scale, residual, predict, jacobian, prior_sd)


def _linearise(predict: Callable[[Array], Array], theta: Array) -> tuple[Array, Array]:
    """Predictions [N] and their Jacobian [N, P] by forward differences, in one vectorised call."""
    h = 1e-6
    values = predict(np.concatenate([theta[None], theta + np.eye(theta.size) * h]))
    return values[0], ((values[1:] - values[0]) / h).T


def _robust_weights(residual: Array, weight: Array, scale: float) -> Array:
    z2 = weight * residual**2 / scale**2
    result: Any = weight / scale**2 * (_DOF + 1.0) / (_DOF + z2)
    return result


def _noise_scale(residual: Array, weight: Array, prior: float) -> float:
    """Scale estimate: a mean of robust squares, shrunk to ``prior`` as by ``_SCALE_DOF`` further points."""
    square = weight * residual**2
    robust = square * (_DOF + 1.0) / (_DOF + square / prior**2)
    return float(np.sqrt((robust.sum() + _SCALE_DOF * prior**2) / (residual.size + _SCALE_DOF)))
