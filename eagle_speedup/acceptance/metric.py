"""The metric: TTT predictions in, additive acceptance counts out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ..errors import InputError
from .counts import AcceptanceCounts
from .profile import AcceptanceProfile
from .spans import SPAN_RULES, anchor_ends, check_spans, validated
from .walk import extend_hits, leading_hits, step_validity, ttt_hits, visited_anchors

__all__ = ["TTTAcceptance"]

_MODES = ("greedy", "onehot")


class TTTAcceptance(Metric):
    """Counts what a serving engine would accept, from the per-step predictions of EAGLE-3's training-time test.

    States are integers in ``blocks`` blocks of sequences, so that batches, ranks and runs add up exactly, and the
    jackknife over blocks gives the interval of anything computed from them. ``update`` works where its tensors are and
    never waits for the device.

    Args:
        ttt_steps: K, number of TTT steps whose predictions ``update`` gets.
        max_depth: D, largest draft depth to walk (default K). Depths above K use the sliding anchor.
        blocks: G, number of jackknife blocks; a sequence is in block ``sequence_index % G``.
        mode: ``greedy`` (targets are the verifier's greedy tokens) or ``onehot`` (temperature > 0 with the draft's
        argmax:
            the targets are tokens sampled from the verifier). Both are the same hard walk; the mode is kept with the
            result.
        draft_vocab: int64 [V_draft] verifier ids that the drafter can produce, for the coverage; None = not known.
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

    counts_state: Tensor
    broken_spans: Tensor

    def __init__(
        self,
        ttt_steps: int,
        max_depth: int | None = None,
        blocks: int = 64,
        mode: str = "greedy",
        *,
        draft_vocab: Tensor | None = None,
        level: float = 0.90,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("dist_sync_fn", _all_reduce_sum)
        super().__init__(**kwargs)
        self.ttt_steps = _positive("ttt_steps", ttt_steps)
        self.max_depth = _positive("max_depth", ttt_steps if max_depth is None else max_depth)
        self.blocks = _positive("blocks", blocks)
        if mode not in _MODES:
            raise InputError("mode", mode, f"must be one of {', '.join(_MODES)}")
        self.mode = mode
        if not 0 < level < 1:
            raise InputError("level", level, "must lie in (0, 1)")
        self.level = level
        self.knows_draft_vocab = draft_vocab is not None
        self.register_buffer("in_draft_vocab", _membership(draft_vocab), persistent=False)
        self.rows_seen = 0
        # One tensor, so that one collective synchronises everything. Its last row counts illegal spans met on a device.
        width = AcceptanceCounts.width(self.ttt_steps, self.max_depth)
        zeros = torch.zeros(self.blocks + 1, max(width, len(SPAN_RULES)), dtype=torch.int64)
        self.add_state("counts_state", default=zeros, dist_reduce_fx="sum")

    def update(
        self, draft_ids: Tensor, target_ids: Tensor, spans: Tensor, *, sequence_index: Tensor | None = None
    ) -> None:
        """Add one batch.

        Args:
            draft_ids: int64 [K, B, T]; ``draft_ids[k, b, t]`` is the token (verifier's vocabulary, -1 = none) that step
                k drafts from anchor t, for position t + 1 + k.
            target_ids: int64 [B, T] the text: the verifier's own tokens.
            spans: int64 [S, 3] rows (row, P, E): indices of the first and the last token of each answer.
            sequence_index: int64 [B] which sequence of the validation set each row is; default: running number.

        Raises:
            InputError: wrong shapes or types at once; illegal spans at once for host tensors, at ``compute`` for
            others.
        """
        self._check_shapes(draft_ids, target_ids, spans, sequence_index)
        batch, length = target_ids.shape
        device = target_ids.device
        if sequence_index is None:
            sequence_index = torch.arange(self.rows_seen, self.rows_seen + batch, device=device)
        self.rows_seen += batch
        if batch == 0 or length == 0 or spans.shape[0] == 0:
            return
        if not spans.is_cuda:
            check_spans(spans, batch, length)
        spans, broken = validated(spans.to(device), batch, length)
        block = sequence_index.to(device) % self.blocks
        rows = self._row_counts(draft_ids, target_ids, spans)
        self.counts_state[:-1, : rows.shape[1]].index_add_(0, block, rows)
        self.counts_state[-1, : len(SPAN_RULES)] += broken

    def _row_counts(self, draft_ids: Tensor, target_ids: Tensor, spans: Tensor) -> Tensor:
        """The flat counts of each row: int64 [B, width]."""
        batch, length = target_ids.shape
        ends = anchor_ends(spans, batch, length)
        anchors = ends >= 0
        valid = step_validity(ends, self.ttt_steps)
        hits = ttt_hits(draft_ids, target_ids, valid)
        prefix = hits.cumprod(dim=0).bool()
        prefix_before = torch.cat([anchors[None], prefix[:-1]]) & valid
        next_target = target_ids.roll(-1, dims=1)
        per_row = [
            anchors.sum(dim=-1, keepdim=True),
            _answers_per_row(spans, batch),
            (self._covered(next_target) & anchors).sum(dim=-1, keepdim=True),
            *(flags.sum(dim=-1).T for flags in (valid, hits, prefix, prefix_before)),
        ]
        leading = leading_hits(extend_hits(hits, self.max_depth))
        visited = visited_anchors(leading, ends, spans)
        # Histogram of accepted drafts over the visited anchors; bincount would synchronise.
        bins = torch.zeros(self.max_depth, batch, self.max_depth + 1, dtype=torch.int64, device=ends.device)
        bins.scatter_add_(-1, leading, visited.long())
        return torch.cat([*per_row, bins.transpose(0, 1).reshape(batch, -1)], dim=1)

    def _covered(self, token_ids: Tensor) -> Tensor:
        if not self.knows_draft_vocab:
            return torch.ones_like(token_ids, dtype=torch.bool)
        table = self.in_draft_vocab
        assert isinstance(table, Tensor)
        known = (token_ids >= 0) & (token_ids < table.shape[0])
        return table[token_ids.clamp(0, table.shape[0] - 1)] & known

    def counts(self) -> AcceptanceCounts:
        """What this process has counted so far (what all have, inside ``sync_context``)."""
        state = self.counts_state.cpu().numpy()
        for rule, count in zip(SPAN_RULES, state[-1], strict=False):
            if count:
                raise InputError("spans", f"{count} illegal rows", rule)
        width = AcceptanceCounts.width(self.ttt_steps, self.max_depth)
        return AcceptanceCounts.from_flat(state[:-1, :width].copy(), self.ttt_steps, self.max_depth)

    def compute(self) -> AcceptanceProfile:
        """The profile of all batches of all processes."""
        coverage_known = self.knows_draft_vocab
        return AcceptanceProfile(self.counts(), mode=self.mode, level=self.level, coverage_known=coverage_known)

    def reset(self) -> None:
        """Forget all counts."""
        super().reset()
        self.rows_seen = 0

    def _check_shapes(
        self, draft_ids: Tensor, target_ids: Tensor, spans: Tensor, sequence_index: Tensor | None
    ) -> None:
        for name, ids in (("draft_ids", draft_ids), ("target_ids", target_ids), ("spans", spans)):
            if ids.is_floating_point() or ids.dtype == torch.bool:
                raise InputError(f"{name}.dtype", ids.dtype, "must be an integer type (ids, not logits or masks)")
        if target_ids.ndim != 2:
            raise InputError("target_ids.shape", tuple(target_ids.shape), "must be [B, T]")
        expected = (self.ttt_steps, *target_ids.shape)
        if tuple(draft_ids.shape) != expected:
            raise InputError("draft_ids.shape", tuple(draft_ids.shape), f"must be [K, B, T] = {list(expected)}")
        if spans.ndim != 2 or spans.shape[1] != 3:
            raise InputError("spans.shape", tuple(spans.shape), "must be [S, 3] rows (row, P, E)")
        if sequence_index is not None and tuple(sequence_index.shape) != tuple(target_ids.shape[:1]):
            raise InputError("sequence_index.shape", tuple(sequence_index.shape), f"must be [B] = {expected[1:2]}")


def _answers_per_row(spans: Tensor, batch: int) -> Tensor:
    """Spans with a token after the first, per row: int64 [B, 1]."""
    row, first, last = spans.unbind(-1)
    return torch.zeros(batch, dtype=torch.int64, device=spans.device).index_add(0, row, (last > first).long())[:, None]


def _membership(draft_vocab: Tensor | None) -> Tensor:
    """Bool [V] table of the ids in ``draft_vocab``."""
    if draft_vocab is None:
        return torch.zeros(1, dtype=torch.bool)
    ids = draft_vocab.detach().cpu().long().flatten()
    if ids.numel() == 0 or int(ids.min()) < 0:
        raise InputError("draft_vocab", ids.tolist()[:8], "must hold at least one id, none negative")
    table = torch.zeros(int(ids.max()) + 1, dtype=torch.bool)
    table[ids] = True
    return table


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(name, value, "must be a whole number of at least 1")
    return value


def _all_reduce_sum(state: Tensor, group: Any) -> list[Tensor]:
    """The one collective of a validation: torchmetrics' default gathers (and first asks for the shapes)."""
    total = state.clone()
    torch.distributed.all_reduce(total, group=group)
    return [total]
