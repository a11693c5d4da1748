"""Draft tokens by a forward hook on the drafter's head, with no change to the module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..acceptance.settings import whole
from ..acceptance.spans import spans_from_mask
from ..acceptance.vocabulary import absolute_d2t, to_verifier_ids
from ..errors import InputError
from .sources import DraftSource, TTTBatch

__all__ = ["HookSource"]


class HookSource(DraftSource):
    """Takes the argmax of the drafter's head at every TTT step of a validation batch.

    The head must run once per TTT step, in order, with logits [B, T, V_draft] over all slots (what follows a slot's
    answer is ignored). It may also return them as ``output.logits`` or ``output["logits"]``, or in a tuple that holds
    no other such tensor. Only ids are kept: one step of bf16 logits would be half a gigabyte. Hooks see nothing inside
    a graph that was compiled before they were installed, so compile after the trainer has started, or not for
    validation; a batch in which the head did not run ``ttt_steps`` times is refused.

    The head says nothing about the verifier. So this source can not serve mode ``rejection``, which needs acceptance
    probabilities (see :class:`~eagle_speedup.callbacks.sources.OutputsSource`), and text that the verifier did not
    write goes unnoticed (no off-policy warning) where ``verifier_ids`` are not given.

    Args:
        ttt_steps: K, times the head runs per validation batch.
        head: name of the head in the module, whole or its last components (``drafter.lm_head``). Never a substring:
            ``lm_head`` does not mean ``verifier_lm_head``.
        d2t: name of the buffer with the draft vocabulary (offset or absolute form), the tensor itself, or None where
            the drafter has the whole vocabulary.
        d2t_form: form of that vocabulary, see :func:`~eagle_speedup.acceptance.vocabulary.absolute_d2t`; needed where
            its ids are not in rising order.
        slots_before_anchor: anchor minus slot, below T. 1 in EAGLE's layout, where slot t - 1 (token x_t, feature
            g_{t-1}) drafts from anchor t.
        target_ids: key of the text [B, T] in the batch.
        spans: key of the answer spans [S, 3]; where the batch has none, ``loss_mask`` is read.
        loss_mask: key of a 0/1 mask [B, T]; answers end where the batch's ``document_ids`` [B, T], if any, change.
        mask_on: convention of that mask, see :func:`~eagle_speedup.acceptance.spans.spans_from_mask`; required to read
            one. Masks are read on the host; spans from the data loader are cheaper.
        sequence_index: key of the optional sequence numbers [B].
        verifier_ids: key, in the batch or in the dict that ``validation_step`` returns, of the verifier's argmax for
            position t [B, T]; optional.
    """

    def __init__(
        self,
        ttt_steps: int,
        *,
        head: str = "lm_head",
        d2t: str | Tensor | None = "d2t",
        d2t_form: str | None = None,
        slots_before_anchor: int = 1,
        target_ids: str = "input_ids",
        spans: str = "spans",
        loss_mask: str = "loss_mask",
        mask_on: str | None = None,
        sequence_index: str = "sequence_index",
        verifier_ids: str = "verifier_ids",
    ) -> None:
        self.ttt_steps = whole("ttt_steps", ttt_steps)
        self.head = head
        self.d2t = d2t
        self.d2t_form = d2t_form
        self.slots_before_anchor = whole("slots_before_anchor", slots_before_anchor, 0)
        self.keys = {"target_ids": target_ids, "spans": spans, "loss_mask": loss_mask}
        self.keys.update(sequence_index=sequence_index, verifier_ids=verifier_ids)
        self.mask_on = mask_on
        self._handle: torch.utils.hooks.RemovableHandle | None = None
        self._table: Tensor | None = None
        self._batch: Mapping[str, Any] | None = None
        self._captured: list[Tensor] = []

    def attach(self, pl_module: nn.Module) -> None:
        """Find the head and hook it. InputError when the name fits no module, or several."""
        head = _named(pl_module, dict(pl_module.named_modules()), self.head, "head")
        self._table = self._draft_vocabulary(pl_module)
        self._handle = head.register_forward_hook(self._capture)

    def start_batch(self, pl_module: nn.Module, batch: object) -> None:
        """Listen to this batch."""
        if not isinstance(batch, Mapping):
            raise InputError("validation batch", type(batch).__name__, "must be a dict for a HookSource")
        self._batch, self._captured = batch, []

    def read(self, pl_module: nn.Module, outputs: object) -> TTTBatch:
        """Put the captured steps together. InputError when the head did not run once per step over all slots."""
        batch, captured = self._batch, self._captured
        self._batch, self._captured = None, []
        assert batch is not None
        if len(captured) != self.ttt_steps:
            rule = f"must run ttt_steps = {self.ttt_steps} times in a validation batch (compiled before the hook?)"
            raise InputError(f"head {self.head!r} calls", len(captured), rule)
        target = self._of(batch, "target_ids")
        for step, ids in enumerate(captured):
            if ids.shape != target.shape:
                rule = f"must be over all slots of {self.keys['target_ids']!r}, {list(target.shape)}"
                raise InputError(f"head {self.head!r} output[step {step}].shape[:2]", tuple(ids.shape), rule)
        drafts = self._by_anchor(torch.stack(captured))
        verifier_ids = self._optional(outputs, "verifier_ids")
        if verifier_ids is None:
            verifier_ids = self._optional(batch, "verifier_ids")
        index = self._optional(batch, "sequence_index")
        return TTTBatch(drafts, target, self._spans(batch), index, verifier_ids=verifier_ids)

    def _by_anchor(self, ids: Tensor) -> Tensor:
        """From draft ids by slot to the verifier's ids by anchor: [K, B, T]."""
        length = ids.shape[-1]
        if self.slots_before_anchor >= max(length, 2):  # a row of one token has no anchors, whatever the layout
            rule = f"must be below T = {length}, or no slot drafts from any anchor"
            raise InputError("slots_before_anchor", self.slots_before_anchor, rule)
        if self._table is not None:
            self._table = self._table.to(ids.device)
            ids = to_verifier_ids(ids, self._table)
        return functional.pad(ids, (self.slots_before_anchor, 0), value=-1)[..., :length]

    def detach(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()
        self._handle, self._batch, self._captured = None, None, []

    def _capture(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._batch is None:  # training, or another part of the validation
            return
        if len(self._captured) < self.ttt_steps + 1:
            self._captured.append(self._logits(output).detach().argmax(dim=-1))

    def _logits(self, output: Any) -> Tensor:
        """The logits in what the head returned, where it is clear which tensor they are."""
        held = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
        found = [part for part in (held if isinstance(held, list | tuple) else [held]) if _is_logits(part)]
        if len(found) != 1:
            shown = tuple(held.shape) if isinstance(held, Tensor) else type(output).__name__
            rule = f"must be logits [B, T, V_draft], or hold one such tensor; holds {len(found)}"
            raise InputError(f"head {self.head!r} output", shown, rule)
        return found[0]

    def _draft_vocabulary(self, pl_module: nn.Module) -> Tensor | None:
        if self.d2t is None:
            return None
        table = self.d2t
        if isinstance(table, str):
            table = _named(pl_module, dict(pl_module.named_buffers()), table, "d2t")
        return absolute_d2t(table, form=self.d2t_form)

    def _spans(self, batch: Mapping[str, Any]) -> Tensor:
        spans = batch.get(self.keys["spans"])
        if isinstance(spans, Tensor):
            return spans
        mask = self._of(batch, "loss_mask")
        if self.mask_on is None:
            raise InputError("mask_on", None, f"must say what a bit of {self.keys['loss_mask']!r} stands for")
        return spans_from_mask(mask, mask_on=self.mask_on, document_ids=batch.get("document_ids"))

    def _optional(self, place: object, name: str) -> Any:
        return place.get(self.keys[name]) if isinstance(place, Mapping) else None

    def _of(self, batch: Mapping[str, Any], name: str) -> Tensor:
        value = batch.get(self.keys[name])
        if not isinstance(value, Tensor):
            raise InputError("validation batch", sorted(map(str, batch)), f"must hold the tensor {self.keys[name]!r}")
        return value


def _is_logits(part: object) -> TypeGuard[Tensor]:
    return isinstance(part, Tensor) and part.ndim == 3 and part.is_floating_point()


def _named(pl_module: nn.Module, found: Mapping[str, Any], name: str, field: str) -> Any:
    """The one entry whose dotted name ends in ``name``, by whole components."""
    fits = [key for key in found if key == name or key.endswith(f".{name}")]
    if len(fits) != 1:
        rule = f"must name exactly one part of {type(pl_module).__name__}; fits {fits or 'none'}"
        raise InputError(field, name, rule)
    return found[fits[0]]
