"""The stall rule: literal histories in, literal stop indices out."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from eagle_speedup.acceptance import AcceptanceCounts, AcceptanceProfile
from eagle_speedup.errors import InputError
from eagle_speedup.projection import project
from eagle_speedup.throughput import Calibration, MeasuredPoint
from eagle_speedup.training import StopReason, Validation, comparable, crossed_breakeven, decide, paired_gain

BLOCKS, TOKENS = 16, 100_000  # per block


def calibration(name="node", baseline=100.0):
    return Calibration(
        name=name, points=(MeasuredPoint(0, baseline), MeasuredPoint(1, 1.3 * baseline, accept_length=1.6))
    )


NODE = calibration()
TWO_DEPTHS = Calibration(name="two", points=(*NODE.points, MeasuredPoint(2, 150.0, accept_length=2.1)))


def counts(accept_length, noise=None, tokens=TOKENS):
    """Every block with that accept length (times 1 + its noise), or with these at depth 1, 2, ..

    The rule sees tokens and rounds only, so all rounds stand in the column of no accepted draft.
    """
    lengths = np.atleast_1d(accept_length)[None, :] * (1 + (np.zeros(BLOCKS) if noise is None else noise))[:, None]
    depth = lengths.shape[1]
    accepted = np.zeros((BLOCKS, depth, depth + 1), np.int64)
    accepted[:, :, 0] = np.rint(tokens / lengths)
    blank = AcceptanceCounts.from_flat(np.zeros((BLOCKS, AcceptanceCounts.width(1, depth)), np.int64), 1, depth)
    filled = np.full(BLOCKS, tokens)
    return replace(blank, tokens=filled, answers=filled // 100, accepted=accepted)


def history(lengths, noise=None, steps=None, node=NODE, tokens=TOKENS):
    steps = range(100, 100 * len(lengths) + 1, 100) if steps is None else steps
    noise = [None] * len(lengths) if noise is None else noise
    profiles = [AcceptanceProfile(counts(a, n, tokens)) for a, n in zip(lengths, noise, strict=True)]
    return [Validation(s, 0, p, projected(p, node)) for s, p in zip(steps, profiles, strict=True)]


def projected(profile, node):
    return project(profile, node, max_depth=profile.max_depth)


def stop_index(validations, **rule):
    """Index of the first validation at which the rule stops; None = never."""
    return next((i for i in range(len(validations)) if decide(validations[: i + 1], **rule).stop), None)


@pytest.mark.parametrize(
    ("lengths", "patience", "stop"),
    [
        ([1.5], 1, None),
        ([1.5, 1.5], 1, 1),
        ([1.5, 1.5, 1.5, 1.5], 3, 3),
        ([1.5, 1.6, 1.6, 1.7, 1.7, 1.7], 2, 5),
        ([1.5, 1.4, 1.6, 1.5, 1.5], 2, 4),
        ([1.5, 1.506, 1.512, 1.518, 1.524, 1.530, 1.536], 3, None),  # 0.4 % each: adds up to 1 % every third time
        ([1.5, 1.506, 1.512, 1.518, 1.524, 1.530, 1.536], 2, 2),
        ([1.5, 1.6, 1.7, 1.8, 1.9], 1, None),
        ([1.9, 1.8, 1.7, 1.6], 3, 3),
    ],
)
def test_literal_histories(lengths, patience, stop):
    assert stop_index(history(lengths), min_gain_ratio=0.01, patience=patience) == stop


def test_published_run_stops_where_its_accept_length_stalled():
    """An EAGLE-3 drafter of Qwen3-4B (deepseek-ai/DeepSpec, issue 84: 200 held-out prompts at temperature 0).

    From epoch 2.3 on it lost accept length while its training loss kept falling: 2.69, 1.97, 1.73, 1.59, 1.50.
    """
    epochs, lengths = [0.8, 2.3, 4.6, 7.6, 10.0], [3.28, 3.34, 3.34, 3.24, 3.18]
    at_depth = [(1.5, 2.0, 2.5, 3.0, 3.1, 3.2, length) for length in lengths]  # 7: as published
    validations = [
        replace(v, projection=project(v.profile, NODE, depth=7))
        for v in history(at_depth, steps=[round(10 * epoch) for epoch in epochs])
    ]
    at = stop_index(validations, min_gain_ratio=0.01, patience=2)
    decision = decide(validations[: at + 1], min_gain_ratio=0.01, patience=2)
    assert (epochs[at], decision.reason) == (7.6, StopReason.STALLED)
    assert decision.best_step == 23
    last, peak = (validations[i].projected.accept_length.value for i in (-1, 1))
    assert last / peak - 1 == pytest.approx(-0.048, abs=1e-3)


def test_noise_neither_fakes_a_gain_nor_hides_one():
    generator = np.random.default_rng(0)
    shared = 0.1 * generator.standard_normal(BLOCKS)
    # The same answers are hard both times: separate intervals are wide (several percent), the paired one is not.
    gain = history([1.5, 1.53], [shared, shared])
    separate = gain[1].profile.accept_length(1)
    assert separate.lo < gain[0].profile.accept_length(1).value
    assert not decide(gain, min_gain_ratio=0.01, patience=1).stop
    # Other answers are right the second time: up 2 %, and nothing is proved.
    own = 0.1 * generator.standard_normal(BLOCKS)
    own -= own.mean()
    luck = history([1.5, 1.53], [0 * own, own])
    assert paired_gain(luck[1], luck[0]).lo < 0
    decision = decide(luck, min_gain_ratio=0.01, patience=1)
    assert not decision.stop and re.match(r"undecided: \+1\.\d+ % \[-", decision.message)
    # Nor is it taken for a gain: back where it was, the third is measured against the first, and that is a stall.
    back = decide(history([1.5, 1.53, 1.5], [0 * own, own, 0 * own]), min_gain_ratio=0.01, patience=1)
    assert back.stop and "against step 100" in back.message


def test_message_carries_the_numbers():
    decision = decide(history([1.5, 1.6, 1.6, 1.592]), min_gain_ratio=0.01, patience=2)
    start, best, last = (history([length])[0].tok_s for length in (1.5, 1.6, 1.592))
    change = f"{100 * (last / best - 1):+.2f}"
    assert change.startswith("-0.")
    assert decision.message == (
        f"stalled, no confirmed gain of 1 % in 2 validations: {last:.4g} tok/s at step 400 is {change} % "
        f"[{change}, {change}] tok/s against step 200 ({best:.4g} tok/s); best {best:.4g} tok/s at step 200"
    )
    waiting = decide(history([1.5, 1.6, 1.6]), min_gain_ratio=0.01, patience=2)
    assert (waiting.stop, waiting.reason) == (False, None) and "waited 1 of 2" in waiting.message
    gaining = decide(history([1.5, 1.6]), patience=2).message
    assert gaining.startswith(f"gaining: {100 * (best / start - 1):+.2f} % [+")
    assert gaining.endswith(f"tok/s against step 100; best {best:.4g} tok/s at step 200")


def test_validations_without_answers_or_interval_do_not_count():
    validations = history([1.5, 1.5, 1.5])
    nothing = AcceptanceProfile(counts(1.5, tokens=0))
    gap = Validation(150, 0, nothing, None)
    assert not gap.usable and math.isnan(gap.tok_s)
    assert stop_index([validations[0], gap, gap, gap, *validations[1:]], patience=2) == 5
    assert decide([gap], patience=1).message == "no validation with answers to compare yet"
    assert decide([], patience=1).stop is False


def test_another_calibration_or_set_restarts_the_history():
    old = history([1.5, 1.5, 1.5], steps=[1, 2, 3])
    for later, why in (
        (history([1.5, 1.5], steps=[4, 5], node=calibration(baseline=50.0)), "another calibration"),
        (history([1.5, 1.5], steps=[4, 5], tokens=TOKENS // 2), "another validation set"),
    ):
        kept, note = comparable([*old, *later])
        assert kept == later and note == f"history restarts at step 4: {why} before"
        decision = decide([*old, *later], patience=2)
        assert not decision.stop and note in decision.message
        with pytest.raises(InputError, match=f"can not be compared: {why}"):
            paired_gain(later[0], old[0])


def test_gain_in_tok_s_counts_the_round_time_of_a_moved_depth():
    before, after = history([(1.5, 1.6), (1.5, 2.6)], node=TWO_DEPTHS)
    assert (before.projected.depth, after.projected.depth) == (1, 2)
    gain = paired_gain(after, before)
    assert gain.value == pytest.approx(after.tok_s / before.tok_s - 1, rel=1e-9)
    assert gain.value < 2.6 / 1.5 - 1  # the tempting ratio of accept lengths alone


def test_breakeven_is_crossed_once():
    validations = history([1.01, 1.02, 1.6, 1.7, 1.01, 1.6])
    assert [crossed_breakeven(validations[: i + 1]) for i in range(6)] == [False, False, True, False, False, False]
    assert not crossed_breakeven([])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"patience": 0}, "patience = 0: must be a whole number of at least 1"),
        ({"patience": True}, "patience = True: must be a whole number of at least 1"),
        ({"min_gain_ratio": -0.1}, "min_gain_ratio = -0.1: must be a finite number of at least 0"),
        ({"min_gain_ratio": math.nan}, "min_gain_ratio = nan: must be a finite number of at least 0"),
    ],
)
def test_bad_rules_are_refused(rule, message):
    with pytest.raises(InputError) as error:
        decide([], **rule)
    assert str(error.value) == message
