"""The metric alone through 1, 2 and 4 processes, with a sampler that repeats sequences to even out the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.utils.data import DistributedSampler

from eagle_speedup.acceptance import AcceptanceCounts, TTTAcceptance
from tests.callbacks.gloo import GlooPool

STEPS, LENGTH = 3, 30


def sequence(index: int):
    """Drafts [K, T], text [T], span and acceptance probabilities of sequence ``index``; the same everywhere."""
    generator = torch.Generator().manual_seed(index)
    text = torch.randint(0, 3, (LENGTH,), generator=generator)
    drafts = torch.randint(0, 3, (STEPS, LENGTH), generator=generator)
    probabilities = torch.rand(STEPS, LENGTH, generator=generator, dtype=torch.float64)
    return drafts, text, (1 + index % 4, LENGTH - 1 - index % 6), probabilities


def counted(size: int, mode: str, rank: int, world: int, told: bool = True):
    """Flat counts of the whole set as seen by one rank, and its number of collectives."""
    metric = TTTAcceptance(STEPS, max_depth=5, mode=mode, sequences=size if told else None, blocks=7)
    indices: Any = range(size)
    sampler: Any = DistributedSampler(indices, num_replicas=world, rank=rank, shuffle=True, seed=5)
    mine = (
        list(sampler) if rank < max(size, 1 + world // 2) else []
    )  # of two sequences, rank 3 repeats one: let it idle
    for start in range(0, len(mine), 3):
        chosen = mine[start : start + 3]
        drafts, text, spans, probabilities = zip(*(sequence(i) for i in chosen), strict=True)
        metric.update(
            torch.stack(drafts, dim=1),
            torch.stack(text),
            torch.tensor([(row, *span) for row, span in enumerate(spans)]),
            sequence_index=torch.tensor(chosen),
            accept_prob=torch.stack(probabilities, dim=1) if mode == "rejection" else None,
        )
    if world == 1:
        return metric.compute().counts.to_dict(), 0
    calls: list[str] = []

    def watched(name, function):
        def call(*args, **kwargs):
            calls.append(name)
            return function(*args, **kwargs)

        return call

    original = {name: getattr(distributed, name) for name in ("all_reduce", "all_gather", "barrier", "broadcast")}
    for name, function in original.items():
        setattr(distributed, name, watched(name, function))
    try:
        profile = metric.compute()
    finally:
        for name, function in original.items():
            setattr(distributed, name, function)
    return profile.counts.to_dict(), len(calls)


def on_rank(size: int, mode: str, told: bool):
    return counted(size, mode, distributed.get_rank(), distributed.get_world_size(), told)


@pytest.fixture(scope="module")
def gloo_four(tmp_path_factory):
    pool = GlooPool(4, tmp_path_factory.mktemp("gloo_four"))
    yield pool
    pool.close()


@pytest.mark.parametrize("mode", ["greedy", "onehot", "rejection"])
@pytest.mark.parametrize("size", [13, 2])
@pytest.mark.parametrize("told", [True, False])
def test_one_two_and_four_processes(gloo_pair, gloo_four, size, mode, told):
    alone, _ = counted(size, mode, 0, 1, told)
    expected = AcceptanceCounts.from_dict(alone)
    assert expected.answers.sum() == size
    for pool in (gloo_pair, gloo_four):
        for state, collectives in pool.run(on_rank, size, mode, told):
            assert collectives == (1 if told else 2), "the second is for sequences whose number nobody told"
            counts = AcceptanceCounts.from_dict(state)
            if mode == "rejection":
                np.testing.assert_allclose(counts.flat(), expected.flat(), rtol=1e-12, atol=1e-12)
            else:
                assert counts == expected
