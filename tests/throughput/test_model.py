"""The throughput model: fits, intervals, decisions."""

import dataclasses
import itertools
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_speedup.errors import InputError
from eagle_speedup.estimate import Estimate
from eagle_speedup.throughput import MeasuredPoint, calibrate

# vllm-project/vllm#20780: Llama-3.1-8B, batch 1, MT-Bench, no speculation 7.07 ms per token
DEPTHS = (2, 3, 4, 5, 6, 7)
ACCEPT_LENGTH = (2.36, 2.79, 3.08, 3.32, 3.46, 3.54)
TOKEN_MS = (4.32, 4.09, 4.05, 4.13, 4.2, 4.29)
BASELINE = MeasuredPoint(0, 1000 / 7.07)
POINTS = tuple(
    MeasuredPoint(d, 1000 / t, accept_length=a) for d, a, t in zip(DEPTHS, ACCEPT_LENGTH, TOKEN_MS, strict=True)
)
BY_DEPTH = dict(zip(DEPTHS, ACCEPT_LENGTH, strict=True))


@pytest.mark.parametrize(("points", "worst"), [(POINTS, 0.022), ((POINTS[0], POINTS[5]), 0.045)])
def test_published_depth_sweep_is_reproduced(points, worst):
    model = calibrate([BASELINE, *points])
    for d, a, t in zip(DEPTHS, ACCEPT_LENGTH, TOKEN_MS, strict=True):
        answer = model.tok_s(a, d)
        assert answer.value == pytest.approx(1000 / t, rel=worst)
        assert answer.lo <= 1000 / t <= answer.hi
    served = dict(zip(DEPTHS, TOKEN_MS, strict=True))
    assert served[model.best_depth(BY_DEPTH)] <= 1.02 * min(TOKEN_MS)


def test_published_speedups():
    model = calibrate([BASELINE, *POINTS])
    got = [model.speedup(a, d).value for d, a in BY_DEPTH.items()]
    assert got == pytest.approx([1.637, 1.729, 1.746, 1.712, 1.683, 1.648], rel=0.022)


def test_more_points_narrow_the_interval():
    widths = [calibrate([BASELINE, *POINTS[:n]]).tok_s(3.3, 5).half_width for n in (0, 1, 2, 6)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 5 * widths[3]


def test_one_wild_point_moves_the_fit_little_and_is_named():
    wild = MeasuredPoint(4, 2 * 1000 / 4.05, accept_length=3.08)
    clean, dirty = calibrate([BASELINE, *POINTS]), calibrate([BASELINE, *POINTS, wild])
    assert dirty.round_ms(4).value == pytest.approx(clean.round_ms(4).value, rel=0.03)
    assert [w for w in dirty.warnings if w.startswith("outlier: depth 4, batch 1")]
    assert not [w for w in clean.warnings if w.startswith("outlier")]


SIX = [MeasuredPoint(0, 90.0)] + [
    MeasuredPoint(d, rate, accept_length=al)
    for d, rate, al in ((1, 108.0, 1.6), (2, 118.0, 2.0), (3, 119.0, 2.3), (4, 118.0, 2.5), (5, 113.0, 2.6))
]


@pytest.mark.parametrize(("wild", "factor"), [(3, 1.5), (3, 0.6), (4, 1.5), (5, 1.5)])
def test_among_few_points_a_wild_one_is_no_restless_node(wild, factor):
    points = [dataclasses.replace(p, tok_s=cast(float, p.tok_s) * factor) if p.depth == wild else p for p in SIX]
    clean, model = calibrate(SIX), calibrate(points)
    assert [w for w in model.warnings if w.startswith("outlier")] == [w for w in model.warnings if f"depth {wild}" in w]
    assert not [w for w in model.warnings if "cliff" in w or "scatter" in w]
    al = SIX[wild].accept_length
    assert al is not None
    answer = model.tok_s(al, wild)
    assert answer.value == pytest.approx(clean.tok_s(al, wild).value, rel=0.06)
    assert answer.lo < clean.tok_s(al, wild).value < answer.hi


def test_a_slow_deepest_chain_may_be_a_cliff():
    model = calibrate([*SIX[:5], dataclasses.replace(SIX[5], tok_s=70.0)])
    assert "cliff suspected between 5 and 6 tokens per step" in model.warnings


def test_two_restless_points_say_that_the_node_scatters():
    factors = {1: 0.75, 2: 1.3, 3: 0.8, 4: 1.35, 5: 0.9}
    points = [dataclasses.replace(p, tok_s=cast(float, p.tok_s) * factors.get(p.depth or 0, 1.0)) for p in SIX]
    model = calibrate(points)
    assert [w for w in model.warnings if "scatter" in w]
    answer = model.tok_s(2.3, 3)
    assert answer.half_width > 0.2 * answer.value


@pytest.mark.parametrize("noise", [0.01, 0.04])
def test_runs_of_one_request_that_vary_stay_inside(noise):
    """The first node's runs at concurrency 1 vary by 4 % and more, which two or three points cannot show."""
    inside = []
    for seed in range(25):
        rng = np.random.default_rng([11, seed])
        share, over = 0.04 * np.exp(0.5 * rng.standard_normal(2)) * (1, 3)

        def measure(depth, share=share, over=over, rng=rng):
            al = 1 + sum(0.65**i for i in range(1, depth + 1))
            ms = 10 * (1 + 0.02 * depth + (over + share * depth if depth else 0))
            return MeasuredPoint(depth, 1000 * al / ms * np.exp(noise * rng.standard_normal()), accept_length=al)

        for known in ((0, 3), (0, 2, 5)):
            model = calibrate([measure(d) for d in known])
            for truth in map(measure, (1, 3, 5)):
                answer = model.tok_s(truth.accept_length, truth.depth)
                inside.append(answer.lo <= truth.tok_s <= answer.hi)
    assert np.mean(inside) >= 0.85


def test_unused_points_and_missing_baseline_are_said():
    model = calibrate([POINTS[0], MeasuredPoint(3, 240.0)])
    assert "1 point(s) without accept_length and step_ms were not used" in model.warnings
    assert any(w.startswith("no baseline") for w in model.warnings)


def test_step_ms_needs_no_accept_length():
    model = calibrate([MeasuredPoint(0, None, step_ms=10.0), MeasuredPoint(3, None, step_ms=16.0)])
    assert model.round_ms(3).value == pytest.approx(16.0, rel=0.02)
    assert model.breakeven(3).value == pytest.approx(1.6, rel=0.03)


def test_slow_rounds_mean_do_not_speculate():
    model = calibrate([MeasuredPoint(0, 222.47), MeasuredPoint(3, 159.78, accept_length=1.86)])
    assert model.best_depth({3: 1.86, 7: 2.0}) == 0
    assert model.speedup(1.86, 3).hi < 1


def test_draws_agree_with_the_estimates_and_repeat():
    model = calibrate([BASELINE, *POINTS[:2]])
    rounds, steps = model.round_draws([1, 5], n=2000)
    again, _ = model.round_draws([1, 5], n=2000)
    assert rounds.shape == (2000, 2) and steps.shape == (2000,)
    np.testing.assert_array_equal(rounds, again)
    assert np.median(rounds[:, 1]) == pytest.approx(model.round_ms(5).value, rel=0.02)
    apart = np.std(np.log(rounds[:, 1] / rounds[:, 0]))
    assert apart < np.hypot(*np.std(np.log(rounds), axis=0)) * 1.5


def test_uncertain_accept_length_widens_tok_s():
    model = calibrate([BASELINE, *POINTS])
    sure, unsure = model.tok_s(3.0, 4), model.tok_s(Estimate(3.0, 2.6, 3.4), 4)
    assert sure.value == unsure.value
    assert unsure.half_width > 1.5 * sure.half_width


def test_an_accept_length_of_unknown_spread_may_be_any_possible_one():
    model = calibrate([BASELINE, *POINTS])
    unknown = model.tok_s(Estimate(2.0, np.nan, np.nan), 3)
    assert unknown == model.tok_s(Estimate(2.0, 1.0, 4.0), 3)
    assert unknown.lo < model.tok_s(1.0, 3).value and model.tok_s(4.0, 3).value < unknown.hi


def test_range_warnings():
    model = calibrate([BASELINE, *POINTS])
    assert model.range_warnings(4) == ()
    assert model.range_warnings(9) == (
        "depth 9 is outside the calibrated range 2..7",
        "tokens per step 10 is outside the calibrated range 1..8",
    )
    assert model.range_warnings(4, batch=8) == (
        "batch 8 is outside the calibrated range 1..1",
        "tokens per step 40 is outside the calibrated range 1..8",
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.tok_s(0.5, 3), "accept_length = 0.5: must be a finite number >= 1 (bonus token included)"),
        (lambda m: m.tok_s("x", 3), "accept_length = 'x': must be a finite number >= 1 (bonus token included)"),
        (lambda m: m.round_ms(-1), "depth = -1: must be a whole number >= 0"),
        (lambda m: m.round_ms(3, batch=0), "batch = 0: must be a whole number >= 1"),
        (lambda m: m.step_ms(context_tokens=-5), "context_tokens = -5: must be a number in [0, 1e9) or null"),
        (
            lambda m: calibrate([]),
            "points = 0: must hold a baseline, or a point with accept_length or step_ms; no figure is invented: serve "
            "without speculation and at two depths (say 1 and 4), at the batch sizes that matter, and give the logs to "
            "eagle-speedup calibrate",
        ),
        (lambda m: m.grid([], [1]), "depths = []: must hold at least one value"),
        (lambda m: m.grid([1], []), "batches = []: must hold at least one value"),
        (lambda m: calibrate(cast(Any, BASELINE)), "points = 'MeasuredPoint': must be a sequence of MeasuredPoint"),
        (lambda m: calibrate(cast(Any, [3])), "points[0] = 3: must be a MeasuredPoint"),
        (lambda m: calibrate([BASELINE], prior=cast(Any, "x")), "prior = 'x': must be a Prior or null"),
        (
            lambda m: m.best_depth(cast(Any, [1.6]), 1),
            "accept_length_by_depth = [1.6]: must map depths to accept lengths, such as {1: 1.6, 3: 2.2}",
        ),
        (
            lambda m: m.advice(cast(Any, [1.6])),
            "options = [1.6]: must be a list of Option, or map depths to accept lengths",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError) as error:
        call(calibrate([BASELINE]))
    assert str(error.value) == message


point = st.builds(
    lambda depth, rate, share, batch: MeasuredPoint(
        depth, rate, accept_length=1 + share * depth if depth else None, batch=batch
    ),
    st.integers(0, 8),
    st.floats(5.0, 5000.0),
    st.floats(0.0, 1.0),
    st.sampled_from([1, 2, 8, 64]),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(point, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_points_give_positive_ordered_monotone_answers(points, random):
    model = calibrate(points)
    turned = list(points)
    random.shuffle(turned)
    assert calibrate(turned).fingerprint == model.fingerprint
    answers = [model.tok_s(a, 5, batch=8) for a in (1.0, 2.0, 3.5, 6.0)]
    for lower, higher in itertools.pairwise(answers):
        assert 0 < lower.value < higher.value
    for answer in (*answers, model.round_ms(3), model.step_ms(4), model.breakeven(2)):
        assert 0 < answer.lo <= answer.value <= answer.hi < np.inf
    # At depths that were not measured; a measured one may deviate by its own scatter, as far as points contradict.
    assert model.round_ms(16).value > model.round_ms(9).value > model.step_ms().value


def test_an_unrecorded_context_among_recorded_ones_is_taken_at_the_lowest():
    """vLLM's log holds no context, its client's result does: of one run they must not differ by the attention."""
    mixed = calibrate([MeasuredPoint(0, 92.4), MeasuredPoint(3, 122.0, 2.278, context_tokens=16000)])
    whole = calibrate([MeasuredPoint(0, 92.4, context_tokens=16000), *mixed.points[1:]])
    assert mixed.speedup(2.278, 3) == whole.speedup(2.278, 3)
    assert mixed.speedup(2.278, 3).value == pytest.approx(122 / 92.4, rel=0.03)
    said = "context_tokens was recorded for 1 of 2 points: the others are taken at the lowest, 16000"
    assert [w for w in mixed.warnings if w.startswith(said)] and "context" not in " ".join(whole.warnings)


HINT = "if tok_s is that of one user, say per_user: true"


def test_figures_of_one_user_taken_for_totals_are_a_contradiction():
    rates = {1: (92.0, 122.0), 8: (45.0, 61.0)}

    def node(**how):
        return calibrate(
            [
                MeasuredPoint(d, rates[b][i], al, b, **how)
                for b in rates
                for i, (d, al) in enumerate([(0, None), (3, 2.278)])
            ]
        )

    assert node().inconsistent == "batch 8 gives 0.50 times the tok/s of batch 1 in all at depth 3: " + HINT
    assert node(per_user=True).inconsistent is None


def test_a_wall_clock_beside_the_engine_s_own_time_is_told_to_be_left_out():
    points = [MeasuredPoint(0, 30.0, step_ms=10.8), MeasuredPoint(3, 37.0, 2.3, step_ms=18.7)]
    (warning,) = [w for w in calibrate(points).warnings if "decoding" in w]
    assert warning.startswith("decoding takes 30% of the time that tok_s says")  # 18.7 of 2.3 * 1000 / 37 = 62.2 ms
    near = [MeasuredPoint(0, 90.0, step_ms=10.8), MeasuredPoint(3, 120.0, 2.3, step_ms=18.7)]
    assert not [w for w in calibrate(near).warnings if "decoding" in w]
