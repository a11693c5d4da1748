"""From batches on any number of ranks and data loaders to one set of counts per validation."""

from __future__ import annotations

import warnings
from collections.abc import Sequence, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from ..acceptance import AcceptanceCounts, AcceptanceProfile, TTTAcceptance
from ..acceptance.checks import count_broken
from ..errors import InputError
from .sources import TTTBatch

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ["LoaderRows", "ValidationCounter", "val_loaders"]


def val_loaders(trainer: Trainer) -> list[Any]:
    """The validation data loaders of this run, in order of ``dataloader_idx``."""
    # trainer.val_dataloaders would name those of the last fit during a later validate() with others.
    validating = trainer.state.fn == TrainerFn.VALIDATING
    loop = trainer.validate_loop if validating else trainer.fit_loop.epoch_loop.val_loop
    combined = loop._combined_loader
    return [] if combined is None else list(combined.flattened)


class LoaderRows:
    """Numbers the rows of one data loader as a single process would.

    ``DistributedSampler`` deals sample i to rank i % world as its row i // world, and repeats samples from the start to
    even out the ranks: rows beyond the data set are such repeats.
    """

    def __init__(self, loader: Any, rank: int, world: int) -> None:
        batches = getattr(loader, "batch_sampler", None)
        # A batch sampler of one's own deals what it likes; torch then has a sampler that is never asked.
        sampler = getattr(loader, "sampler", None) if batches is None else getattr(batches, "sampler", batches)
        self.rank, self.world = rank, world
        self.samples: int | None = None
        self.shuffled = isinstance(sampler, RandomSampler) or bool(getattr(sampler, "shuffle", False))
        # Samplers of other makes, and iterable data sets, even out the ranks as well, but do not say which of their
        # samples are repeats.
        known = isinstance(sampler, (DistributedSampler, RandomSampler, SequentialSampler))
        self.may_repeat = not known or type(batches) not in (BatchSampler, type(None))
        if isinstance(sampler, DistributedSampler) and not self.may_repeat:
            self.rank, self.world = sampler.rank, sampler.num_replicas
            self.samples = len(cast(Sized, sampler.dataset))
        self.seen = 0

    def take(self, rows: int) -> tuple[range, int]:
        """Places of the next ``rows`` rows in the data set, and how many of them are no repeats."""
        start = self.seen * self.world + self.rank
        self.seen += rows
        places = range(start, start + rows * self.world, self.world)
        fresh = rows if self.samples is None else len(range(start, min(places.stop, self.samples), self.world))
        return places, fresh


class ValidationCounter:
    """Counts one validation after another, each with a single collective.

    The n validation sets share one metric of n * blocks blocks: set i has blocks i * blocks and up.

    Args:
        blocks: jackknife blocks of one set.
        sequences: sizes of the sets, for batches that name their sequences. Without them the repeats of other samplers
            than torch's own take a second collective.
        metric_options: further options of the metric.
    """

    metric: TTTAcceptance | None

    def __init__(self, blocks: int, *, sequences: Sequence[int] = (), **metric_options: Any) -> None:
        self.blocks = blocks
        self.sequences = tuple(sequences)
        self.options = metric_options
        self._sets = 1
        self.may_repeat = False
        """Whether the last batch came from a sampler that may deal a sequence to several ranks unnoticed."""
        self._build(1, torch.device("cpu"))  # refuses bad options now, not at the first batch
        self.metric = None
        self._rows: list[LoaderRows] = []

    def start(self, loaders: Sequence[Any], rank: int, world: int, sets: int) -> None:
        """Begin a validation over these data loaders, which form that many sets (one, or one for each loader)."""
        self._rows = [LoaderRows(loader, rank, world) for loader in loaders]
        self._sets = sets
        if self.metric is not None and self.metric.blocks == sets * self.blocks:
            self.metric.reset()
        elif self.metric is not None:
            self._build(self.metric.ttt_steps, self.metric.device)

    def add(self, batch: TTTBatch, dataloader_idx: int) -> bool:
        """Count a batch; no host synchronisation.

        Returns:
            Whether its rows are in an unknown order, so that they may be in other blocks next time.
        """
        if self.metric is None:
            self._build(batch.draft_ids.shape[0], batch.draft_ids.device)
        assert self.metric is not None
        device = batch.target_ids.device
        rows = batch.target_ids.shape[0]
        loader = self._rows[dataloader_idx]
        places, fresh = loader.take(rows)
        index, named, block = batch.sequence_index, None, None
        if self.sequences and index is None:
            raise InputError("sequence_index", None, "must come with every batch where sequences is given")
        if index is not None and (self.sequences or loader.may_repeat):
            named = self._named_rows(index, dataloader_idx)
        else:
            if fresh < rows:
                batch = replace(batch, spans=_without_rows_from(batch.spans, fresh))
            if index is None:
                index = torch.arange(rows, device=device) * places.step + places.start
            else:
                count_broken("sequence_index", index, index < 0)  # on a device it would only be in another block
            block = index % self.blocks + (dataloader_idx if self._sets > 1 else 0) * self.blocks
        self.may_repeat = named is None and loader.may_repeat
        self.metric.update(
            batch.draft_ids,
            batch.target_ids,
            batch.spans,
            sequence_index=named,
            block_index=block,
            accept_prob=batch.accept_prob,
            verifier_ids=batch.verifier_ids,
        )
        return loader.shuffled and batch.sequence_index is None

    def _named_rows(self, index: torch.Tensor, dataloader_idx: int) -> torch.Tensor:
        """Number of each named sequence among those of all sets: sequence s of set i falls in i's block s % blocks.

        -1 for one out of range, which the metric refuses.
        """
        of_set = dataloader_idx if self._sets > 1 else 0
        number = index // self.blocks * (self._sets * self.blocks) + of_set * self.blocks + index % self.blocks
        outside = index < 0
        if self.sequences:
            outside = outside | (index >= self.sequences[of_set])
        return torch.where(outside, -1, number)

    def finish(self, trainer: Trainer, *, agree: bool) -> list[AcceptanceProfile]:
        """Profile of the pooled sets, then (with several sets) of each; [] where no rank has had any batch.

        Args:
            trainer: for its strategy.
            agree: let the ranks agree on the number of TTT steps first: a rank without a batch does not know it. Must
                be the same on all ranks.
        """
        steps = 0 if self.metric is None else self.metric.ttt_steps
        if agree and trainer.world_size > 1:
            told = trainer.strategy.reduce(torch.tensor(steps, device=trainer.strategy.root_device), reduce_op="max")
            if steps not in (0, int(told)):
                raise InputError("draft_ids.shape[0]", steps, f"must be the same on all ranks; another has {int(told)}")
            steps = int(told)
        if steps == 0:
            return []
        if self.metric is None:
            self._build(steps, trainer.strategy.root_device)
        assert self.metric is not None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The ``compute`` method of metric", category=UserWarning)
            # The monitor says this once in a run, with its name.
            warnings.filterwarnings("ignore", message="the verifier would not have written", category=UserWarning)
            whole: AcceptanceProfile = self.metric.compute()
        if self._sets == 1:
            return [whole]
        parts = [_part(whole, i, self.blocks) for i in range(self._sets)]
        return [_pooled(parts), *parts]

    def _build(self, ttt_steps: int, device: torch.device) -> None:
        options = dict(self.options)
        depth = options.pop("depth")
        if options["max_depth"] is None:
            options["max_depth"] = max(ttt_steps, depth or 0)
        if self.sequences:
            options["sequences"] = -(-max(self.sequences) // self.blocks) * self.blocks * self._sets
        self.metric = TTTAcceptance(ttt_steps, blocks=self._sets * self.blocks, **options).to(device)


def _without_rows_from(spans: torch.Tensor, fresh: int) -> torch.Tensor:
    """Empty the spans (E = P) of the rows from ``fresh`` on; the shape stays, so the host need not know."""
    row, first, last = spans.unbind(-1)
    return torch.stack([row, first, torch.where(row >= fresh, first, last)], dim=-1)


def _part(whole: AcceptanceProfile, index: int, blocks: int) -> AcceptanceProfile:
    counts = whole.counts
    flat = counts.flat()[index * blocks : (index + 1) * blocks]
    part = AcceptanceCounts.from_flat(flat, counts.ttt_steps, counts.max_depth)
    return AcceptanceProfile(part, whole.mode, whole.level, whole.coverage_known)


def _pooled(parts: Sequence[AcceptanceProfile]) -> AcceptanceProfile:
    counts = parts[0].counts
    for part in parts[1:]:
        counts = counts + part.counts
    return AcceptanceProfile(counts, parts[0].mode, parts[0].level, parts[0].coverage_known)
