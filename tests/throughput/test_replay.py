"""Published cases, replayed: figures typed from the threads that are named."""

import math

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.projection import AcceptLengthCurve
from eagle_speedup.throughput import MeasuredPoint, Option, affine_round, calibrate, mismatch_alarm

# sgl-project/SpecForge#339: Qwen3-30B-A3B on 2x H100; batch, depth, topk, nodes, tok/s, accept length
BASE = {1: 222.47, 4: 566.21}
ROWS = (
    (1, 3, 1, 4, 159.78, 1.86),
    (1, 3, 3, 8, 172.99, 2.2),
    (1, 3, 3, 4, 207.62, 1.99),
    (1, 7, 4, 16, 191.9, 2.52),
    (1, 6, 4, 12, 171.54, 2.42),
    (1, 8, 8, 60, 177.5, 3.2),
    (4, 3, 1, 4, 447.9, 1.86),
    (4, 3, 3, 8, 426.46, 2.27),
)
SPEEDUP = (0.718, 0.778, 0.933, 0.863, 0.771, 0.798, 0.791, 0.753)


def slow_node():
    points = [MeasuredPoint(0, rate, batch=b) for b, rate in BASE.items()]
    return calibrate([*points, *(MeasuredPoint(d, t, a, b, topk=k, num_draft_tokens=n) for b, d, k, n, t, a in ROWS)])


def test_every_configuration_slower_than_the_baseline_means_do_not_speculate():
    model = slow_node()
    for batch in BASE:
        options = [Option(d, a, k, n) for b, d, k, n, _, a in ROWS if b == batch]
        advice = model.advice(options, batch=batch)
        assert not advice.speculate and advice.depth == 0 and advice.option is None
        assert advice.reason.startswith("do not speculate: the best option (depth 3")
        assert advice.speedup is not None and advice.speedup.value < 1
    assert model.best_depth({1: 1.6, 3: 1.86}) == 0


def test_published_speedups_and_that_the_longest_accept_length_is_not_the_fastest():
    model = slow_node()
    for (batch, depth, topk, nodes, rate, al), expected in zip(ROWS, SPEEDUP, strict=True):
        assert rate / BASE[batch] == pytest.approx(expected, abs=5e-4)
        answer = model.speedup(al, depth, batch, topk=topk, num_draft_tokens=nodes)
        assert answer.value == pytest.approx(expected, rel=0.06)
        assert answer.lo < expected < answer.hi
    longest = max(ROWS[:6], key=lambda r: r[5])
    fastest = max(ROWS[:6], key=lambda r: r[4])
    assert longest != fastest


def test_a_node_that_scatters_says_so():
    # the thread's tree of 4 nodes is a fifth faster than its chain of 4 tokens at the same depth
    model = slow_node()
    assert model.noise > 0.03
    assert [w for w in model.warnings if w.startswith("the points scatter")]
    assert not [w for w in calibrate(CHAINS).warnings if w.startswith("the points scatter")]


# vllm-project/vllm#20780: Llama-3.1-8B, batch 1, MT-Bench; no speculation 7.07 ms a token; then per depth 2..7
ACCEPT_LENGTH = (2.36, 2.79, 3.08, 3.32, 3.46, 3.54)
TOKEN_MS = (4.32, 4.09, 4.05, 4.13, 4.2, 4.29)
CHAIN_SPEEDUP = (1.637, 1.729, 1.746, 1.712, 1.683, 1.648)
CHAINS = [MeasuredPoint(0, 1000 / 7.07)] + [
    MeasuredPoint(d, 1000 / t, a) for d, t, a in zip(range(2, 8), TOKEN_MS, ACCEPT_LENGTH, strict=True)
]


@pytest.mark.parametrize("depths", [range(2, 8), (2, 7)])
def test_the_best_depth_of_a_chain_from_all_depths_and_from_two(depths):
    by_depth = dict(zip(range(2, 8), ACCEPT_LENGTH, strict=True))
    model = calibrate([CHAINS[0], *(p for p in CHAINS if p.depth in depths)])
    assert model.best_depth(by_depth) == 4
    for (depth, al), expected in zip(by_depth.items(), CHAIN_SPEEDUP, strict=True):
        answer = model.speedup(al, depth)
        assert answer.value == pytest.approx(expected, rel=0.005 if depth in depths else 0.038)
        assert answer.lo < expected < answer.hi
    fixed, per_draft = affine_round(list(depths), [CHAINS[d - 1].round_ms for d in depths])
    assert max(by_depth, key=lambda d: by_depth[d] / (fixed + per_draft * d)) == 4


@pytest.mark.parametrize(
    ("batch", "tok_s", "accepted_share", "accept_length", "round_ms"),
    [
        (1, 125.0, 0.316, 1.948, 15.58), (2, 215.6, 0.377, 2.131, 19.77), (4, 353.3, 0.394, 2.182, 24.7),
        (8, 528.3, 0.347, 2.041, 30.91), (16, 805.3, 0.39, 2.17, 43.11), (32, 1167.0, 0.42, 2.26, 61.97),
        (64, 1887.8, 0.413, 2.239, 75.91), (128, 2510.3, 0.43, 2.29, 116.77),
        (1, 108.3, 0.471, 2.413, 22.28), (1, 97.2, 0.422, 2.266, 23.31), (1, 81.0, 0.435, 2.305, 28.46),
        (1, 55.1, 0.309, 1.927, 34.97),
    ],
)  # fmt: skip
def test_round_times_of_the_first_node(batch, tok_s, accepted_share, accept_length, round_ms):
    # local-inference-lab/rtx6kpro hardware/asrockrack-turin-cpayne-16gpu.md: Kimi-K2.6, depth 3; contexts at the end
    assert 1 + 3 * accepted_share == pytest.approx(accept_length, abs=5e-4)
    assert MeasuredPoint(3, tok_s, 1 + 3 * accepted_share, batch).round_ms == pytest.approx(round_ms, abs=6e-3)


@pytest.mark.parametrize(
    ("accepted", "drafted", "first", "accept_length"), [(22, 9210, 0.036, 1.036), (39, 8220, 0.071, 1.071)]
)
def test_served_and_validated_cannot_be_the_same_drafter(accepted, drafted, first, accept_length):
    # vllm-project/speculators#613: 15 drafts a round, validated first-step acceptance .8713
    rounds = drafted // 15
    assert 1 + accepted / rounds == pytest.approx(accept_length, abs=5e-4)
    alarm = mismatch_alarm(0.8713, first, rounds)
    assert alarm is not None and alarm.startswith("train/serve mismatch: first-step acceptance 0.0")


@pytest.mark.parametrize(("validated", "served", "rounds"), [(0.742, 0.70, 500), (0.742, 0.45, 500), (0.6, 0.2, 4)])
def test_ordinary_differences_raise_no_alarm(validated, served, rounds):
    assert mismatch_alarm(validated, served, rounds) is None


def test_alarm_the_other_way_round_and_refusals():
    assert mismatch_alarm(0.2, 0.8, 500) is not None
    with pytest.raises(InputError, match=r"served = 1.2: must lie in \[0, 1\]"):
        mismatch_alarm(0.5, 1.2, 10)
    with pytest.raises(InputError, match="rounds = 0: must be a whole number >= 1"):
        mismatch_alarm(0.5, 0.5, 0)


def test_joint_prefix_and_the_mistaken_reading_of_it():
    # SafeAILab/EAGLE#191: correct[k] / total[k] counts later depths as misses after the first miss
    acc = [0.7011205932523408, 0.3695069132237691, 0.20591324651566492, 0.12545586495531533, 0.08118215044928648]
    curve = AcceptLengthCurve.from_full_acc(acc)
    assert curve.accept_length(5).value == pytest.approx(2.4832, abs=5e-5)
    assert curve.conditionals == pytest.approx((0.701, 0.527, 0.557, 0.609, 0.647), abs=5e-4)
    if_marginal = 1 + sum(math.prod(acc[: k + 1]) for k in range(5))
    assert if_marginal == pytest.approx(2.0208, abs=5e-5)


@pytest.mark.parametrize(
    ("rounds", "drafted", "accepted", "depth", "accept_length"),
    [(43221, 259326, 63669, 6, 2.4731), (4816, 33712, 12208, 7, 3.5349)],  # vllm#24243, vllm#26191
)
def test_count_identities(rounds, drafted, accepted, depth, accept_length):
    assert drafted == rounds * depth
    assert 1 + accepted / rounds == pytest.approx(accept_length, abs=5e-5)


def test_sum_of_per_position_rates_is_the_accept_length():
    rates = (0.58, 0.34, 0.22, 0.15, 0.11)  # vllm#24243; the sixth was not printed
    assert 1.4731 - sum(rates) == pytest.approx(0.073, abs=5e-4)
    speedup = calibrate([MeasuredPoint(0, 494.25, batch=10), MeasuredPoint(6, 800.65, 2.47, 10)]).speedup(2.4731, 6, 10)
    assert speedup.value == pytest.approx(1.62, rel=0.01)


def test_contradictions_are_named():
    # SpecForge docs/spec_bundle, Llama-4-Scout on financeqa, batch 8: AL 2.1 at 1000 tok/s over a baseline of 288.9
    impossible = calibrate([MeasuredPoint(0, 500.0, batch=8), MeasuredPoint(3, 2000.0, 2.0, 8)])
    assert impossible.inconsistent == (
        "a round takes 0.50 of a plain step at depth 3, batch 8, though it contains one: baseline of another setup, "
        "or accept length without the bonus token"
    )
    assert impossible.warnings[0] == f"inconsistent: {impossible.inconsistent}"
    apart = calibrate([MeasuredPoint(0, 631.9, batch=8, workload="a"), MeasuredPoint(0, 288.9, batch=8, workload="b")])
    assert apart.inconsistent == "baselines at batch 8 differ 2.2-fold: not decoding alone"
    twice = calibrate([MeasuredPoint(0, 90.0), MeasuredPoint(0, 180.0), MeasuredPoint(3, 230.0, 2.3)])
    assert twice.inconsistent == "baselines at batch 1 differ 2.0-fold: not decoding alone"
    assert slow_node().inconsistent is None
