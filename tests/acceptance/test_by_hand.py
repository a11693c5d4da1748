"""Expectations worked by hand, and the tempting answers that must differ."""

from __future__ import annotations

import math

import pytest
import torch

from eagle_speedup.acceptance import TTTAcceptance, spans_from_mask
from eagle_speedup.errors import InputError
from eagle_speedup.projection.textbook import AcceptLengthCurve


def drafts_from_hits(hits, target):
    """Draft ids [K, 1, T] that are right exactly where ``hits[k][t]`` is 1."""
    steps, length = len(hits), len(target)
    drafts = torch.full((steps, 1, length), -1)
    for k in range(steps):
        for t in range(length - 1 - k):
            drafts[k, 0, t] = target[t + 1 + k] if hits[k][t] else 99
    return drafts


def profile_of(hits, target, spans, **options):
    metric = TTTAcceptance(len(hits), **options)
    metric.update(drafts_from_hits(hits, target), torch.tensor([target]), torch.tensor(spans))
    return metric.compute()


# Prompt 0 1, answer 2..7: P = 2, E = 7, anchors 2..6, five tokens to make.
TARGET = [0, 1, 2, 3, 4, 5, 6, 7]
#        t = 0  1  2  3  4  5  6  7
HITS = [
    [0, 1, 1, 0, 0, 1, 1, 0],  # step 0 predicts t + 1
    [0, 0, 0, 1, 1, 1, 0, 0],  # step 1 predicts t + 2
]


def test_walk_by_hand():
    # Depth 2: t=2 hits one (3), misses the second -> t=4; t=4 misses -> t=5; t=5 hits both (6, 7) -> t=8 >= E. Three
    # rounds.
    # Depth 1: t=2 hit -> 4; 4 miss -> 5; 5 hit -> 7 = E. Three rounds.
    profile = profile_of(HITS, TARGET, [(0, 2, 7)])
    assert profile.tokens == 5
    assert profile.rounds == (3, 3)
    assert profile.accepted_histogram(2) == (1, 1, 1)
    assert profile.accept_length(2).value == pytest.approx(5 / 3)
    assert profile.per_position(2) == (2 / 3, 1 / 3)


def test_accuracies_by_hand():
    # Step 0 valid at anchors 2..6: hits 1 0 0 1 1. Step 1 valid at 2..5: hits 0 1 1 1, joint only at 5.
    profile = profile_of(HITS, TARGET, [(0, 2, 7)])
    assert profile.step_acc == (3 / 5, 3 / 4)
    assert profile.full_acc == (3 / 5, 1 / 4)
    # Step 0 right among anchors valid at step 1: 2 and 5; of them one has step 1 right.
    assert profile.cond_acc == (3 / 5, 1 / 2)


def test_tempting_accept_lengths_differ():
    profile = profile_of(HITS, TARGET, [(0, 2, 7)])
    served = profile.accept_length(2).value
    uniform_joint = 1 + sum(profile.full_acc)
    product_of_marginals = 1 + profile.step_acc[0] + profile.step_acc[0] * profile.step_acc[1]
    assert uniform_joint == pytest.approx(1.85)
    assert product_of_marginals == pytest.approx(2.05)
    assert served == pytest.approx(1.6667, abs=1e-4)


def test_starting_late_differs():
    # Anchor P is the first. A walk from P + 1 goes 3 (miss) -> 4 (miss) -> 5 -> end: three rounds too, but over four
    # tokens, an accept length of 4/3.
    late = profile_of(HITS, TARGET, [(0, 3, 7)]).accept_length(2).value
    assert late == pytest.approx(4 / 3)
    assert profile_of(HITS, TARGET, [(0, 2, 7)]).accept_length(2).value != late


def test_ratio_of_sums_not_mean_of_ratios():
    # One answer of 4 tokens with every draft right, one of 2 tokens with none: 4 / 2 rounds and 2 / 2 rounds.
    target = list(range(10))
    hits = [[0, 1, 1, 1, 1, 0, 0, 0, 0, 0]]
    profile = profile_of(hits, target, [(0, 1, 5), (0, 6, 8)])
    assert profile.rounds == (4,)
    assert profile.accept_length(1).value == 6 / 4
    assert profile.answers == 2
    mean_of_ratios = (4 / 2 + 2 / 2) / 2
    assert mean_of_ratios == 1.5  # the same by chance here, so make the second answer longer
    longer = profile_of(hits, target, [(0, 1, 5), (0, 6, 9)])
    assert longer.accept_length(1).value == 7 / 5
    assert longer.accept_length(1).value != mean_of_ratios


def test_target_outside_the_draft_vocabulary_is_a_miss_and_is_reported():
    # The drafter can not make token 4, which ends a round; leaving that target out would give (5 - 1) / 2 rounds.
    hits = [[0, 0, 1, 0, 1, 1, 1, 0]]
    vocabulary = torch.tensor([2, 3, 5, 6, 7, 99])  # 99 is what a miss drafts
    metric = TTTAcceptance(1, draft_vocab=vocabulary)
    metric.update(drafts_from_hits(hits, TARGET), torch.tensor([TARGET]), torch.tensor([[0, 2, 7]]))
    profile = metric.compute()
    assert profile.draft_vocab_coverage == 4 / 5
    assert profile.full_acc == (4 / 5,)
    assert profile.rounds == (3,)
    assert profile.accept_length(1).value == 5 / 3
    assert TTTAcceptance(1).compute().draft_vocab_coverage is None


def test_targets_inside_the_draft_vocabulary_differ():
    # Anchors 2..7, targets 3..8; the drafter can not make 4 and 6 and is right about all others.
    target = [*TARGET, 8]
    served = profile_of([[0, 0, 1, 0, 1, 0, 1, 1, 0], [0, 0, 0, 1, 0, 1, 1, 0, 0]], target, [(0, 2, 8)])
    # t = 2 drafts 3 and misses 4 -> 4; drafts 5 and misses 6 -> 6; drafts 7 and 8 -> end.
    assert served.rounds[1] == 3 and served.accept_length(2).value == 2.0
    # With the argmax over the draft vocabulary as the target, what the drafter says in place of 4 and 6 is a hit.
    forgiven = profile_of([[0, 0, 1, 1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1, 1, 0, 0]], target, [(0, 2, 8)])
    assert forgiven.accept_length(2).value == 3.0 != served.accept_length(2).value
    # Such targets left out of numerator and denominator make the drafter look as perfect.
    assert served.step_acc[0] == 4 / 6 != 4 / (6 - 2)


# vllm-project/speculators#624, #902: masks over EAGLE's slots under which a perfect drafter was scored .75 and .5.
MASKS = {
    "prompt2_answer4": [0, 0, 1, 1, 1, 1],
    "answer4_pad2": [1, 1, 1, 1, 0, 0],
    "two_turns": [0, 1, 1, 1, 0, 0, 1, 1, 1],
}


@pytest.mark.parametrize("name", MASKS)
def test_perfect_drafter_scores_one_at_every_step(name):
    mask = torch.tensor([[*MASKS[name], 0, 0]])  # the last slot drafts the token two further on
    spans = spans_from_mask(mask, mask_on="slot")
    profile = profile_of([[1] * mask.shape[1]] * 3, list(range(mask.shape[1])), spans.tolist())
    assert profile.full_acc == profile.cond_acc == profile.step_acc == (1.0, 1.0, 1.0)
    assert AcceptLengthCurve.from_full_acc(profile.full_acc).accept_length(3).value == 4.0
    assert profile.accepted_histogram(3)[0] == 0


def test_perfect_drafter_on_a_long_answer_reaches_depth_plus_one():
    profile = profile_of([[1] * 42] * 3, list(range(42)), [(0, 1, 41)])
    assert profile.accept_length(3).value == 4.0
    assert profile.full_acc == (1.0, 1.0, 1.0)


def test_sliding_anchor_by_hand():
    # One step that hits from anchors 1..4 (targets 2..5) and from 7.
    hits = [[0, 1, 1, 1, 1, 0, 0, 1, 0]]
    profile = profile_of(hits, list(range(9)), [(0, 1, 8)], max_depth=3)
    # t=1: targets 2 3 4 hit (anchors 1, 2, 3) -> t=5; t=5 misses -> 6; t=6 misses -> 7; t=7 hits 8 -> end.
    assert profile.accepted_histogram(3) == (2, 1, 0, 1)
    assert profile.ttt_steps == 1


def test_spans_never_cross_into_the_next_one():
    # All right, two answers back to back: 0..3 and 4..7. The first ends at 3, whatever the depth.
    profile = profile_of([[1] * 8] * 4, list(range(8)), [(0, 0, 3), (0, 4, 7)])
    assert profile.tokens == 6
    assert profile.rounds == (4, 2, 2, 2)


def test_empty_metric_and_empty_batches():
    metric = TTTAcceptance(2)
    empty = metric.compute()
    assert empty.tokens == 0
    assert math.isnan(empty.accept_length(1).value)
    metric.update(
        torch.zeros(2, 0, 5, dtype=torch.int64), torch.zeros(0, 5, dtype=torch.int64), torch.zeros(0, 3).long()
    )
    assert metric.compute().tokens == 0


@pytest.mark.parametrize(
    ("spans", "rule"),
    [
        ([(1, 0, 3)], "row must lie in [0, batch)"),
        ([(0, 3, 2)], "P must satisfy 0 <= P <= E"),
        ([(0, -1, 2)], "P must satisfy 0 <= P <= E"),
        ([(0, 2, 8)], "E must be below the sequence length"),
        ([(0, 4, 6), (0, 1, 4)], "spans of one row must not overlap"),
    ],
)
def test_illegal_spans_are_named(spans, rule):
    with pytest.raises(InputError, match=r"spans\[\d\] = .*") as error:
        profile_of(HITS, TARGET, spans)
    assert error.value.rule == rule


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"draft_ids": torch.zeros(3, 1, 8, dtype=torch.int64)}, "draft_ids.shape"),
        ({"draft_ids": torch.zeros(2, 1, 8)}, "draft_ids.dtype"),
        ({"target_ids": torch.zeros(8, dtype=torch.int64)}, "target_ids.shape"),
        ({"spans": torch.tensor([0, 2, 7])}, "spans.shape"),
        ({"sequence_index": torch.tensor([1, 2])}, "sequence_index.shape"),
    ],
)
def test_wrong_shapes_are_named(change, field):
    good = {
        "draft_ids": drafts_from_hits(HITS, TARGET),
        "target_ids": torch.tensor([TARGET]),
        "spans": torch.tensor([[0, 2, 7]]),
        "sequence_index": torch.tensor([0]),
    }
    with pytest.raises(InputError) as error:
        TTTAcceptance(2).update(**{**good, **change})
    assert error.value.field == field
