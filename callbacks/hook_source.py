"""Draft tokens by a forward hook on the drafter's head, with no change to the module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..acceptance.spans import spans_from_mask
from ..acceptance.vocabulary import absolute_d2t, to_verifier_ids
from ..errors import InputError
from .sources import DraftSource, TTTBatch

__all__ = ["HookSource"]


class HookSource(DraftSource):
    """Takes the argmax of the drafter's head at every TTT step of a validation batch.

    The head must run once per TTT step, in order, with logits [B, T, V_draft] over all slots (what follows a slot's
    answer is ignored). Only ids are kept: one step of bf16 logits would be half a gigabyte. Hooks see nothing inside a
    graph that was compiled before they were installed, so compile after the trainer has started, or not for validation;
    a batch in which the head did not run ``ttt_steps`` times is refused.

    Args:
        ttt_steps: K, times the head runs per validation batch.
        head: name of the head in the module, whole or its last components (``drafter.lm_head``). Never a substring:
            ``lm_head`` does not mean ``verifier_lm_head``.
        d2t: name of the buffer with the draft vocabulary (offset or absolute form), the tensor itself, or None where
            the drafter has the whole vocabulary.
        slots_before_anchor: anchor minus slot. 1 in EAGLE's layout, where slot t - 1 (token x_t, feature g_{t-1})
            drafts from anchor t.
        target_ids: key of the text [B, T] in the batch.
        spans: key of the answer spans [S, 3]; where the batch has none, ``loss_mask`` is read.
        loss_mask: key of a 0/1 mask [B, T].
        mask_on: convention of that mask, see :func:`~eagle_speedup.acceptance.spans.spans_from_mask`; required to read
        one.
            Masks are read on the host; spans from the data loader are cheaper.
        sequence_index: key of the optional sequence numbers [B].
    """

    def __init__(
        self,
        ttt_steps: int,
        *,
        head: str = "lm_head",
        d2t: str | Tensor | None = "d2t",
        slots_before_anchor: int = 1,
        target_ids: str = "input_ids",
        spans: str = "spans",
        loss_mask: str = "loss_mask",
        mask_on: str | None = None,
        sequence_index: str = "sequence_index",
    ) -> None:
        if isinstance(ttt_steps, bool) or not isinstance(ttt_steps, int) or ttt_steps < 1:
            raise InputError("ttt_steps", ttt_steps, "must be a whole number of at least 1")
        self.ttt_steps = ttt_steps
        self.head = head
        self.d2t = d2t
        self.slots_before_anchor = slots_before_anchor
        self.keys = {"target_ids": target_ids, "spans": spans, "loss_mask": loss_mask, "sequence_index": sequence_index}
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
        """Put the captured steps together. InputError when the head did not run once per step."""
        batch, captured = self._batch, self._captured
        self._batch, self._captured = None, []
        assert batch is not None
        if len(captured) != self.ttt_steps:
            rule = f"must run ttt_steps = {self.ttt_steps} times in a validation batch (compiled before the hook?)"
            raise InputError(f"head {self.head!r} calls", len(captured), rule)
        target = self._of(batch, "target_ids")
        ids = torch.stack(captured)
        if ids.shape[1:] != target.shape:
            raise InputError("head output", tuple(ids.shape[1:]), f"must be over all slots {list(target.shape)}")
        if self._table is not None:
            self._table = self._table.to(ids.device)
            ids = to_verifier_ids(ids, self._table)
        ids = functional.pad(ids, (self.slots_before_anchor, 0), value=-1)[..., : target.shape[1]]
        index = batch.get(self.keys["sequence_index"])
        return TTTBatch(ids, target, self._spans(batch), index)

    def detach(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()
        self._handle, self._batch, self._captured = None, None, []

    def _capture(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._batch is None:  # training, or another part of the validation
            return
        logits = output.logits if hasattr(output, "logits") else output
        if len(self._captured) < self.ttt_steps + 1:
            self._captured.append(logits.detach().argmax(dim=-1))

    def _draft_vocabulary(self, pl_module: nn.Module) -> Tensor | None:
        if self.d2t is None:
            return None
        table = self.d2t
        if isinstance(table, str):
            table = _named(pl_module, dict(pl_module.named_buffers()), table, "d2t")
        return absolute_d2t(table)

    def _spans(self, batch: Mapping[str, Any]) -> Tensor:
        spans = batch.get(self.keys["spans"])
        if isinstance(spans, Tensor):
            return spans
        mask = self._of(batch, "loss_mask")
        if self.mask_on is None:
            raise InputError("mask_on", None, f"must say what a bit of {self.keys['loss_mask']!r} stands for")
        return spans_from_mask(mask, mask_on=self.mask_on, document_ids=batch.get("document_ids"))

    def _of(self, batch: Mapping[str, Any], name: str) -> Tensor:
        value = batch.get(self.keys[name])
        if not isinstance(value, Tensor):
            raise InputError("validation batch", sorted(map(str, batch)), f"must hold the tensor {self.keys[name]!r}")
        return value


def _named(pl_module: nn.Module, found: Mapping[str, Any], name: str, field: str) -> Any:
    """The one entry whose dotted name ends in ``name``, by whole components."""
    fits = [key for key in found if key == name or key.endswith(f".{name}")]
    if len(fits) != 1:
        rule = f"must name exactly one part of {type(pl_module).__name__}; fits {fits or 'none'}"
        raise InputError(field, name, rule)
    return found[fits[0]]
