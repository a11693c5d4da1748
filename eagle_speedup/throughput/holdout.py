"""Does the back-test flatter the prior? The prior chosen again without the models it is then judged on.

The constants of `Prior` were rounded from fits to the very series that the back-test predicts. Here they are drawn
anew, blindly, from wide ranges; for every model the draw is taken that predicts the OTHER models best, and only its
predictions for the model that was left out count. Figures close to those of the shipped constants say that the
constants are no secret knowledge of the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .backtest import PROTOCOLS, Prediction, Series, backtest
from .prior import Prior

__all__ = ["RANGES", "HoldOut", "hold_out", "interval_score", "random_priors"]

RANGES: Mapping[str, tuple[float, float]] = {
    "elasticity": (0.05, 0.35),
    "draft_share": (0.015, 0.10),
    "overhead_share": (0.04, 0.35),
    "outside_share": (0.0015, 0.02),
    "tree_factor": (1.0, 1.15),
    "workload_spread": (0.005, 0.03),
    "config_spread": (0.008, 0.05),
    "noise": (0.004, 0.025),
    "noise_single": (0.01, 0.06),
}
"""Constants that are drawn, log-uniformly: a factor of 5 to 10 from end to end, where a share or a scatter may lie."""

_ALPHA = 0.10  # the intervals are meant to miss so often


@dataclass(frozen=True)
class HoldOut:
    """Predictions by priors that never saw the model they predict."""

    predictions: tuple[Prediction, ...]
    """Of all series, each by the prior chosen without its model."""
    chosen: Mapping[str, int]
    """Model -> number of the draw that predicts the others best."""
    spread: tuple[float, float]
    """Lowest and highest score over all draws: how much the constants matter at all."""


def random_priors(count: int, seed: int = 0) -> list[Prior]:
    """``count`` priors with the constants of ``RANGES`` drawn log-uniformly, the others as shipped."""
    rng = np.random.default_rng(seed)
    bounds = {name: np.log(ends) for name, ends in RANGES.items()}
    draws = [{name: float(np.exp(rng.uniform(*ends))) for name, ends in bounds.items()} for _ in range(count)]
    return [Prior(**drawn) for drawn in draws]  # type: ignore[arg-type]


def interval_score(prediction: Prediction) -> float:
    """Width of the 90 % interval plus 2 / 0.1 times the miss, relative to the truth; lower is better.

    A proper score (Gneiting and Raftery 2007, section 6.2): neither wide nor overconfident intervals pay.
    """
    p = prediction
    miss = max(0.0, p.lo - p.truth, p.truth - p.hi)
    return (p.hi - p.lo + 2.0 / _ALPHA * miss) / p.truth


def hold_out(series: Sequence[Series], priors: Sequence[Prior], protocols: Sequence[str] = PROTOCOLS) -> HoldOut:
    """Back-test every model by the one of ``priors`` that has the lowest mean score on the other models.

    Scores are averaged within a model and protocol, then over models, then over protocols, so that neither a model nor
    a protocol with many series decides alone. Models that the tool flags as inconsistent choose nothing.
    """
    model_of = {s.id: s.node[0].rsplit("/", 1)[-1] for s in series}  # with or without the name of its maker
    runs = [backtest(series, protocols, prior) for prior in priors]
    scores = [_scores(run, model_of) for run in runs]
    everything = [_mean(found, None) for found in scores]
    chosen = {}
    for model in dict.fromkeys(model_of.values()):
        chosen[model] = int(np.argmin([_mean(found, model) for found in scores]))
    kept = [p for i, run in enumerate(runs) for p in run if chosen[model_of[p.series]] == i]
    return HoldOut(tuple(kept), chosen, (min(everything), max(everything)))


def _scores(predictions: Sequence[Prediction], model_of: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """Mean score by protocol and model."""
    found: dict[tuple[str, str], list[float]] = {}
    for p in predictions:
        if not p.flagged:
            found.setdefault((p.protocol, model_of[p.series]), []).append(interval_score(p))
    return {key: float(np.mean(values)) for key, values in found.items()}


def _mean(scores: Mapping[tuple[str, str], float], left_out: str | None) -> float:
    """Mean over protocols of the mean over models, without one model."""
    by_protocol: dict[str, list[float]] = {}
    for (protocol, model), score in scores.items():
        if model != left_out:
            by_protocol.setdefault(protocol, []).append(score)
    return float(np.mean([np.mean(values) for values in by_protocol.values()])) if by_protocol else 0.0
