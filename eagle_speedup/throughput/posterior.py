"""Robust maximum a posteriori fit with a Gaussian prior, and draws around it.

All parameters are unconstrained reals (logarithms of positive quantities), so every draw is a physical model. The
likelihood is Student-t, so one wild point moves the fit little. How much a node scatters is estimated as one factor on
the noise and on the spreads of the effects that stand for scatter (of workloads and configurations), with a prior, so
one or two points do not look perfect only because they can be fitted exactly. What few points leave unknown of the
factor widens the intervals, as Student's t does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fit", "Problem", "fit_map", "student_width"]

Array = NDArray[np.float64]

_DOF = 5.0  # Student-t degrees of freedom of the measurement noise
_SCALE_DOF = 6.0  # how many residuals the prior on the scatter is worth
_MAX_STEPS = 60
_START = 5.0  # times the usual scatter, at which a fit begins
_RESTLESS = 1.5  # times the usual scatter, from which on an outlier may be behind it
_UNDECIDED = 2.0  # difference of evidence (of odds, 1 to 7) that decides nothing
_Z90 = 1.6448536269514722
_RETURN_STEPS = 4  # iterations that lead a draw back to the data
_RIDGE = 0.1  # share of the noise variance within which that need not be exact
_ASTRAY = 5.0  # standard deviations by which a draw may exceed the usual misfit


@dataclass(frozen=True)
class Problem:
    """What to fit."""

    predict: Callable[[Array], Array]
    """Predictions [n, N] of parameters [n, P], all draws in one call."""
    observed: Array
    """Measured, [N]."""
    weight: Array
    """Factors on the precision of each, [N]."""
    prior_mean: Array
    """[P]."""
    prior_sd: Array
    """[P]."""
    scatters: NDArray[np.bool_]
    """Parameters whose spread follows the scatter of the node, [P]."""
    noise: float
    """Scale of one ordinary residual (in the units of the observations: a natural logarithm)."""

    def scattered(self, factor: float) -> Problem:
        """The same with another scatter."""
        spread = np.where(self.scatters, factor * self.prior_sd, self.prior_sd)
        return replace(self, prior_sd=spread, noise=factor * self.noise)

    def cost(self, theta: Array) -> Array:
        """Negative log posterior density, up to a constant, [n], of parameters [n, P]."""
        return self.cost_of(self.predict(theta), theta)

    def cost_of(self, values: Array, theta: Array) -> Array:
        """`cost` where the predictions [n, N] are known."""
        square = self.weight * (self.observed - values) ** 2 / self.noise**2
        misfit = 0.5 * (_DOF + 1.0) * np.log1p(square / _DOF).sum(axis=1)
        result: Array = misfit + 0.5 * (((theta - self.prior_mean) / self.prior_sd) ** 2).sum(axis=1)
        return result

    def curvature(self, theta: Array, fitted: Array, jacobian: Array) -> tuple[Array, Array]:
        """Hessian (Gauss-Newton) of the cost [P, P], and its negative gradient [P]."""
        residual, precision = self.observed - fitted, 1.0 / self.prior_sd**2
        w = _robust_weights(self.weight * residual**2 / self.noise**2) * self.weight / self.noise**2
        hessian = (jacobian.T * w) @ jacobian + np.diag(precision)
        return hessian, (jacobian.T * w) @ residual - precision * (theta - self.prior_mean)


@dataclass(frozen=True)
class Fit:
    """Posterior mode and its Gaussian approximation."""

    theta: Array
    """Mode, [P]."""
    root: Array
    """Square root of the posterior covariance, [P, P]: ``root @ root.T`` is the covariance."""
    scatter: float
    """Factor on the noise and on the spreads that stand for scatter; 1 = as the prior expects."""
    wide: float
    """The same for intervals: as much wider as it takes to hold 90 % where ``scatter`` itself is known only roughly."""
    residuals: Array
    """Observed minus fitted, [N]."""
    jacobian: Array
    """Of the predictions at the mode, [N, P]."""
    problem: Problem
    """What was fitted, its scatter as for intervals."""
    evidence: float
    """Negative log of the evidence for this mode, up to a constant."""

    def draws(self, n: int, seed: int = 0) -> Array:
        """``n`` draws of the parameters, [n, P]; the same for the same seed.

        A draw of the Gaussian approximation leaves the curved set of parameters that explain the data; it is led back
        to it: its predictions at the data must be those of the linearised model (randomise, then optimise; Bardsley et
        al. 2014, here with the Jacobian frozen at the mode and the prior as metric).
        """
        predict, size = self.problem.predict, self.theta.size
        theta = self.theta + np.random.default_rng(seed).standard_normal((n, size)) @ self.root.T
        target = self.problem.observed - self.residuals + (theta - self.theta) @ self.jacobian.T
        scaled = self.jacobian * self.problem.prior_sd**2
        ridge = _RIDGE * self.problem.noise**2 * np.eye(len(scaled))
        gain = np.linalg.solve(scaled @ self.jacobian.T + ridge, scaled)
        for _ in range(_RETURN_STEPS):
            theta = theta + np.clip(target - predict(theta), -1.0, 1.0) @ gain
        # Where the curvature is strong the return can lead astray. Twice the rise over the mode is chi-squared.
        rise = 2.0 * (self.problem.cost(theta) - self.problem.cost(self.theta[None]))
        kept = theta[rise < size + _ASTRAY * np.sqrt(2.0 * size)]
        result: Array = np.resize(kept if len(kept) else self.theta, (n, size))
        return result


def fit_map(problem: Problem, start: Array) -> Fit:
    """Fit ``observed ~ predict(theta) + noise``, ``theta ~ N(prior_mean, prior_sd**2)``, and how much both scatter.

    ``start``: parameters [P] to begin from.
    """
    # From a wide scatter down: a point that only looks wild from afar is not given up before the fit comes near it.
    fit = _climb(problem, start, _START)
    if fit.scatter < _RESTLESS:
        return fit
    # But among few points one that is wild keeps the scatter wide, and is followed. From the usual scatter on it is
    # given up. Which of the two it is, a restless node or an outlier, the evidence tells; where it hardly does, an
    # outlier, as that one is named and the others still count.
    calm = _climb(problem, fit.theta, 1.0)
    return calm if calm.evidence < fit.evidence + _UNDECIDED else fit


def _climb(problem: Problem, theta: Array, scatter: float) -> Fit:
    """The mode that is reached from parameters ``theta`` [P] and a ``scatter``."""
    damping, now = 1e-3, problem.scattered(scatter)
    for _ in range(_MAX_STEPS):
        fitted, jacobian = _linearise(now.predict, theta)
        cost = now.cost_of(fitted[None], theta[None])[0]
        hessian, gradient = now.curvature(theta, fitted, jacobian)
        while damping < 1e8:
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
            trial = theta + np.clip(step, -1.0, 1.0)
            values = now.predict(trial[None])
            gain = cost - now.cost_of(values, trial[None])[0]
            if gain >= 0:
                break
            damping *= 8.0
        else:
            break
        factor = _scatter(problem, now, trial, values[0], jacobian, np.asarray(np.linalg.inv(hessian)))
        settled = gain < 1e-3 and abs(factor / scatter - 1) < 1e-3
        theta, scatter, damping, now = trial, factor, max(damping / 4.0, 1e-9), problem.scattered(factor)
        if settled:
            break
    return _approximate(problem, theta, scatter)


def _approximate(problem: Problem, theta: Array, scatter: float) -> Fit:
    """Gaussian approximation around a mode, and by it (Laplace's method) the evidence for the mode."""
    now = problem.scattered(scatter)
    fitted, jacobian = _linearise(now.predict, theta)
    hessian, _ = now.curvature(theta, fitted, jacobian)
    lower = np.linalg.cholesky(hessian)
    # The densities of all that the scatter scales, and its own prior.
    evidence = now.cost_of(fitted[None], theta[None])[0] + np.log(np.diag(lower)).sum()
    evidence += (_scaled(problem) + _SCALE_DOF) * np.log(scatter) + 0.5 * _SCALE_DOF / scatter**2
    wide = scatter * student_width(_freedom(now, np.asarray(np.linalg.inv(hessian)), hessian))
    final = problem.scattered(wide)
    hessian, _ = final.curvature(theta, fitted, jacobian)
    root = np.linalg.inv(np.linalg.cholesky(hessian)).T
    return Fit(theta, root, scatter, wide, problem.observed - fitted, jacobian, final, float(evidence))


def _scaled(problem: Problem) -> int:
    """How many residuals and effects the scatter scales."""
    return int(len(problem.observed) + problem.scatters.sum())


def _freedom(problem: Problem, covariance: Array, hessian: Array) -> float:
    """Degrees of freedom of the estimate of the scatter: those of its prior, and what the points tell beyond the fit.

    Louis (1982): of the information that known residuals and effects would hold, that in their uncertainty is missing.
    """
    fixed = np.where(problem.scatters, 0.0, problem.prior_sd**-2.0)
    missing = covariance @ (hessian - np.diag(fixed))
    return _SCALE_DOF + max(0.0, _scaled(problem) - float(np.einsum("ij,ji->", missing, missing)))


def student_width(freedom: float) -> float:
    """Half-width of a 90 % interval of Student's t, in that of a normal (Cornish-Fisher: within 0.3 % from 3 on)."""
    z, v = _Z90, 4.0 * freedom
    terms = (z**3 + z) / v + (5 * z**5 + 16 * z**3 + 3 * z) / (6 * v**2)
    return 1.0 + (terms + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (6 * v**3)) / z


def _linearise(predict: Callable[[Array], Array], theta: Array) -> tuple[Array, Array]:
    """Predictions [N] and their Jacobian [N, P] by forward differences, in one vectorised call."""
    h = 1e-6
    values = predict(np.concatenate([theta[None], theta + np.eye(theta.size) * h]))
    return values[0], ((values[1:] - values[0]) / h).T


def _robust_weights(square: Array) -> Array:
    """Weights of Student-t residuals from their squares in units of the scale: 1 and more near 0, falling beyond."""
    result: Any = (_DOF + 1.0) / (_DOF + square)
    return result


def _scatter(prior: Problem, now: Problem, theta: Array, fitted: Array, jacobian: Array, covariance: Array) -> float:
    """The factor of `Fit.scatter`: one step of expectation maximisation, shrunk to 1 as by ``_SCALE_DOF`` residuals.

    Expected squares, not those of the mode: what the points do not determine counts as the prior has it.
    """
    residual = prior.observed - fitted
    uncertain = np.einsum("np,pq,nq->n", jacobian, covariance, jacobian)
    robust = _robust_weights(now.weight * residual**2 / now.noise**2)
    squares = robust * now.weight * (residual**2 + uncertain) / prior.noise**2
    effects = (theta - prior.prior_mean) ** 2 + np.diag(covariance)
    total = squares.sum() + (effects / prior.prior_sd**2)[prior.scatters].sum() + _SCALE_DOF
    return float(np.sqrt(total / (_scaled(prior) + _SCALE_DOF)))
