"""The metric: TTT predictions in, additive acceptance counts out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module, functional
from torchmetrics import Metric

from ..errors import InputError
from .checks import VALUE_RULES, check_tensors, count_broken
from .counts import AcceptanceCounts
from .profile import AcceptanceProfile
from .sequences import (
    EXTRA_COLUMNS,
    count_once,
    named_rows,
    placed_rows,
    rows_and_names,
    text_fingerprint,
    with_repeats,
)
from .settings import check_settings, settings_state, vocabulary_table, whole
from .spans import SPAN_RULES, anchor_ends, check_spans, without_illegal
from .walk import accepted_histogram, expected_histogram, extend_hits, step_validity, ttt_hits

__all__ = ["TTTAcceptance"]

_MODES = ("greedy", "onehot", "rejection")
_FAULTS = (*(("spans", rule) for rule in SPAN_RULES), *VALUE_RULES.items())
_ALL_OR_NONE = "must come with every batch of all processes, or with none"
# The last row of the sums: faults met on a device, rows counted without a name, and how many processes have named that
# many rows, by the bits of their number.
_SEEN = len(_FAULTS)
_NAMED = slice(_SEEN + 1, _SEEN + 33)


def _all_reduce_sum(state: Tensor, group: Any) -> list[Tensor]:
    """The one collective of a validation: torchmetrics' default gathers (and first asks for the shapes)."""
    total = state.clone()
    torch.distributed.all_reduce(total, group=group)
    return [total]


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
        sequences: number of sequences of the validation set, all below it. Not needed, but with it named sequences
            need one collective, not two, and never more memory than a row of counts each.
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
    named: list[Tensor]
    settings: Tensor
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
        self.ttt_steps = whole("ttt_steps", ttt_steps)
        self.max_depth = whole("max_depth", ttt_steps if max_depth is None else max_depth)
        self.blocks = whole("blocks", blocks)
        self.sequences = None if sequences is None else whole("sequences", sequences)
        self.vocab_size = None if vocab_size is None else whole("vocab_size", vocab_size)
        if mode not in _MODES:
            raise InputError("mode", mode, f"must be one of {', '.join(_MODES)}")
        if not (isinstance(level, float) and 0 < level < 1):
            raise InputError("level", level, "must lie in (0, 1)")
        self.mode, self.level = mode, level
        self.knows_draft_vocab = draft_vocab is not None
        table = vocabulary_table(draft_vocab, self.vocab_size)
        self.register_buffer("in_draft_vocab", table, persistent=False)
        self.rows_seen = 0
        self._forwarding = False
        # One tensor, so that one collective synchronises everything: a row per block (or sequence) of flat counts.
        rows = (self.sequences or self.blocks) + 1
        columns = max(self._width + EXTRA_COLUMNS, _NAMED.stop)
        dtype = torch.float64 if mode == "rejection" else torch.int64
        # On the host even under `torch.device("meta")`, where sharded models are built: there it would lose its zeros.
        self.add_state("sums", default=torch.zeros(rows, columns, dtype=dtype, device="cpu"), dist_reduce_fx="sum")
        # Sequences whose number is not known: for each batch its rows, as `named_rows` makes them.
        self.add_state("named", default=[], dist_reduce_fx="cat")
        # Tells metrics apart that count differently, where states are loaded, merged, or shared by a collection.
        names = ("ttt_steps", "max_depth", "blocks", "mode", "sequences", "vocab_size")
        self._options: dict[str, int | str | Tensor | None] = {name: getattr(self, name) for name in names}
        self._options["draft_vocab"] = table if self.knows_draft_vocab else None
        self.add_state("settings", default=settings_state(self._options), dist_reduce_fx="max")
        self._device = self.sums.device  # torchmetrics has taken the default device's

    def update(
        self,
        draft_ids: Tensor,
        target_ids: Tensor,
        spans: Tensor,
        *,
        sequence_index: Tensor | None = None,
        block_index: Tensor | None = None,
        accept_prob: Tensor | None = None,
        verifier_ids: Tensor | None = None,
    ) -> None:
        """Add one batch. What is refused leaves the counts as they were.

        Args:
            draft_ids: int64 [K, B, T]; ``draft_ids[k, b, t]`` is the token (verifier's vocabulary, -1 = none) that step
                k drafts from anchor t, for position t + 1 + k.
            target_ids: int64 [B, T] the text: the verifier's own tokens.
            spans: int64 [S, 3] rows (row, P, E): indices of the first and the last token of each answer.
            sequence_index: int64 [B] which sequence of the validation set each row is. A sequence counts once, however
                often ranks and batches repeat it; one row holds all of it. With every batch or with none.
            block_index: int64 [B] where sequences are not named: the block of each row, modulo ``blocks``; default:
                running number. Rows that are dealt twice count twice.
            accept_prob: float [K, B, T] = min(1, q(x) / p(x)) of the token x at t + 1 + k, in ``rejection`` mode (see
                :func:`~eagle_speedup.acceptance.rejection.acceptance_probability`).
            verifier_ids: int64 [B, T], the verifier's argmax for position t; where it differs from ``target_ids`` the
                text is not the verifier's own, and the accept length understates what serving shows.

        Raises:
            InputError: wrong shapes, types or devices at once; illegal spans and values at once where they are in host
                memory, else at ``compute``.
        """
        tensors = {"draft_ids": draft_ids, "target_ids": target_ids, "spans": spans, "accept_prob": accept_prob}
        tensors.update(sequence_index=sequence_index, block_index=block_index, verifier_ids=verifier_ids)
        check_tensors(tensors, self.ttt_steps, self.sums.device)
        self._check_options(accept_prob, sequence_index, block_index)
        batch, length = target_ids.shape
        device = target_ids.device
        if batch == 0 or length == 0:
            return
        draft_ids, target_ids, spans = draft_ids.long(), target_ids.long(), spans.long()
        if spans.device.type == "cpu":
            check_spans(spans, batch, length)
        spans, faults = without_illegal(spans.to(device, non_blocking=True), batch, length)
        index, bad_index = self._checked_index(sequence_index, block_index, batch, device)
        ends = anchor_ends(spans, batch, length)
        values = (bad_index.sum(), *self._broken_values(draft_ids, target_ids, ends, accept_prob))
        counts = self._row_counts(draft_ids, target_ids, spans, ends, accept_prob, verifier_ids)
        if sequence_index is not None:
            counts = with_repeats(counts, text_fingerprint(target_ids, ends >= 0))
        counts = torch.where(bad_index[:, None], 0, counts).to(self.sums.dtype)
        unnamed = batch if sequence_index is None else 0
        if sequence_index is not None and self.sequences is None:
            self.named.append(named_rows(index, counts))
            index, counts = index[:0], counts[:0]
        self._add(index, counts, torch.cat([faults, torch.stack(values), faults.new_full((1,), unnamed)]))
        self.rows_seen += unnamed

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """``update``, and the profile of this batch alone."""
        kept = {**self.metric_state, "named": list(self.named), "_update_count": self._update_count}
        self._forwarding = True
        try:
            return super().forward(*args, **kwargs)
        except Exception:
            vars(self).update(kept)  # torchmetrics has reset them to count the batch alone
            raise
        finally:
            self._forwarding = False

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add what another metric of the same settings has counted."""
        state: dict[str, Any] = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        check_settings(self._options, state.get("settings"))
        unnamed = int(state["sums"][-1, _SEEN])
        if (self.named and unnamed) or (self.rows_seen and len(state["named"])):
            raise InputError("sequence_index", "one of the metrics alone", _ALL_OR_NONE)
        super().merge_state(incoming_state)
        self.rows_seen += unnamed

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={value!r}" for name, value in self._options.items() if name != "draft_vocab")

    @property
    def _width(self) -> int:
        return AcceptanceCounts.width(self.ttt_steps, self.max_depth)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Module:
        """Follow a module to another device, but never to another precision: sums of counts must stay exact."""
        return super()._apply(lambda tensor: tensor.to(fn(tensor[:0]).device), exclude_state)

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        """Keep dynamo out: torchmetrics counts calls in attributes, so a compiled module would compile every batch."""
        return torch.compiler.disable(super()._wrap_update(update))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}sums" in state_dict:
            check_settings(self._options, state_dict.get(f"{prefix}settings"))
            self.rows_seen = int(state_dict[f"{prefix}sums"][-1, _SEEN])
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.named = list(self.named)  # not the very list of the state dict

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = _all_reduce_sum, process_group: Any | None = None) -> None:
        """Add up the sums of all processes, and bring together the rows of named sequences where there are any."""

        group = process_group or self.process_group

        def added(state: Tensor) -> Tensor:
            return torch.stack(dist_sync_fn(state, group=group)).sum(dim=0)

        none = named_rows(self.sums.new_zeros(0), self.sums.new_zeros(0, self._width + EXTRA_COLUMNS))
        rows = torch.cat(self.named) if self.named else none
        sums = self.sums.clone()
        sums[-1, _NAMED.start + len(rows).bit_length()] += 1
        self.sums = added(sums)
        bits = int(self.sums[-1, _NAMED].nonzero().max())
        if bits:
            self.named = [added(placed_rows(rows.to(sums.device), 1 << bits, group))]

    def _check_options(
        self, accept_prob: Tensor | None, sequence_index: Tensor | None, block_index: Tensor | None
    ) -> None:
        """Refuse what does not go with the options of this metric."""
        if (accept_prob is not None) != (self.mode == "rejection"):
            given = "missing" if accept_prob is None else "given"
            rule = f"is for mode 'rejection' and needed there; the mode is {self.mode!r}"
            raise InputError("accept_prob", given, rule)
        if self.sequences is not None and sequence_index is None:
            raise InputError("sequence_index", None, "must say which sequences these are where sequences is given")
        if sequence_index is not None and block_index is not None:
            raise InputError("block_index", "given", "is for rows whose sequences are not named by sequence_index")
        if self.named and sequence_index is None:
            raise InputError("sequence_index", "earlier batches alone", _ALL_OR_NONE)
        if self.rows_seen and sequence_index is not None:
            raise InputError("sequence_index", "this batch alone", _ALL_OR_NONE)

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
        foreign = draft_ids < -1
        if self.knows_draft_vocab:
            foreign = foreign | ((draft_ids >= 0) & ~self._covered(draft_ids))
        if self.vocab_size is not None:
            foreign = foreign | (draft_ids >= self.vocab_size)
        bad_drafts = count_broken("draft_ids", draft_ids, valid & foreign)
        if accept_prob is None:
            return bad_targets, bad_drafts, none
        legal = (accept_prob >= 0) & (accept_prob <= 1)  # false for NaN
        return bad_targets, bad_drafts, count_broken("accept_prob", accept_prob, valid & ~legal)

    def _add(self, index: Tensor, counts: Tensor, last: Tensor) -> None:
        """Add counts [n, ..] to the rows ``index`` of the sums, and [..] to the last row."""
        width, rows = self.sums.shape[1], self.sums.shape[0]
        counts = functional.pad(counts, (0, width - counts.shape[1]))
        last = functional.pad(last, (0, width - last.shape[0])).to(counts.dtype)
        index = torch.cat([index, index.new_full((1,), rows - 1)])
        # Not in place: a state that was made in inference mode may not be changed outside of it.
        self.sums = self.sums.index_add(0, index, torch.cat([counts, last[None]]))

    def _checked_index(
        self, sequence_index: Tensor | None, block_index: Tensor | None, batch: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """(sequence or block of each row, int64 [B], whether it is out of range)."""
        if sequence_index is not None:
            index = sequence_index.long()
            broken = index < 0
            if self.sequences is not None:
                broken = broken | (index >= self.sequences)
            count_broken("sequence_index", index, broken)  # raises for values in host memory
            index = torch.where(broken, 0, index)
            return index.to(device, non_blocking=True), broken.to(device, non_blocking=True)
        if block_index is None:
            block_index = torch.arange(self.rows_seen, self.rows_seen + batch, device=device)
        index = block_index.to(device, non_blocking=True).long().remainder(self.blocks)
        return index, torch.zeros_like(index, dtype=torch.bool)

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
        if self.named:
            if state[:-1].any():
                raise InputError("sequence_index", "some processes alone", _ALL_OR_NONE)
            flat = count_once(*rows_and_names(torch.cat(self.named).cpu().numpy()), self.blocks)
        elif self.sequences is not None:
            flat = count_once(state[:-1, : self._width + EXTRA_COLUMNS], np.arange(self.sequences), self.blocks)
        else:
            flat = state[:-1, : self._width].copy()
        return AcceptanceCounts.from_flat(flat, self.ttt_steps, self.max_depth)

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
        if not self._forwarding:
            self.rows_seen = 0


def _answers_per_row(spans: Tensor, batch: int) -> Tensor:
    """Spans with a token after the first, per row: int64 [B, 1]."""
    row, first, last = spans.unbind(-1)
    return torch.zeros(batch, dtype=torch.int64, device=spans.device).index_add(0, row, (last > first).long())[:, None]
