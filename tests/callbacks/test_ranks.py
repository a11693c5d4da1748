"""The same validation through one and two processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed

from eagle_speedup.callbacks import SpeedupEarlyStopping, SpeedupMonitor

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
