"""A projection is a value made from accept lengths and a calibration, once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from eagle_speedup.acceptance import AcceptanceCounts, AcceptanceProfile
from eagle_speedup.errors import InputError
from eagle_speedup.projection import AcceptLengthCurve, project
from eagle_speedup.projection.bracket import marginal_curve
from eagle_speedup.throughput import Calibration, MeasuredPoint, load_calibration

# Plain step 10 ms (100 tok/s); rounds of 12 + 1 d ms: AL 1.8 at depth 1 in 13 ms, 2.4 at depth 3 in 15 ms.
POINTS = (
    MeasuredPoint(0, 100.0),
    MeasuredPoint(1, 1.8 / 0.013, accept_length=1.8),
    MeasuredPoint(3, 2.4 / 0.015, accept_length=2.4),
    MeasuredPoint(5, 2.6 / 0.017, accept_length=2.6),
)
CALIBRATION = Calibration("by_hand", POINTS)


def test_served_points_are_given_back():
    curve = AcceptLengthCurve.from_full_acc([0.8, 0.4, 0.2, 0.12, 0.08])
    projection = project(curve, CALIBRATION, depth=3)
    assert projection.accept_length.value == pytest.approx(2.4)
    assert projection.round_ms.value == pytest.approx(15, rel=0.01)
    assert projection.tok_s.value == pytest.approx(160, rel=0.01)
    assert projection.ratio.value == pytest.approx(1.6, rel=0.01)
    assert projection.breakeven.value == pytest.approx(1.5, rel=0.01)


def test_best_depth_is_where_tok_s_peaks():
    curve = AcceptLengthCurve.from_full_acc([0.8, 0.4, 0.2, 0.12, 0.08])
    projection = project(curve, CALIBRATION)
    # 1.8/13, 2.2/14, 2.4/15, 2.52/16, 2.6/17 tokens per ms: the peak is at depth 3.
    assert projection.best_depth == projection.depth == 3
    assert [p.depth for p in projection.by_depth] == [1, 2, 3, 4, 5]


def test_the_ends_of_an_open_bracket_are_those_of_its_accept_lengths():
    """The tempting answer adds the bracket to the model's own spread in quadrature, as if it were scatter."""
    curve = marginal_curve([0.8, 0.7, 0.6])
    projection = project(curve, CALIBRATION, depth=3)
    length = curve.accept_length(3)
    low, high = (CALIBRATION.model.tok_s(end, 3) for end in (length.lo, length.hi))
    assert (projection.tok_s.lo, projection.tok_s.hi) == pytest.approx((low.lo, high.hi))
    assert projection.tok_s.value == pytest.approx(CALIBRATION.model.tok_s(length.value, 3).value)
    assert projection.tok_s.hi > CALIBRATION.model.tok_s(length, 3).hi
    assert projection.ratio.hi == pytest.approx(CALIBRATION.model.speedup(length.hi, 3).hi)


def test_a_drafter_below_breakeven_has_no_best_depth():
    projection = project(AcceptLengthCurve.from_full_acc([0.1, 0.01]), CALIBRATION)
    assert projection.best_depth == 0
    assert projection.ratio.value < 1
    assert projection.depth == 1


@pytest.mark.parametrize("baseline", [90.0, 80.0, 60.0])
def test_a_workload_brings_its_own_time_outside_decoding(baseline):
    """Known from its baseline alone: what that takes more per token than the fastest one no draft shortens."""
    points = [dataclasses.replace(p, workload="chat") for p in POINTS]
    calibration = Calibration("two", (*points, MeasuredPoint(0, baseline, workload="reports")))
    curve = AcceptLengthCurve.from_full_acc([0.8, 0.4, 0.2, 0.12, 0.08])
    reports = project(curve, calibration, depth=3, workload="reports")
    token_ms = 15 / 2.4 + (1000 / baseline - 10)
    assert reports.tok_s.value == pytest.approx(1000 / token_ms, rel=0.03)
    assert reports.ratio.value == pytest.approx(1000 / baseline / token_ms, rel=0.03)
    assert reports.warnings == () and reports.workload == "reports"
    # The tempting answer scales the baseline by the speedup of the other workload.
    chat = project(curve, calibration, depth=3, workload="chat")
    assert chat.tok_s.value == pytest.approx(160, rel=0.01)
    assert baseline * chat.ratio.value > 1.01 * reports.tok_s.value
    assert project(curve, calibration, depth=3).tok_s == chat.tok_s, "None: the one closest to decoding alone"


def test_a_workload_nobody_measured_is_named():
    calibration = Calibration("one", tuple(dataclasses.replace(p, workload="chat") for p in POINTS))
    projection = project(AcceptLengthCurve.from_full_acc([0.8]), calibration, workload="code")
    assert "workload 'code' was not measured, only chat" in projection.warnings


def test_a_projection_can_not_be_changed():
    projection = project(AcceptLengthCurve.from_full_acc([0.8]), CALIBRATION)
    with pytest.raises(dataclasses.FrozenInstanceError):
        projection.batch = 2  # type: ignore[misc]
    assert projection.fingerprint == CALIBRATION.fingerprint


def test_depth_beyond_the_steps_is_said():
    projection = project(AcceptLengthCurve.from_full_acc([0.8, 0.4]), CALIBRATION, depth=4)
    assert "depth 4 is beyond the 2 TTT steps that were run" in projection.warnings


def one_block_profile(tokens: int, rounds: int) -> AcceptanceProfile:
    flat = np.zeros((64, AcceptanceCounts.width(1, 1)), dtype=np.int64)
    counts = AcceptanceCounts.from_flat(flat, 1, 1)
    accepted = counts.accepted.copy()
    accepted[0, 0] = (2 * rounds - tokens, tokens - rounds)
    total = counts.tokens.copy()
    total[0] = tokens
    return AcceptanceProfile(dataclasses.replace(counts, tokens=total, accepted=accepted))


def test_one_block_of_answers_claims_nothing_narrow():
    estimate = project(one_block_profile(15, 10), CALIBRATION).accept_length
    assert (estimate.value, estimate.lo, estimate.hi) == (1.5, 1.0, 2.0)


def test_no_answers_is_an_error_not_a_number():
    with pytest.raises(InputError, match="needs at least one answer"):
        project(one_block_profile(0, 0), CALIBRATION)


def test_the_best_measured_depth_and_the_continuation_beyond_it():
    calibration = load_calibration("kimi_k2_5_origin")
    short = project(AcceptLengthCurve.from_full_acc([0.9]), calibration, depth=1, max_depth=16)
    assert short.best_measured_depth == 1 < short.best_depth
    assert short.best_beyond is not None and short.best_beyond.depth == short.best_depth
    inside = project(AcceptLengthCurve.from_full_acc([0.7, 0.3, 0.1]), calibration, max_depth=16)
    assert inside.best_beyond is None and inside.best_measured_depth == inside.best_depth
    slow = project(AcceptLengthCurve.from_full_acc([0.05]), calibration, max_depth=4)
    assert (slow.best_measured_depth, slow.best_depth, slow.best_beyond) == (0, 0, None)
