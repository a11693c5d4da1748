"""The same validation through one and two processes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import distributed

from eagle_speedup.acceptance import AcceptanceCounts
from eagle_speedup.callbacks import SpeedupEarlyStopping, SpeedupMonitor
from eagle_speedup.errors import InputError

from .toy import Shard, Texts, ToyDrafter, direct_counts, toy_calibration, toy_loader, toy_trainer


def validated(folder, size, batch_size, give_index):
    """Counts of ``trainer.validate`` on this rank, and how many collectives the monitor's validation end made."""
    callback: Any = SpeedupMonitor(toy_calibration())
    calls = []
    reduce = distributed.all_reduce

    def counted(*args, **kwargs):
        calls.append(args)
        return reduce(*args, **kwargs)

    module = ToyDrafter(step=3, give_index=give_index)
    trainer = toy_trainer(folder, [callback], logger=False, strategy="ddp", devices=2)
    end = callback.on_validation_epoch_end

    def watched(*args):
        distributed.all_reduce = counted
        try:
            end(*args)
        finally:
            distributed.all_reduce = reduce

    callback.on_validation_epoch_end = watched
    trainer.validate(module, toy_loader(size, batch_size), verbose=False)
    return callback.profile.counts.to_dict(), callback.last.tok_s, len(calls)


@pytest.mark.parametrize(
    ("size", "batch_size", "give_index"), [(40, 8, False), (41, 8, False), (41, 4, True), (5, 1, False)]
)
def test_two_processes_count_exactly_as_one(gloo_pair, tmp_path, size, batch_size, give_index):
    alone: Any = SpeedupMonitor(toy_calibration())
    trainer = toy_trainer(tmp_path, [alone], logger=False)
    trainer.validate(ToyDrafter(step=3, give_index=give_index), toy_loader(size, batch_size), verbose=False)
    assert alone.profile.counts == direct_counts(size, 3)
    for counts, tok_s, collectives in gloo_pair.run(validated, str(tmp_path), size, batch_size, give_index):
        assert counts == alone.profile.counts.to_dict()
        assert tok_s == alone.last.tok_s
        assert collectives == 2  # the counts, and once in a run the number of TTT steps


def starved(folder):
    """A fit in which rank 1 never has a validation batch."""
    rank = distributed.get_rank()
    callback = SpeedupMonitor(toy_calibration())
    stopping = SpeedupEarlyStopping(0.01, 2)
    trainer = toy_trainer(
        folder, [stopping, callback], logger=False, strategy="ddp", devices=2, num_sanity_val_steps=0, max_steps=20
    )
    module = ToyDrafter([0.1, 0.3, 0.6])
    loader = torch.utils.data.DataLoader(Shard(Texts(13), rank), batch_size=4)
    trainer.fit(module, toy_loader(), loader)
    return [(v.global_step, v.profile.answers, v.tok_s) for v in callback.history], stopping.stop_decision, rank


def test_a_rank_without_batches_neither_hangs_nor_differs(gloo_pair, tmp_path):
    (first, decision, _), (second, other, rank) = gloo_pair.run(starved, str(tmp_path))
    assert rank == 1
    assert first == second and decision == other
    assert [answers for _, answers, _ in first] == [13] * len(first)
    assert decision.stop and first[-1][0] == 6


class Bucketed(torch.utils.data.Sampler):
    """A sampler as length-bucketing ones are: each rank gets whole buckets, the last ones twice to even them out."""

    def __init__(self, size, rank, world, bucket=4):
        buckets = [list(range(i, min(i + bucket, size))) for i in range(0, size, bucket)]
        buckets += buckets[-1:] * (-len(buckets) % world)
        self.mine = [i for b in buckets[rank::world] for i in b]

    def __iter__(self):
        return iter(self.mine)

    def __len__(self):
        return len(self.mine)


class Batches:
    """A batch sampler without a sampler, as multipack ones are: torch then has one that is never asked."""

    def __init__(self, sampler, rows=3):
        mine = list(sampler)
        self.batches = [mine[i : i + rows] for i in range(0, len(mine), rows)]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


class Stream(torch.utils.data.IterableDataset):
    """An iterable data set that evens out the ranks by itself."""

    def __init__(self, size, sampler):
        self.texts, self.mine = Texts(size), list(sampler)

    def __iter__(self):
        return iter([self.texts[i] for i in self.mine])


def dealt(kind, size, rank, world):
    """A loader that deals whole buckets, by a sampler, a batch sampler or an iterable data set."""
    sampler = Bucketed(size, rank, world)
    if kind == "sampler":
        return toy_loader(size, 3, sampler=sampler)
    if kind == "batch_sampler":
        return torch.utils.data.DataLoader(Texts(size), batch_sampler=Batches(sampler))
    return torch.utils.data.DataLoader(Stream(size, sampler), batch_size=3)


def bucketed(folder, sizes, sequences, names, give_index=True, kind="sampler"):
    """``trainer.validate`` over loaders that repeat sequences; counts of the headline and of each set."""
    callback: Any = SpeedupMonitor(toy_calibration(), sequences=sequences, validation_sets=names, blocks=8)
    rank, world = distributed.get_rank(), distributed.get_world_size()
    loaders = [dealt(kind, size, rank, world) for size in sizes]
    options: Any = {"logger": False, "strategy": "ddp", "devices": 2, "use_distributed_sampler": False}
    trainer = toy_trainer(folder, [callback], **options)
    module = ToyDrafter(step=3, give_index=give_index)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.validate(module, loaders, verbose=False)
    texts = [str(w.message) for w in told if "not dealt by torch's own" in str(w.message)]
    profiles = [callback.profile, *callback.set_profiles.values()]
    return [p.counts.to_dict() for p in profiles], texts


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler", "iterable"])
def test_loaders_that_repeat_sequences_count_each_once(gloo_pair, tmp_path, kind):
    expected = direct_counts(20, 3, blocks=8)  # 5 buckets: the last one goes to both ranks
    for sequences in (20, None):  # their number need not be told
        for (counts,), told in gloo_pair.run(bucketed, str(tmp_path), [20], sequences, None, True, kind):
            assert AcceptanceCounts.from_dict(counts) == expected
            assert told == []
    (repeated, told), _ = gloo_pair.run(bucketed, str(tmp_path), [20], None, None, False, kind)
    assert AcceptanceCounts.from_dict(repeated[0]).answers.sum() == 24
    assert len(told) == 1 and "give sequence_index" in told[0]


def test_repeats_in_several_validation_sets(gloo_pair, tmp_path):
    short, long = direct_counts(5, 3, blocks=8), direct_counts(20, 3, blocks=8)
    for sequences in ([5, 20], None):
        for counts, _ in gloo_pair.run(bucketed, str(tmp_path), [5, 20], sequences, ["chat", "code"]):
            assert [AcceptanceCounts.from_dict(c) for c in counts] == [short + long, short, long]


@pytest.mark.parametrize("names", [None, ["chat", "code"]])
@pytest.mark.parametrize("sampler", [None, [0, 1, 2]])
def test_negative_sequence_numbers_are_refused(tmp_path, names, sampler):
    class Negative(ToyDrafter):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            return {**super().validation_step(batch, batch_idx), "sequence_index": torch.tensor([0, 1, -5])}

    callback = SpeedupMonitor(toy_calibration(), validation_sets=names)
    loaders = [toy_loader(3, 3, sampler=sampler) for _ in names or [""]]
    trainer = toy_trainer(tmp_path, [callback], logger=False)
    with pytest.raises(InputError, match=r"sequence_index\[2\] = -\d: must be at least 0"):
        trainer.validate(Negative(step=3), loaders, verbose=False)


def test_sequences_need_their_number_and_a_size_for_every_set(tmp_path):
    with pytest.raises(InputError, match="sequences = 5: must be 2 whole numbers of at least 1, one a validation set"):
        SpeedupMonitor(toy_calibration(), sequences=5, validation_sets=["chat", "code"])
    with pytest.raises(InputError, match="sequences = 0: must be 1 whole numbers of at least 1"):
        SpeedupMonitor(toy_calibration(), sequences=0)
    callback: Any = SpeedupMonitor(toy_calibration(), sequences=4)
    trainer = toy_trainer(tmp_path, [callback], logger=False)
    with pytest.raises(InputError, match="sequence_index = None: must come with every batch"):
        trainer.validate(ToyDrafter(step=3), toy_loader(4, 4), verbose=False)
    with pytest.raises(InputError, match=r"sequence_index\[0\] = -1: must be at least 0, and below sequences"):
        trainer.validate(ToyDrafter(step=3, give_index=True), toy_loader(5, 4), verbose=False)
