"""The metric: TTT predictions in, additive acceptance counts out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric

from ..errors import InputError
from .checks import VALUE_RULES, check_tensors, count_broken
from .counts import AcceptanceCounts, Array
from .profile import AcceptanceProfile
from .spans import SPAN_RULES, anchor_ends, check_spans, without_illegal
from .walk import accepted_histogram, expected_histogram, extend_hits, step_validity, ttt_hits

__all__ = ["TTTAcceptance"]

_MODES = ("greedy", "onehot", "rejection")
_FAULTS = (*(("spans", rule) for rule in SPAN_RULES), *VALUE_RULES.items())


class TTTAcceptance(Metric):
    """Counts what a serving engine would accept, from the per-step predictions of EAGLE-3's training-time test.

    States are sums in ``blocks`` blocks of sequences, so that batches, ranks and runs add up exactly, and the jackknife
    over blocks gives the interval of anything computed from them. ``update`` works where its tensors are and never
    waits for the device.

    Args:
        ttt_steps: K, number of TTT steps whose predictions ``update`` gets.
        max_depth: D, largest draft depth to walk (default K). Depths above K use the sliding anchor, which is too
            high for drafters that decay beyond their training (see :func:`~eagle_speedup.acceptance.walk.extend_hits`).
        blocks: G, number of jackknife blocks; a sequence is in block ``sequence_index % G``.
        mode: how drafts will be served: ``greedy`` (the targets are the verifier's greedy tokens), ``onehot``
            (temperature > 0 with the draft's argmax; the targets are tokens sampled from the verifier) or ``rejection``
            (drafts sampled, lossless rejection sampling; the same targets, and ``update`` needs ``accept_prob``). The
            first two are the same hard walk; the third counts expected rounds, in float64.
        sequences: number of sequences of the validation set. With it each ``sequence_index`` counts once however often
            the ranks' samplers repeat it, at the price of one row of counts per sequence in place of one per block.
        draft_vocab: int64 [V_draft] verifier ids that the drafter can produce, for the coverage and to refuse drafts
            that were not mapped to the verifier's vocabulary; None = not known.
        vocab_size: V, to refuse ids outside the verifier's vocabulary; None = not checked.
        level: level of the profile's intervals.

    Example:
        >>> metric = TTTAcceptance(ttt_steps=2)
        >>> target = torch.tensor([[7, 8, 9, 10]])  # prompt 7, answer 8 9 10: P = 1, E = 3
        >>> drafts = torch.tensor([[[-1, 9, 10, -1]], [[-1, 10, -1, -1]]])  # a perfect drafter
        >>> metric.update(drafts, target, torch.tensor([[0, 1, 3]]))
        >>> metric.compute().accept_length(2).value
        2.0
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    sums: Tensor
    in_draft_vocab: Tensor

    def __init__(
        self,
        ttt_steps: int,
        max_depth: int | None = None,
        blocks: int = 64,
        mode: str = "greedy",
        *,
        sequences: int | None = None,
        draft_vocab: Tensor | None = None,
        vocab_size: int | None = None,
        level: float = 0.90,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("dist_sync_fn", _all_reduce_sum)
        super().__init__(**kwargs)
        self.ttt_steps = _positive("ttt_steps", ttt_steps)
        self.max_depth = _positive("max_depth", ttt_steps if max_depth is None else max_depth)
        self.blocks = _positive("blocks", blocks)
        self.sequences = None if sequences is None else _positive("sequences", sequences)
        self.vocab_size = None if vocab_size is None else _positive("vocab_size", vocab_size)
        if mode not in _MODES:
            raise InputError("mode", mode, f"must be one of {', '.join(_MODES)}")
        if not 0 < level < 1:
            raise InputError("level", level, "must lie in (0, 1)")
        self.mode = mode
        self.level = level
        self.knows_draft_vocab = draft_vocab is not None
        self.register_buffer("in_draft_vocab", _membership(draft_vocab), persistent=False)
        self.rows_seen = 0
        self._forwarding = False
        # One tensor, so that one collective synchronises everything: a row per block (or sequence), the flat counts and
        # how often the row was added; the last row counts the faults met on a device, where raising would wait for it.
        rows = (self.sequences or self.blocks) + 1
        columns = max(AcceptanceCounts.width(self.ttt_steps, self.max_depth) + 1, len(_FAULTS))
        dtype = torch.float64 if mode == "rejection" else torch.int64
        # On the host even under `torch.device("meta")`, where sharded models are built: there it would lose its zeros.
        self.add_state("sums", default=torch.zeros(rows, columns, dtype=dtype, device="cpu"), dist_reduce_fx="sum")
        self._device = self.sums.device  # torchmetrics has taken the default device's

    def update(
        self,
        draft_ids: Tensor,
        target_ids: Tensor,
        spans: Tensor,
        *,
        sequence_index: Tensor | None = None,
        accept_prob: Tensor | None = None,
        verifier_ids: Tensor | None = None,
    ) -> None:
        """Add one batch.

        Args:
            draft_ids: int64 [K, B, T]; ``draft_ids[k, b, t]`` is the token (verifier's vocabulary, -1 = none) that step
                k drafts from anchor t, for position t + 1 + k.
            target_ids: int64 [B, T] the text: the verifier's own tokens.
            spans: int64 [S, 3] rows (row, P, E): indices of the first and the last token of each answer.
            sequence_index: int64 [B] which sequence of the validation set each row is; default: running number.
            accept_prob: float [K, B, T] = min(1, q(x) / p(x)) of the token x at t + 1 + k, in ``rejection`` mode (see
                :func:`~eagle_speedup.acceptance.rejection.acceptance_probability`).
            verifier_ids: int64 [B, T], the verifier's argmax for position t; where it differs from ``target_ids`` the
                text is not the verifier's own, and the accept length understates what serving shows.

        Raises:
            InputError: wrong shapes, types or devices at once; illegal spans and values at once where they are in host
                memory, else at ``compute``.
        """
        tensors = {"draft_ids": draft_ids, "target_ids": target_ids, "spans": spans, "sequence_index": sequence_index}
        tensors.update(accept_prob=accept_prob, verifier_ids=verifier_ids)
        check_tensors(tensors, self.ttt_steps, self.sums.device)
        self._check_options(accept_prob, sequence_index)
        batch, length = target_ids.shape
        device = target_ids.device
        if sequence_index is None:
            sequence_index = torch.arange(self.rows_seen, self.rows_seen + batch, device=device)
        self.rows_seen += batch
        if batch == 0 or length == 0:
            return
        if spans.device.type == "cpu":
            check_spans(spans, batch, length)
        spans, faults = without_illegal(spans.to(device, non_blocking=True).long(), batch, length)
        row, bad_index = self._state_row(sequence_index.to(device, non_blocking=True))
        ends = anchor_ends(spans, batch, length)
        values = (
            count_broken("sequence_index", sequence_index, bad_index),
            *self._broken_values(draft_ids, target_ids, ends, accept_prob),
        )
        counts = self._row_counts(draft_ids, target_ids, spans, ends, accept_prob, verifier_ids)
        counts = torch.cat([counts, torch.ones_like(counts[:, :1])], dim=1)
        counts = torch.where(bad_index[:, None], 0, counts).to(self.sums.dtype)
        self.sums[:-1, : counts.shape[1]].index_add_(0, row, counts)
        self.sums[-1, : len(_FAULTS)] += torch.cat([faults, torch.stack(values)])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """``update``, and the profile of this batch alone."""
        self._forwarding = True
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._forwarding = False

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Module:
        """Follow a module to another device, but never to another precision: sums of counts must stay exact."""
        return super()._apply(lambda tensor: tensor.to(fn(tensor[:0]).device), exclude_state)

    def _check_options(self, accept_prob: Tensor | None, sequence_index: Tensor | None) -> None:
        """Refuse what does not go with the options of this metric."""
        if (accept_prob is not None) != (self.mode == "rejection"):
            given = "missing" if accept_prob is None else "given"
            rule = f"is for mode 'rejection' and needed there; the mode is {self.mode!r}"
            raise InputError("accept_prob", given, rule)
        if self.sequences is not None and sequence_index is None:
            raise InputError("sequence_index", None, "must say which sequences these are where sequences is given")

    def _broken_values(
        self, draft_ids: Tensor, target_ids: Tensor, ends: Tensor, accept_prob: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers of illegal values among those that count: of the targets, drafts and probabilities."""
        targets, none = (ends >= 0).roll(1, dims=1), torch.zeros((), dtype=torch.int64, device=ends.device)
        outside = target_ids < 0
        if self.vocab_size is not None:
            outside = outside | (target_ids >= self.vocab_size)
        bad_targets = count_broken("target_ids", target_ids, outside & targets)
        valid = step_validity(ends, self.ttt_steps)
        if accept_prob is not None:
            legal = (accept_prob >= 0) & (accept_prob <= 1)  # false for NaN
            return bad_targets, none, count_broken("accept_prob", accept_prob, valid & ~legal)
        if not self.knows_draft_vocab and self.vocab_size is None:
            return bad_targets, none, none
        foreign = ~self._covered(draft_ids)
        if self.vocab_size is not None:
            foreign = foreign | (draft_ids >= self.vocab_size)
        return bad_targets, count_broken("draft_ids", draft_ids, valid & (draft_ids >= 0) & foreign), none

    def _state_row(self, sequence_index: Tensor) -> tuple[Tensor, Tensor]:
        """(row of the state for each sequence, whether its index is out of range)."""
        if self.sequences is None:
            return sequence_index.remainder(self.blocks), sequence_index < 0
        bad = (sequence_index < 0) | (sequence_index >= self.sequences)
        return sequence_index.clamp(0, self.sequences - 1), bad

    def _row_counts(
        self,
        draft_ids: Tensor,
        target_ids: Tensor,
        spans: Tensor,
        ends: Tensor,
        accept_prob: Tensor | None,
        verifier_ids: Tensor | None,
    ) -> Tensor:
        """The flat counts of each row: [B, width], in the order of :class:`AcceptanceCounts`."""
        anchors = ends >= 0
        valid = step_validity(ends, self.ttt_steps)
        if accept_prob is None:
            hits = ttt_hits(draft_ids, target_ids, valid).long()
        else:
            hits = torch.where(valid, accept_prob.double(), 0.0)
        prefix = hits.cumprod(dim=0)
        prefix_before = torch.cat([anchors[None].to(hits.dtype), prefix[:-1]]) * valid
        covered = self._covered(target_ids) & anchors.roll(1, dims=1)  # the target of anchor t is at t + 1
        disagreed = torch.zeros_like(covered) if verifier_ids is None else verifier_ids != target_ids
        per_row = [
            anchors.sum(dim=-1, keepdim=True),
            _answers_per_row(spans, len(target_ids)),
            covered.sum(dim=-1, keepdim=True),
            anchors.sum(dim=-1, keepdim=True) * (verifier_ids is not None),
            (disagreed & anchors.roll(1, dims=1)).sum(dim=-1, keepdim=True),
            *(flags.sum(dim=-1).T for flags in (valid, hits, prefix, prefix_before)),
        ]
        extended = extend_hits(hits, self.max_depth)
        histogram = accepted_histogram if accept_prob is None else expected_histogram
        return torch.cat([*per_row, histogram(extended, ends, spans)], dim=1)

    def _covered(self, token_ids: Tensor) -> Tensor:
        if not self.knows_draft_vocab:
            return torch.ones_like(token_ids, dtype=torch.bool)
        table = self.in_draft_vocab
        known = (token_ids >= 0) & (token_ids < table.shape[0])
        return table[token_ids.clamp(0, table.shape[0] - 1)] & known

    def counts(self) -> AcceptanceCounts:
        """What this process has counted so far (what all have, inside ``sync_context``)."""
        state = self.sums.cpu().numpy()
        for (field, rule), count in zip(_FAULTS, state[-1], strict=False):
            if count:
                raise InputError(field, f"{int(count)} illegal", rule)
        width = AcceptanceCounts.width(self.ttt_steps, self.max_depth)
        flat, times = state[:-1, :width], state[:-1, width]
        if self.sequences is not None:
            flat = _once(flat, times, self.blocks)
        return AcceptanceCounts.from_flat(flat.copy(), self.ttt_steps, self.max_depth)

    def compute(self) -> AcceptanceProfile:
        """The profile of all batches of all processes; warns where the verifier would not have written the text."""
        profile = AcceptanceProfile(self.counts(), self.mode, self.level, self.knows_draft_vocab)
        if profile.is_off_policy:
            rate = f"{profile.off_policy_rate:.0%}"
            text = f"the verifier would not have written {rate} of the tokens: accept length understated"
            warnings.warn(text, UserWarning, stacklevel=2)
        return profile

    def reset(self) -> None:
        """Forget all counts."""
        super().reset()
        # `forward` resets to count its batch alone, but the running number of its rows must go on.
        self.rows_seen = self.rows_seen if self._forwarding else 0


def _answers_per_row(spans: Tensor, batch: int) -> Tensor:
    """Spans with a token after the first, per row: int64 [B, 1]."""
    row, first, last = spans.unbind(-1)
    return torch.zeros(batch, dtype=torch.int64, device=spans.device).index_add(0, row, (last > first).long())[:, None]


def _membership(draft_vocab: Tensor | None) -> Tensor:
    """Bool [V] table of the ids in ``draft_vocab``."""
    if draft_vocab is None:
        return torch.zeros(1, dtype=torch.bool, device="cpu")
    ids = draft_vocab.detach().cpu().long().flatten()
    if ids.numel() == 0 or int(ids.min()) < 0:
        raise InputError("draft_vocab", ids.tolist()[:8], "must hold at least one id, none negative")
    table = torch.zeros(int(ids.max()) + 1, dtype=torch.bool, device="cpu")
    table[ids] = True
    return table


def _once(flat: Array, times: Array, blocks: int) -> Array:
    """Rows of sequences that were added ``times`` times, counted once each and folded into blocks: [G, width]."""
    repeats = np.maximum(times, 1)[:, None]
    whole = flat[:, :2] if np.issubdtype(flat.dtype, np.floating) else flat  # tokens and answers, or all of the counts
    differs = np.mod(whole, repeats).any(axis=1)
    if differs.any():
        index = int(np.flatnonzero(differs)[0])
        raise InputError("sequence_index", index, "must stand for one sequence; its repeats differ")
    once = flat / repeats if np.issubdtype(flat.dtype, np.floating) else flat // repeats
    folded = np.zeros((blocks, flat.shape[1]), dtype=flat.dtype)
    np.add.at(folded, np.arange(len(flat)) % blocks, once)
    return folded


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(name, value, "must be a whole number of at least 1")
    return value


def _all_reduce_sum(state: Tensor, group: Any) -> list[Tensor]:
    """The one collective of a validation: torchmetrics' default gathers (and first asks for the shapes)."""
    total = state.clone()
    torch.distributed.all_reduce(total, group=group)
    return [total]
