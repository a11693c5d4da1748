"""Sequences with a name count once, wherever and however often they come up."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from eagle_speedup.acceptance import TTTAcceptance
from eagle_speedup.errors import InputError

from .test_metric_contract import batch


@pytest.mark.parametrize("size", [None, 5])
def test_each_sequence_counts_once(size):
    drafts, target, spans = batch(0)
    plain = TTTAcceptance(3, blocks=2)
    plain.update(drafts, target, spans, sequence_index=torch.tensor([4, 0, 3]))
    once = TTTAcceptance(3, blocks=2, sequences=size)
    once.update(drafts, target, spans, sequence_index=torch.tensor([4, 0, 3]))
    once.update(drafts[:, :1], target[:1], spans[:1], sequence_index=torch.tensor([4]))
    assert once.counts() == plain.counts()
    # In another place of another batch, padded on the left and beside others, it is still the same sequence.
    moved = torch.cat([torch.full((3, 1, 5), -1), drafts[:, :1]], dim=2)
    shifted = spans[:1] + torch.tensor([0, 5, 5])
    once.update(moved, functional.pad(target[:1], (5, 0)), shifted, sequence_index=torch.tensor([4]))
    assert once.counts() == plain.counts()
    blocks = TTTAcceptance(3, blocks=2)
    for _ in range(2):
        blocks.update(drafts[:, :1], target[:1], spans[:1], block_index=torch.tensor([4]))
    assert blocks.counts().answers.tolist() == [2, 0], "rows without a name count as often as they come"


@pytest.mark.parametrize("size", [None, 5])
@pytest.mark.parametrize("mode", ["greedy", "rejection"])
def test_repeats_must_be_of_one_text(size, mode):
    drafts, target, spans = batch(0)
    chance = torch.full(drafts.shape, 0.5) if mode == "rejection" else None
    metric = TTTAcceptance(3, sequences=size, mode=mode)
    metric.update(drafts, target, spans, sequence_index=torch.tensor([4, 4, 3]), accept_prob=chance)
    with pytest.raises(InputError, match="sequence_index = 4: must stand for one text; its repeats differ"):
        metric.compute()
    with pytest.raises(InputError, match=r"sequence_index = .*: must"):
        metric.update(drafts, target, spans, accept_prob=chance)


@pytest.mark.parametrize("mode", ["greedy", "rejection"])
def test_repeats_with_other_drafts_count_as_their_mean(mode):
    """Two batches of other shapes round differently, so that a draft may differ: no reason to give up."""
    drafts, target, spans = batch(0)
    drafts, target, spans = drafts[:, :1], target[:1], spans[:1]
    other = torch.where(torch.arange(drafts.shape[2]) >= 20, -1, drafts)
    rounds = []
    metric = TTTAcceptance(3, blocks=1, mode=mode)
    for ids, chance in ((drafts, 0.9), (other, 0.8)):
        accept = torch.full(ids.shape, chance) if mode == "rejection" else None
        alone = TTTAcceptance(3, blocks=1, mode=mode)
        for m in (alone, metric):
            m.update(ids, target, spans, sequence_index=torch.tensor([7]), accept_prob=accept)
        rounds.append(alone.compute().rounds)
    profile = metric.compute()
    assert rounds[0] != rounds[1] and profile.answers == 1
    assert profile.rounds == pytest.approx([sum(pair) / 2 for pair in zip(*rounds, strict=True)])


def test_named_and_unnamed_batches_do_not_mix():
    drafts, target, spans = batch(0)
    metric = TTTAcceptance(3)
    metric.update(drafts, target, spans, sequence_index=torch.arange(3))
    with pytest.raises(InputError, match="sequence_index = 'earlier batches alone': must come with every batch of"):
        metric.update(drafts, target, spans)
    with pytest.raises(InputError, match="block_index = 'given': is for rows whose sequences are not named"):
        metric.update(drafts, target, spans, sequence_index=torch.arange(3), block_index=torch.arange(3))
    assert metric.compute().answers == 3
    unnamed = TTTAcceptance(3)
    unnamed.update(drafts, target, spans)
    with pytest.raises(InputError, match="sequence_index = 'this batch alone': must come with every batch of all"):
        unnamed.update(drafts, target, spans, sequence_index=torch.arange(3))
    for one, other in ((unnamed, metric), (metric, unnamed)):
        with pytest.raises(InputError, match="sequence_index = 'one of the metrics alone': must come with every batch"):
            one.merge_state(other)
        one.persistent(True)
    unnamed.load_state_dict(metric.state_dict())
    with pytest.raises(InputError, match="sequence_index = 'earlier batches alone'"):
        unnamed.update(drafts, target, spans)
    unnamed.update(drafts, target, spans, sequence_index=torch.arange(3))
    assert unnamed.compute().answers == 3
    metric.reset()
    metric.update(drafts, target, spans)
    assert metric.compute().answers == 3


def test_a_state_dict_is_not_shared_with_the_metric_that_loads_it():
    counted, first, second = (TTTAcceptance(3) for _ in range(3))
    counted.persistent(True)
    counted.update(*batch(0), sequence_index=torch.arange(3))
    state = counted.state_dict()
    first.load_state_dict(state)
    first.update(*batch(1), sequence_index=torch.arange(3, 6))
    second.load_state_dict(state)
    assert second.counts() == counted.counts()


@pytest.mark.parametrize("mode", ["greedy", "rejection"])
def test_names_of_63_bits(mode):
    """Hashes make good names; a float64 would tell only those below 2^53 apart."""
    text = torch.zeros(64, 12, dtype=torch.int64)
    chance = torch.rand(2, 64, 12) if mode == "rejection" else None
    spans = torch.tensor([(row, 1, 11) for row in range(64)])
    metric = TTTAcceptance(2, mode=mode)
    names = torch.arange(2**63 - 64, 2**63 - 1)
    metric.update(
        text.expand(2, -1, -1)[:, :63],
        text[:63],
        spans[:63],
        sequence_index=names,
        accept_prob=(None if chance is None else chance[:, :63]),
    )
    profile = metric.compute()
    assert profile.answers == 63 and (profile.counts.tokens > 0).sum() == 63
