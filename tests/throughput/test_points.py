"""MeasuredPoint: derived times and refusals."""

import json
import math
from typing import Any

import numpy as np
import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.throughput import MeasuredPoint


def test_derived_times_of_a_chain():
    point = MeasuredPoint(depth=3, tok_s=122.0, accept_length=2.278)
    assert point.round_ms == pytest.approx(18.672, abs=5e-4)  # 1000 * 2.278 / 122
    assert point.token_ms == pytest.approx(8.1967, abs=5e-5)
    assert point.nodes == 4


def test_per_user_figures_are_scaled_to_the_batch():
    total = MeasuredPoint(depth=0, tok_s=800.0, batch=8)
    assert MeasuredPoint(depth=0, tok_s=100.0, batch=8, per_user=True).round_ms == total.round_ms == 10.0


def test_tree_verifies_its_nodes_and_a_chain_depth_plus_one():
    assert MeasuredPoint(depth=5, tok_s=1.0, topk=3, num_draft_tokens=6).nodes == 6
    assert MeasuredPoint(depth=2, tok_s=1.0, num_draft_tokens=2).nodes == 3  # some engines leave the root out


def test_step_ms_wins_over_tok_s():
    assert MeasuredPoint(depth=3, tok_s=100.0, accept_length=2.0, step_ms=15.0).round_ms == 15.0
    assert MeasuredPoint(depth=3, tok_s=100.0).round_ms is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": -1}, "depth = -1: must be a whole number >= 0 or null"),
        ({"depth": 2.5}, "depth = 2.5: must be a whole number >= 0 or null"),
        ({"tok_s": "fast"}, "tok_s = 'fast': must be a finite number > 0"),
        ({"tok_s": math.nan}, "tok_s = nan: must be a finite number > 0"),
        ({"tok_s": -3.0}, "tok_s = -3.0: must be a finite number > 0"),
        ({"tok_s": 0}, "tok_s = 0: must be a finite number > 0"),
        ({"tok_s": True}, "tok_s = True: must be a finite number > 0"),
        ({"tok_s": None}, "tok_s = None: must be given unless step_ms is"),
        ({"batch": 0}, "batch = 0: must be a whole number >= 1"),
        ({"accept_length": 0.5}, "accept_length = 0.5: must be a number >= 1 (bonus token included) or null"),
        ({"accept_length": 4.5}, "accept_length = 4.5: must be at most depth + 1 = 4"),
        ({"depth": 0, "accept_length": 2.0}, "accept_length = 2.0: must be 1 or null at depth 0 (no speculation)"),
        ({"depth": 0, "topk": 4, "num_draft_tokens": 8}, "topk = 4: must be 1 at depth 0 (no speculation)"),
        ({"weight": 1e16}, "weight = 1e+16: must be at most 1e+06"),
        (
            {"tok_s": 122.0, "accept_length": 2.278, "step_ms": 0.0187},
            "step_ms = 0.0187: must be milliseconds, at least 0.05",
        ),
        (
            {"tok_s": 1.22, "accept_length": 2.278, "step_ms": 18.0},
            "step_ms = 18.0: must be milliseconds: it is 1.0% of the time that tok_s = 1.22 says",
        ),
        ({"topk": 2}, "num_draft_tokens = None: must be given for a tree (topk > 1)"),
        ({"topk": 2, "num_draft_tokens": 3}, "num_draft_tokens = 3: must be at least depth + 1 = 4 for a tree"),
        (
            {"num_draft_tokens": 99},
            "num_draft_tokens = 99: must be depth + 1 = 4 for a chain, or 3 where the root is left out",
        ),
        ({"context_tokens": -1}, "context_tokens = -1: must be a number >= 0 or null"),
        ({"per_user": 1}, "per_user = 1: must be true or false"),
        ({"workload": 3}, "workload = 3: must be text or null"),
        ({"tok_s": 1e300}, "tok_s = 1e+300: must be at most 1e+12"),
        ({"tok_s": 10**400}, f"tok_s = 1{'0' * 116}...: must be at most 1e+12"),
        (
            {"tok_s": 1e-300},
            "tok_s = 1e-300: says 1e+303 ms for a token or round at batch 1, must be 0.0001 to 1e+08",
        ),
        (
            {"tok_s": 1e11},
            "tok_s = 100000000000.0: says 1e-08 ms for a token or round at batch 1, must be 0.0001 to 1e+08",
        ),
        ({"context_tokens": 1e300}, "context_tokens = 1e+300: must be at most 1e+09"),
        ({"depth": None, "accept_length": 1e300}, "accept_length = 1e+300: must be at most 1e+09"),
        ({"step_ms": 1e300}, "step_ms = 1e+300: must be at most 1e+08"),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(InputError) as error:
        MeasuredPoint(**{"depth": 3, "tok_s": 100.0, **fields})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"tok_s": 110.0, "accept_length": 2.3, "step_ms": 500},
            "step_ms = 500: contradicts tok_s = 110 at batch 1, which leaves 20.9 ms for a round of accept length 2.3",
        ),
        (
            {"tok_s": 110.0, "step_ms": 500.0},  # no accept length is longer than depth + 1
            "step_ms = 500.0: contradicts tok_s = 110 at batch 1, which leaves 36.4 ms for a round of at most 4",
        ),
        (
            {"depth": 0, "tok_s": 50.0, "batch": 8, "per_user": True, "step_ms": 50.0},
            "step_ms = 50.0: contradicts tok_s = 50 per user at batch 8, which leaves 20 ms for a round of at most 1",
        ),
    ],
)
def test_a_round_longer_than_its_tokens_take(fields, message):
    with pytest.raises(InputError) as error:
        MeasuredPoint(**{"depth": 3, **fields})
    assert str(error.value) == message


def test_a_round_may_be_shorter_than_the_wall_clock_says():
    assert MeasuredPoint(3, 110.0, accept_length=2.3, step_ms=38.0).round_ms == 38.0  # 1.8 times: rounding, other runs
    assert MeasuredPoint(3, 20.0, accept_length=2.3, step_ms=12.0).round_ms == 12.0  # tok_s with long prefills in it
    assert MeasuredPoint(None, 110.0, step_ms=500.0).round_ms == 500.0  # nothing says how long a round's text is


def test_numpy_s_whole_numbers_are_whole_numbers():
    whole: list[Any] = [np.int64(3), np.int32(8)]
    point = MeasuredPoint(whole[0], 122.0, 2.278, whole[1])
    assert point == MeasuredPoint(3, 122.0, 2.278, 8)
    assert json.loads(json.dumps(point.as_dict())) == point.as_dict()
