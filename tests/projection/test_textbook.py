"""Accept length from published per-step accuracies."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_speedup.errors import InputError
from eagle_speedup.projection import AcceptLengthCurve

ORIGIN = [0.742, 0.47, 0.29, 0.15, 0.097]


def test_origin_case():
    curve = AcceptLengthCurve.from_full_acc(ORIGIN)
    assert curve.accept_length(5).value == pytest.approx(2.749, abs=5e-4)
    assert [round(c, 3) for c in curve.conditionals] == [0.742, 0.633, 0.617, 0.517, 0.647]


def test_depth_does_not_rescue_the_origin_case():
    curve = AcceptLengthCurve.from_full_acc(ORIGIN)
    # Mean of .617 .517 .647 is .594; 2.749 + .097 * (.594 + .594^2 + .. ) = 2.890 at most.
    assert curve.tail.value == pytest.approx(0.5937, abs=5e-4)
    assert curve.limit == pytest.approx(2.8907, abs=1e-3)
    assert curve.accept_length(10).value == pytest.approx(2.880, abs=1e-3)
    assert curve.accept_length(16).hi < curve.highest_limit == pytest.approx(2.9266, abs=1e-3)
    # The hopes of 3.1 at depth 10 and 3.3 at depth 16 lie above the interval.
    assert curve.accept_length(10).hi < 3.1


def test_joint_read_as_marginal_differs():
    # SafeAILab/EAGLE#191: joint prefix accuracies, once mistaken for marginals.
    joint = [0.7011205932523408, 0.3695069132237691, 0.20591324651566492, 0.12545586495531533, 0.08118215044928648]
    curve = AcceptLengthCurve.from_full_acc(joint)
    product, mistaken = 1.0, 1.0
    for value in joint:
        product *= value
        mistaken += product
    assert curve.accept_length(5).value == pytest.approx(2.4832, abs=5e-5)
    assert mistaken == pytest.approx(2.0208, abs=5e-5)
    assert [round(c, 3) for c in curve.conditionals] == [0.701, 0.527, 0.557, 0.609, 0.647]


def test_interval_reaches_down_by_what_joint_accuracies_overstate():
    estimate = AcceptLengthCurve.from_full_acc(ORIGIN).accept_length(5)
    assert estimate.hi == estimate.value
    assert estimate.lo == pytest.approx(2.749 / 1.096, abs=1e-3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "full_acc = []: must hold at least one accuracy"),
        ([1.2], "full_acc[0] = 1.2: must lie in [0, 1]"),
        ([0.5, -0.1], "full_acc[1] = -0.1: must lie in [0, 1]"),
        ([math.nan], "full_acc[0] = nan: must lie in [0, 1]"),
        (["high"], "full_acc[0] = 'high': must be a number"),
        (
            [0.5, 0.6],
            "full_acc[1] = 0.6: must not exceed full_acc[0] = 0.5: joint accuracies never rise with the step",
        ),
    ],
)
def test_bad_input(values, message):
    with pytest.raises(InputError) as error:
        AcceptLengthCurve.from_full_acc(values)
    assert str(error.value) == message


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 63))
def test_properties(conditionals, depth):
    joint, values = 1.0, []
    for c in conditionals:
        joint *= c
        values.append(joint)
    curve = AcceptLengthCurve.from_full_acc(values)
    now, deeper = curve.accept_length(depth), curve.accept_length(depth + 1)
    assert 1 <= now.lo <= now.value <= now.hi <= depth + 1 + 1e-9
    assert now.value <= deeper.value + 1e-12
    assert now.value <= curve.limit + 1e-9
    assert now.hi <= curve.highest_limit + 1e-9
