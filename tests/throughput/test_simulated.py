"""A prior from simulated steps: by hand, against the first node's measurements, and from the real simulator."""

import importlib.util

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.throughput import Calibration, MeasuredPoint, Prior, calibrate, load_calibration, save_calibration
from eagle_speedup.throughput.simulated import prior_from_steps, simulated_prior

# Kimi-K2.6 on 8x RTX PRO 6000, tok/s without speculation (local-inference-lab/rtx6kpro models/kimi-k26-v4.md)
MEASURED = {1: 92.4, 2: 151.3, 4: 239.5, 8: 350.9, 16: 636.2, 32: 957.7, 64: 1497.3, 128: 2222.6}
STEPS = {batch: 1000 * batch / rate for batch, rate in MEASURED.items()}


def test_shape_level_and_context_by_hand():
    prior = prior_from_steps({1: 10.0, 2: 15.0, 4: 15.0, 8: 30.0}, long_step=25.872)
    assert prior.curve == (0.585, 0.01, 1.0)  # log2 of the growth; a step that does not grow counts as 0.01
    assert prior.step_ms == 10.0
    assert prior.attention_share == pytest.approx(0.1)  # +158.72 % over 15.872 thousand tokens
    assert prior_from_steps({1: 10.0, 2: 15.0}).attention_share == Prior().attention_share


@pytest.mark.parametrize(
    ("steps", "refusal"),
    [
        ({1: 10.0}, "must hold the batch sizes 1, 2, 4"),
        ({1: 10.0, 4: 12.0}, "without a gap"),
        ({1: 10.0, 2: float("nan")}, r"steps\[2\] = nan: must be a finite number > 0"),
    ],
)
def test_refused_steps(steps, refusal):
    with pytest.raises(InputError, match=refusal):
        prior_from_steps(steps)


def test_nothing_measured_and_nothing_simulated_gives_no_figure():
    with pytest.raises(InputError, match=r"no figure is invented: serve without speculation and at two depths"):
        calibrate([])
    with pytest.raises(InputError, match="must hold at least one measured point: serve without speculation"):
        Calibration("c", ())


def test_a_simulation_alone_answers_with_wide_intervals_and_says_so():
    model = calibrate([], prior=prior_from_steps(STEPS))
    assert model.warnings[0].startswith("nothing was measured: every figure rests on a simulation")
    for batch, step in STEPS.items():
        answer = model.step_ms(batch)
        assert answer.value == pytest.approx(step, rel=0.02)
        assert answer.lo < 0.85 * step and answer.hi > 1.15 * step
    assert model.tok_s(2.278, 3).half_width > 0.25 * model.tok_s(2.278, 3).value


def test_points_correct_the_level_and_keep_the_shape():
    simulated = {batch: 0.6 * step for batch, step in STEPS.items()}  # a simulator that is 40 % too fast
    points = [MeasuredPoint(0, 92.4), MeasuredPoint(3, 122.0, accept_length=2.278)]
    plain, shaped = calibrate(points), calibrate(points, prior=prior_from_steps(simulated))
    for batch in (8, 32, 128):
        right = STEPS[batch]
        assert shaped.step_ms(batch).value == pytest.approx(right, rel=0.2)
        assert shaped.step_ms(batch).half_width < plain.step_ms(batch).half_width
    assert shaped.step_ms(1).value == pytest.approx(STEPS[1], rel=0.03)


def test_a_prior_without_points_survives_the_file(tmp_path):
    calibration = Calibration("sim", (), prior=prior_from_steps(STEPS))
    again = load_calibration(save_calibration(calibration, tmp_path / "c.yaml"))
    assert again.prior == calibration.prior and again.fingerprint == calibration.fingerprint
    assert again.model.tok_s(2.0, 3) == calibration.model.tok_s(2.0, 3)


@pytest.mark.parametrize(
    ("curve", "refusal"),
    [
        ((), "must be a list"),
        (("a",), r"prior.curve\[0\] = 'a'"),
        ((0.1, -1.0), r"prior.curve\[1\] = -1.0"),
        (3, "list"),
    ],
)
def test_refused_curves(curve, refusal):
    with pytest.raises(InputError, match=refusal):
        Prior(curve=curve)


@pytest.mark.parametrize(
    ("node", "verifier", "engine", "refusal"),
    [
        ("abacus", "kimi_k2_5", "sglang", "node = 'abacus': can not be simulated; choose from b200_x8"),
        ("h100_x8", "gpt", "sglang", "verifier = 'gpt': can not be simulated"),
        ("h100_x8", "kimi_k2_5", "mlx", "engine = 'mlx': can not be simulated"),
    ],
)
def test_what_can_not_be_simulated(node, verifier, engine, refusal):
    with pytest.raises(InputError, match=refusal):
        simulated_prior(node, verifier, engine=engine)


def test_given_steps_take_the_simulator_s_place():
    asked = []

    def step(batch, context):
        asked.append((batch, context))
        return STEPS[batch] * (1.5 if context > 512 else 1.0)

    prior, origin = simulated_prior("rtx_pro_6000_x8", "kimi_k2_5", step=step)
    assert prior.step_ms == pytest.approx(STEPS[1], abs=1e-4) and prior.curve is not None and len(prior.curve) == 7
    assert asked[-1] == (1, 16384) and len(asked) == 9
    assert "moonshotai/Kimi-K2.5 on rtx_pro_6000_server, sglang, tp 8" in origin


def test_without_the_simulator_the_way_out_is_named():
    if importlib.util.find_spec("aiconfigurator") or importlib.util.find_spec("aisimulate"):
        pytest.skip("the simulator is installed")
    with pytest.raises(
        InputError, match=r"is not installed \(pip install 'eagle-speedup\[aisimulate\]'\); without it: "
    ):
        simulated_prior("rtx_pro_6000_x8", "kimi_k2_5")


def test_the_real_simulator_comes_near_the_first_node():
    pytest.importorskip("aiconfigurator")
    prior, origin = simulated_prior("rtx_pro_6000_x8", "kimi_k2_5")
    assert prior.step_ms == pytest.approx(1000 / 90, rel=0.3)  # measured 90 tok/s at batch 1
    simulated = prior.step_ms
    assert simulated is not None and prior.curve is not None
    for growth, batch in zip(prior.curve, (2, 4, 8), strict=False):
        simulated *= 2**growth
        assert simulated == pytest.approx(STEPS[batch], rel=0.35)
    assert origin.startswith("aiconfigurator ")
