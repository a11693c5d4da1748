"""The hold-out check: scores by hand, and that a model never chooses the prior it is judged by."""

from dataclasses import replace
from typing import Any

import pytest

from eagle_speedup.throughput import MeasuredPoint, Prior
from eagle_speedup.throughput.backtest import Prediction, Row, Series
from eagle_speedup.throughput.holdout import RANGES, hold_out, interval_score, random_priors


def prediction(lo, value, hi, truth=100.0):
    row = Row(MeasuredPoint(3, truth, accept_length=2.0), MeasuredPoint(0, 80.0), "d")
    return Prediction("B", "s", row, value, lo, hi, value, 0, False)


@pytest.mark.parametrize(
    ("lo", "hi", "score"),
    [(95.0, 105.0, 0.10), (101.0, 111.0, 0.10 + 20 * 0.01), (80.0, 97.0, 0.17 + 20 * 0.03)],
)
def test_interval_score_by_hand(lo, hi, score):
    assert interval_score(prediction(lo, (lo + hi) / 2, hi)) == pytest.approx(score)


def test_random_priors_are_blind_and_repeatable():
    priors = random_priors(20)
    assert priors == random_priors(20) and priors != random_priors(20, seed=1)
    for name, (low, high) in RANGES.items():
        values = [getattr(p, name) for p in priors]
        assert low <= min(values) < max(values) <= high
        assert low < getattr(Prior(), name) < high  # the shipped constant lies inside, not at an end
    fixed: dict[str, Any] = dict.fromkeys(RANGES, 1.0)
    assert {replace(p, **fixed) for p in priors} == {replace(Prior(), **fixed)}


def series_of(model, cost):
    """Chains of depth 1..6 whose rounds cost ``1 + cost * depth`` steps; one round of all is 10 ms."""
    base = MeasuredPoint(0, 100.0, workload="w")
    rows = []
    for depth in (1, 2, 4, 6):
        point = MeasuredPoint(depth, 100.0 * 2.0 / (1 + cost * depth), accept_length=2.0, workload="w")
        rows.append(Row(point, base, "d"))
    return Series(model, (model,), tuple(rows))


def test_a_model_is_judged_by_the_prior_that_serves_the_others():
    cheap, dear = Prior(draft_share=0.01, elasticity=0.02), Prior(draft_share=0.3, elasticity=0.4)
    series = [series_of("a", 0.02), series_of("b", 0.02), series_of("odd", 0.45)]
    found = hold_out(series, [dear, cheap], ("one",))
    assert found.chosen["odd"] == 1
    odd = [series_of("a", 0.02), series_of("odd", 0.45), series_of("odder", 0.5)]
    assert hold_out(odd, [dear, cheap], ("one",)).chosen["a"] == 0  # though the other one would serve it
    assert len(found.predictions) == 3 * 4 * 3
    assert found.spread[0] < found.spread[1]
