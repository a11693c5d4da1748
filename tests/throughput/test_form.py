"""What the physical form must get right: contexts, workloads, trees, tokens per step, grids."""

import math

import numpy as np
import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.throughput import MeasuredPoint, Option, Prior, calibrate, load_calibration
from eagle_speedup.throughput.posterior import student_width

# sgl-project/SpecForge docs/spec_bundle, Qwen3-30B-A3B-Instruct-2507 on H200, batch 8: baseline, then tok/s and accept
# length of chains of depth 3, 5, 7
MATH = (1468.95, {3: (3022.3, 3.4018), 5: (3458.77, 4.5001), 7: (3636.15, 5.293)})
GSM8K = (1071.29, {3: (1488.36, 2.6401), 5: (1499.62, 3.0113), 7: (1438.4, 3.1489)})


def points_of(name, data):
    base, chains = data
    yield MeasuredPoint(0, base, batch=8, workload=name)
    for depth, (rate, al) in chains.items():
        yield MeasuredPoint(depth, rate, accept_length=al, batch=8, workload=name)


def test_a_workload_that_spends_time_outside_decoding_is_seen_in_its_own_baseline():
    model = calibrate([*points_of("math", MATH), MeasuredPoint(0, GSM8K[0], batch=8, workload="gsm8k")])
    for depth, (rate, al) in GSM8K[1].items():
        answer = model.tok_s(al, depth, batch=8, workload="gsm8k")
        assert answer.value == pytest.approx(rate, rel=0.06)
        assert answer.lo < rate < answer.hi
        base, chains = MATH
        simple = al * GSM8K[0] / (chains[depth][1] * base / chains[depth][0])
        assert abs(simple / rate - 1) > 0.09  # the rule that scales the baseline is off by 10 % and more


def test_an_engine_timed_workload_has_nothing_outside_decoding():
    points = [MeasuredPoint(0, None, step_ms=10.0), MeasuredPoint(1, None, step_ms=13.0)]
    points += [MeasuredPoint(3, None, step_ms=15.0), MeasuredPoint(5, None, step_ms=17.0)]
    model = calibrate(points)
    assert model.round_ms(3).value == pytest.approx(15.0, rel=0.005)
    assert model.tok_s(2.4, 3).value == pytest.approx(1000 * 2.4 / model.round_ms(3).value, rel=1e-3)


@pytest.mark.parametrize("name", ["kimi_k2_6_rtx_pro_6000_dcp1", "kimi_k2_6_rtx_pro_6000_dcp2"])
def test_one_curve_fits_batch_1_to_128_and_context_0_to_128k(name):
    calibration = load_calibration(name)
    for point in calibration.points:
        al = point.accept_length or 1.0
        answer = calibration.model.tok_s(al, point.depth or 0, point.batch, point.context_tokens)
        assert answer.value == pytest.approx(point.tok_s, rel=0.09), point


def test_no_context_means_the_lowest_calibrated_one():
    model = load_calibration("kimi_k2_6_rtx_pro_6000_dcp1").model
    assert model.step_ms(4) == model.step_ms(4, context_tokens=0)
    assert model.step_ms(4, context_tokens=65536).value > 1.4 * model.step_ms(4).value


def test_verification_is_read_on_the_axis_of_tokens_per_step():
    # plain steps at batch 1..64 alone: a round of batch 16, depth 3 verifies the 64 tokens of a batch-64 step
    plain = [MeasuredPoint(0, 1000 * b / (10 * b**0.4), batch=b) for b in (1, 2, 4, 8, 16, 32, 64)]
    model = calibrate(plain)
    assert model.round_ms(3, batch=16).value > model.step_ms(64).value
    assert model.round_ms(3, batch=16).value < 1.8 * model.step_ms(64).value
    flat = calibrate([MeasuredPoint(0, 1000 * b / 10, batch=b) for b in (1, 2, 4, 8, 16, 32, 64)])
    assert flat.breakeven(3, batch=16).value < 0.8 * model.breakeven(3, batch=16).value


def test_trees_verify_their_nodes():
    model = load_calibration("llama_3_1_8b_h200").model
    small = model.tok_s(3.0, 5, topk=3, num_draft_tokens=6, workload="gpqa")
    large = model.tok_s(3.0, 5, topk=3, num_draft_tokens=48, workload="gpqa")
    assert large.value < small.value < model.tok_s(3.0, 5, workload="gpqa").value
    with pytest.raises(InputError, match=r"num_draft_tokens = None: must be given for a tree"):
        model.tok_s(3.0, 5, topk=3)


def test_intervals_widen_away_from_the_points():
    model = calibrate([MeasuredPoint(0, 100.0), MeasuredPoint(3, 150.0, accept_length=2.4)])

    def width(answer):
        return answer.half_width / answer.value

    assert width(model.tok_s(2.4, 3)) < width(model.tok_s(2.4, 5)) < width(model.tok_s(2.4, 12))
    assert width(model.tok_s(2.4, 3)) < width(model.tok_s(2.4, 3, batch=16)) < width(model.tok_s(2.4, 3, batch=256))


def test_a_cliff_is_suspected_where_rounds_jump_though_no_plain_step_shows_it():
    # rounds of depth 3 at batch 4, 8, 16 verify 16, 32, 64 tokens; another kernel takes over beyond 32
    rounds = {4: 20.0, 8: 22.0, 16: 60.0}
    points = [MeasuredPoint(0, 50.0), *(MeasuredPoint(3, None, batch=b, step_ms=ms) for b, ms in rounds.items())]
    assert "cliff suspected between 32 and 64 tokens per step" in calibrate(points).warnings
    # and over the depth at one batch size: 2, 4 and 8 tokens
    depths = {1: 20.0, 3: 23.0, 7: 60.0}
    points = [MeasuredPoint(0, 50.0), *(MeasuredPoint(d, None, step_ms=ms) for d, ms in depths.items())]
    assert "cliff suspected between 4 and 8 tokens per step" in calibrate(points).warnings
    even = [MeasuredPoint(0, 50.0), *(MeasuredPoint(d, None, step_ms=20.0 + 3 * d) for d in (1, 3, 7))]
    assert not [w for w in calibrate(even).warnings if "cliff" in w]


def test_a_step_that_falls_again_is_no_cliff():
    times = {1: 10.0, 2: 10.5, 4: 11.0, 8: 24.0, 16: 12.0}
    for faulty in (times, times | {8: 5.0}):
        model = calibrate([MeasuredPoint(0, 1000 * b / t, batch=b) for b, t in faulty.items()])
        assert not [w for w in model.warnings if "cliff" in w]


@pytest.mark.parametrize(("freedom", "quantile"), [(3, 2.3534), (6, 1.9432), (10, 1.8125), (30, 1.6973), (1e9, 1.6449)])
def test_half_widths_where_the_scatter_is_known_roughly_only(freedom, quantile):
    assert student_width(freedom) * 1.6449 == pytest.approx(quantile, rel=0.003)  # tables of Student's t, 95 %


def test_a_cliff_is_suspected_where_the_baselines_jump():
    times = {1: 10.0, 2: 10.5, 4: 11.0, 8: 24.0, 16: 25.0}
    model = calibrate([MeasuredPoint(0, 1000 * b / t, batch=b) for b, t in times.items()])
    assert "cliff suspected between 4 and 8 tokens per step" in model.warnings
    assert model.step_ms(4).value == pytest.approx(11.0, rel=0.05)
    assert model.step_ms(8).value == pytest.approx(24.0, rel=0.05)


def test_grid_equals_the_single_answers():
    model = load_calibration("kimi_k2_6_rtx_pro_6000_dcp1").model
    by_depth = {1: 1.6, 3: 2.3, 7: 2.6}
    grid = model.grid([1, 3, 7], [4, 1, 32], accept_length=by_depth)
    assert grid.tok_s.value.shape == (3, 3)
    assert grid.depths.tolist() == [1, 3, 7] and grid.batches.tolist() == [4, 1, 32]
    for i, depth in enumerate(by_depth):
        for j, batch in enumerate((4, 1, 32)):
            assert grid.tok_s.at(i, j).value == pytest.approx(model.tok_s(by_depth[depth], depth, batch).value)
            assert grid.tok_s.at(i, j).lo == pytest.approx(model.tok_s(by_depth[depth], depth, batch).lo)
            assert grid.round_ms.at(i, j).hi == pytest.approx(model.round_ms(depth, batch).hi)
            assert grid.breakeven.at(i, j).value == pytest.approx(model.breakeven(depth, batch).value)
            assert grid.speedup.at(i, j).value == pytest.approx(model.speedup(by_depth[depth], depth, batch).value)


def test_a_large_grid_is_ordered_and_finite():
    grid = load_calibration("kimi_k2_5_origin").model.grid(range(1, 17), range(1, 257), accept_length=[2.0] * 16)
    for band in (grid.tok_s, grid.round_ms, grid.breakeven, grid.speedup):
        assert band.value.shape == (16, 256)
        assert np.all((band.lo <= band.value) & (band.value <= band.hi) & (band.lo > 0) & np.isfinite(band.hi))
    assert np.all(np.diff(grid.round_ms.value, axis=0) > 0)


def test_grid_refusals():
    model = calibrate([MeasuredPoint(0, 100.0)])
    with pytest.raises(InputError, match=r"accept_length = 1: must hold one value per depth, 2"):
        model.grid([1, 2], accept_length=[2.0])
    with pytest.raises(InputError, match=r"accept_length = \[1\]: must hold depth 2"):
        model.grid([1, 2], accept_length={1: 1.5})
    with pytest.raises(InputError, match=r"prior.noise = nan: must be a finite number > 0"):
        Prior(noise=math.nan)


def test_advice_names_the_option_and_its_numbers():
    model = load_calibration("llama_3_1_8b_h200").model
    advice = model.advice([Option(3, 3.3), Option(5, 3.9), Option(5, 3.6, topk=3, num_draft_tokens=6)])
    assert advice.speculate and advice.depth == 5 and advice.option == Option(5, 3.9)
    assert advice.reason.startswith("depth 5 gives 2.")
    with pytest.raises(InputError, match=r"options = \[\]: must hold at least one option"):
        model.advice([])


@pytest.mark.parametrize("growth", [0.0, 1.0])
def test_draft_steps_grow_with_the_batch_as_the_points_have_it(growth):
    """A drafter that costs the same at every batch, and one that costs more as the verifier does."""

    def measured(depth, batch):
        verify = 10.0 * (batch * (depth + 1)) ** 0.4
        return MeasuredPoint(
            depth, None, batch=batch, step_ms=verify + (2.0 + 2.5 * depth if depth else 0.0) * batch ** (0.4 * growth)
        )

    points = [measured(d, b) for b in (1, 4, 16) for d in (0, 1, 5)]
    model = calibrate(points)
    for batch in (1, 16):
        assert model.round_ms(3, batch).value == pytest.approx(measured(3, batch).step_ms, rel=0.025)
    truth, answer = measured(3, 32), model.round_ms(3, 32)
    assert answer.lo < truth.step_ms < answer.hi and answer.value == pytest.approx(truth.step_ms, rel=0.06)


def test_what_grows_faster_than_the_verifier_is_no_prior():
    with pytest.raises(InputError, match=r"prior.growth = 1.0: must be below 1"):
        Prior(growth=1.0)
