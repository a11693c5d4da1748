"""The learning curve: literal histories, limits, and coverage on simulated trainings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.estimate import Estimate
from eagle_speedup.projection import AcceptLengthCurve
from eagle_speedup.training import forecast_curve, forecast_final


def measured(values, half_width=0.02):
    return [Estimate.around(v, half_width) for v in values]


def test_one_validation_gives_the_prior_and_says_so_by_its_width():
    # The case that started the project: 2.75 at the end of epoch 1 of 5, 3.0 to 3.5 hoped for.
    end = forecast_final([1000], measured([2.75], 0.05), 5000, ceiling=6.0)
    assert 3.0 < end.value < 3.5
    assert end.lo < 2.85 and end.hi > 3.8
    assert end.lo > 2.6  # nothing says it will fall


def test_a_curve_with_a_law_is_continued():
    steps = [100, 200, 400, 700, 1000]
    end = forecast_final(steps, measured([3 - 10 * s**-0.5 for s in steps], 0.005), 2000)
    assert end.value == pytest.approx(3 - 10 * 2000**-0.5, abs=0.02)
    assert end.lo <= 3 - 10 * 2000**-0.5 <= end.hi
    assert end.hi - end.lo < 0.25


def test_flat_stays_flat_and_is_sure_of_it():
    end = forecast_final([100, 200, 400, 700], measured([1.6] * 4), 1000)
    assert end.value == pytest.approx(1.6, abs=0.01)
    assert end.hi < 1.64


def test_a_falling_history_forecasts_no_gain_and_no_nonsense():
    end = forecast_final([8, 23, 46, 76], measured([3.28, 3.34, 3.34, 3.24]), 100)
    assert 3.2 < end.value < 3.31 and end.hi < 3.4


def test_more_validations_and_a_nearer_end_narrow_the_band():
    steps = [100, 200, 400, 700]
    values = measured([1.2, 1.4, 1.55, 1.63])
    widths = [forecast_final(steps[:n], values[:n], 1000).half_width for n in (1, 2, 4)]
    assert widths[0] > 2 * widths[1] and widths[1] > widths[2]
    ends = [forecast_final(steps, values, end) for end in (800, 1500, 10_000)]
    assert [e.half_width for e in ends] == sorted(e.half_width for e in ends)
    assert [e.value for e in ends] == sorted(e.value for e in ends)


def test_no_budget_left_is_the_last_validation():
    values = measured([1.2, 1.4])
    assert forecast_final([10, 20], values, 20) is values[1]
    assert forecast_final([10, 20], values, 5) is values[1]


def test_what_can_not_be_used_is_left_out():
    nothing = Estimate(math.nan, math.nan, math.nan)
    some = measured([1.2, 1.4])
    assert forecast_final([0, 10, 15, 20], [some[0], some[0], nothing, some[1]], 40) == forecast_final(
        [10, 20], some, 40
    )
    assert math.isnan(forecast_final([0], some[:1], 40).value)
    one_block = Estimate(1.5, math.nan, math.nan)
    assert forecast_final([10], [one_block], 40).half_width > forecast_final([10], measured([1.5]), 40).half_width
    perfect = forecast_final([10, 20], [Estimate.exact(4.0)] * 2, 40, ceiling=4.0)
    assert perfect.value == perfect.hi == 4.0


@pytest.mark.parametrize(
    ("steps", "lengths", "end", "field"),
    [
        ([1, 2], [1.5], 10, "steps"),
        ([2, 2], [1.5, 1.5], 10, "steps"),
        ([1], [1.5], math.inf, "final_step"),
    ],
)
def test_bad_input_is_refused(steps, lengths, end, field):
    with pytest.raises(InputError, match=field):
        forecast_final(steps, measured(lengths), end)


def test_a_curve_over_depth_can_be_projected():
    curves = [AcceptLengthCurve.from_full_acc(f) for f in ([0.6, 0.3], [0.7, 0.4])]
    end = forecast_curve([100, 200], curves, 1000, max_depth=3)
    assert (end.max_depth, end.ttt_steps, end.final_step) == (3, 2, 1000)
    assert end.accept_length(1).value < end.accept_length(2).value < end.accept_length(3).value
    assert end.accept_length(1).hi <= 2.0  # the ceiling: depth + 1
    with pytest.raises(InputError):
        end.accept_length(4)


def simulated_training(generator):
    """(steps, estimates, end, truth): power laws, exponentials and logarithms, with shared and own sampling noise."""
    end = 5000
    validations = int(generator.integers(2, 9))
    steps = np.linspace(end / 10, end * generator.uniform(0.3, 0.8), validations)
    level, gain = generator.uniform(1.8, 3.5), generator.uniform(0.2, 1.0)
    rate = math.exp(math.log(0.5) + 0.5 * generator.standard_normal())
    shapes = (
        lambda s: level - gain * (s / 1000) ** -rate,
        lambda s: level - gain * np.exp(-s / 1500),
        lambda s: level + 0.3 * gain * np.log(s / end),
    )
    truth = shapes[int(generator.integers(3))]
    error = 0.012 * level
    noise = error * (0.9 * generator.standard_normal() + 0.4 * generator.standard_normal(validations))
    return steps.tolist(), measured(np.maximum(truth(steps) + noise, 1), 1.645 * error), end, float(truth(end))


def test_the_band_covers_simulated_trainings_as_often_as_it_says():
    generator = np.random.default_rng(7)
    trainings = [simulated_training(generator) for _ in range(400)]
    ends = [forecast_final(steps, values, end) for steps, values, end, _ in trainings]
    covered = np.mean([e.lo <= truth <= e.hi for e, (_, _, _, truth) in zip(ends, trainings, strict=True)])
    assert 0.85 <= covered <= 0.96
    # The tempting answer, the last validation's own interval, covers far less.
    naive = np.mean([values[-1].lo <= truth <= values[-1].hi for _, values, _, truth in trainings])
    assert naive < 0.6
