"""The simple named rules, and the case that started the project."""

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.throughput import LinearBreakeven, OptimisticOverhead, affine_round, load_calibration

ORIGIN_ACCEPT_LENGTH = 1 + 0.742 + 0.47 + 0.29 + 0.15 + 0.097  # 2.749


def test_origin_case():
    calibration = load_calibration("kimi_k2_5_origin")
    simple = calibration.simple_models
    assert simple["optimistic"].ratio(ORIGIN_ACCEPT_LENGTH) == pytest.approx(2.390, abs=5e-4)
    assert simple["optimistic"].tok_s(ORIGIN_ACCEPT_LENGTH) == pytest.approx(215.1, abs=0.05)
    assert simple["linear_stated"].tok_s(ORIGIN_ACCEPT_LENGTH) == pytest.approx(112.5, abs=0.05)
    assert simple["linear_inferred"].tok_s(ORIGIN_ACCEPT_LENGTH) == pytest.approx(107.7, abs=0.05)
    assert LinearBreakeven.inferred(90.0, 2.1, 82.3) == simple["linear_inferred"]
    assert simple["linear_inferred"].breakeven_accept_length == pytest.approx(2.2965, abs=5e-5)  # 2.1 * 90 / 82.3


def test_one_interval_holds_both_linear_answers_but_not_the_optimistic_one():
    answer = load_calibration("kimi_k2_5_origin").model.tok_s(ORIGIN_ACCEPT_LENGTH, depth=5)
    assert answer.lo < 107.7 < 112.5 < answer.hi < 215.1


def test_affine_round_reproduces_the_published_fit():
    # vllm-project/vllm#20780, Llama-3.1-8B, batch 1, MT-Bench: accept length and time per output token by depth
    accept_length = [2.36, 2.79, 3.08, 3.32, 3.46, 3.54]
    token_ms = [4.32, 4.09, 4.05, 4.13, 4.2, 4.29]
    round_ms = [a * t for a, t in zip(accept_length, token_ms, strict=True)]
    fixed, per_draft = affine_round([2, 3, 4, 5, 6, 7], round_ms)
    assert fixed == pytest.approx(8.347, abs=5e-4)
    assert per_draft == pytest.approx(1.016, abs=5e-4)
    error = [abs((fixed + per_draft * k) / r - 1) for k, r in zip(range(2, 8), round_ms, strict=True)]
    assert max(error) == pytest.approx(0.0208, abs=5e-5)
    fixed, per_draft = affine_round([2, 7], [round_ms[0], round_ms[5]])
    error = [abs((fixed + per_draft * k) / r - 1) for k, r in zip(range(2, 8), round_ms, strict=True)]
    assert max(error) == pytest.approx(0.038, abs=5e-4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LinearBreakeven(0.0, 2.2), "baseline_tok_s = 0.0: must be a finite number > 0"),
        (lambda: OptimisticOverhead(90.0, -0.1), "draft_overhead = -0.1: must be a finite number >= 0"),
        (lambda: affine_round([3, 3], [1.0, 2.0]), "depths = [3, 3]: must hold at least two distinct depths, one per"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(InputError) as error:
        build()
    assert str(error.value).startswith(message)
