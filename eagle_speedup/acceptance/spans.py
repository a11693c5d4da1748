"""Answer spans: what is legal, where the anchors are, and how common mask layouts become spans.

A span (row, P, E) is one answer: P the index of its first token (made by prefill), E that of its last (end-of-turn
included).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..errors import InputError
from .checks import is_integer

__all__ = [
    "MASK_CONVENTIONS",
    "SPAN_RULES",
    "anchor_ends",
    "check_spans",
    "span_violations",
    "spans_from_cu_seqlens",
    "spans_from_mask",
    "spans_from_turns",
    "without_illegal",
]

#: Rule texts, in the order of the columns of :func:`span_violations`.
SPAN_RULES = (
    "row must lie in [0, batch)",
    "P must satisfy 0 <= P <= E",
    "E must be below the sequence length",
    "spans of one row must not overlap",
)

#: What a set bit at index t says, as the distance from a run's (first, last) index to (P, E).
MASK_CONVENTIONS = {
    "input": (0, 0),  # x_t is an answer token
    "target": (1, 1),  # the label at t, x_{t+1}, is an answer token
    "slot": (1, 2),  # EAGLE's slot t (token x_{t+1}, feature g_t) is an anchor: the first is the last prompt slot
}


def span_violations(spans: Tensor, batch: int, length: int) -> Tensor:
    """Which span breaks which rule, without a host synchronisation.

    Args:
        spans: int64 [S, 3] rows (row, P, E).
        batch: B.
        length: T.

    Returns:
        bool [S, 4], columns as :data:`SPAN_RULES`. Of two overlapping spans the later one is marked.
    """
    row, first, last = spans.unbind(-1)
    order = torch.argsort(row * (length + 1) + first, stable=True)
    row_sorted, first_sorted, last_sorted = row[order], first[order], last[order]
    clash_sorted = torch.zeros_like(row_sorted, dtype=torch.bool)
    clash_sorted[1:] = (row_sorted[1:] == row_sorted[:-1]) & (first_sorted[1:] <= last_sorted[:-1])
    clash = torch.zeros_like(clash_sorted).scatter(0, order, clash_sorted)
    return torch.stack([(row < 0) | (row >= batch), (first < 0) | (first > last), last >= length, clash], dim=-1)


def check_spans(spans: Tensor, batch: int, length: int) -> None:
    """Raise an :class:`InputError` that names the first illegal span. For tensors in host memory."""
    broken = span_violations(spans, batch, length).numpy()
    if not broken.any():
        return
    index, rule = (int(i) for i in np.argwhere(broken)[0])
    row, first, last = spans.numpy()[index].tolist()
    raise InputError(f"spans[{index}]", f"(row={row}, P={first}, E={last}), B={batch}, T={length}", SPAN_RULES[rule])


def without_illegal(spans: Tensor, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Make spans safe to use on their device and count the broken rules there.

    Returns:
        (spans with every illegal row replaced by the empty span (0, 0, 0), int64 [4] number of breaks per rule)
    """
    broken = span_violations(spans, batch, length)
    return torch.where(broken.any(dim=-1, keepdim=True), 0, spans), broken.sum(dim=0)


def anchor_ends(spans: Tensor, batch: int, length: int) -> Tensor:
    """E of the span whose anchor each slot is, -1 where the slot is no anchor.

    The anchors of a span (row, P, E) are P..E-1.

    Returns:
        int64 [B, T].
    """
    row, first, last = spans.unbind(-1)
    # Empty spans have no anchors and may share a start with others: they go to a slot of their own.
    start = torch.where(last > first, row * length + first, batch * length)
    ends = torch.zeros(batch * length + 1, dtype=torch.int64, device=spans.device).scatter(0, start, last)
    # E grows along a row, so the running maximum is the E of the span that started last.
    ends = ends[:-1].view(batch, length).cummax(dim=1).values
    slot = torch.arange(length, device=spans.device)
    return torch.where(slot < ends, ends, -1)


def spans_from_mask(mask: Tensor, *, mask_on: str, document_ids: Tensor | None = None) -> Tensor:
    """Spans from a loss mask; every run of set bits inside one document is an answer.

    Reading a mask by the wrong convention starts the walk one token early or late, so the convention has no default.

    Args:
        mask: bool or 0/1 [B, T].
        mask_on: ``input`` (bit t: x_t is an answer token), ``target`` (bit t: the label x_{t+1} is) or ``slot`` (bit t:
            the drafter's slot t, holding token x_{t+1} and feature g_t, is an anchor).
        document_ids: int [B, T] number of the packed document that x_t belongs to; an answer ends where its document
            does, whatever the mask says.

    Returns:
        int64 [S, 3] on the host.

    Raises:
        InputError: what is no mask, such as labels with their -100, or document numbers that do not go with it.
    """
    _check_mask(mask, mask_on, document_ids)
    mask = mask.cpu()
    strange = mask[(mask != 0) & (mask != 1)]
    if strange.numel():  # labels with their -100, or weights of a loss
        raise InputError("mask", strange[0].item(), "must hold 0 and 1 only")
    to_first, to_last = MASK_CONVENTIONS[mask_on]
    bits = mask.bool().clone()
    length = bits.shape[1]
    own = torch.zeros_like(bits, dtype=torch.int64) if document_ids is None else document_ids.cpu().long()
    # Bit t stands for the token at t + to_first, and belongs to that token's document.
    bits[:, max(0, length - to_first) :] = False
    documents = functional.pad(own, (0, to_first))[:, to_first:]
    opens = bits & ~_before(bits, documents)
    closes = bits & ~_before(bits.flip(1), documents.flip(1)).flip(1)
    row, first = opens.nonzero(as_tuple=True)
    last = closes.nonzero(as_tuple=True)[1]
    # Where a document's last slot is set, the token that it drafts would be another document's first.
    end = torch.minimum(last + to_last, _document_ends(own)[row, first + to_first])
    return torch.stack([row, first + to_first, end], dim=-1)


def _check_mask(mask: Tensor, mask_on: str, document_ids: Tensor | None) -> None:
    """What names, types and shapes tell."""
    if mask_on not in tuple(MASK_CONVENTIONS):
        raise InputError("mask_on", mask_on, f"must be one of {', '.join(MASK_CONVENTIONS)}")
    if not isinstance(mask, Tensor):
        raise InputError("mask", type(mask).__name__, "must be a tensor [B, T]")
    if mask.ndim != 2:
        raise InputError("mask.shape", tuple(mask.shape), "must be [B, T]")
    if document_ids is None:
        return
    if not isinstance(document_ids, Tensor):
        raise InputError("document_ids", type(document_ids).__name__, "must be a tensor [B, T]")
    if document_ids.shape != mask.shape:
        raise InputError("document_ids.shape", tuple(document_ids.shape), f"must be {list(mask.shape)}, as the mask")
    if not is_integer(document_ids):
        raise InputError("document_ids.dtype", document_ids.dtype, "must be an integer type")


def _document_ends(documents: Tensor) -> Tensor:
    """Index of the last token of each token's document: int64 [B, T]."""
    length = documents.shape[1]
    slot = torch.arange(length).expand_as(documents)
    stops = torch.ones_like(documents, dtype=torch.bool)
    stops[:, :-1] = documents[:, 1:] != documents[:, :-1]
    return torch.where(stops, slot, length).flip(1).cummin(dim=1).values.flip(1)


def _before(bits: Tensor, documents: Tensor) -> Tensor:
    """Whether the index before is set and in the same document: bool [B, T]."""
    joined = torch.zeros_like(bits)
    joined[:, 1:] = bits[:, :-1] & (documents[:, 1:] == documents[:, :-1])
    return joined


def spans_from_cu_seqlens(cu_seqlens: Sequence[int] | Tensor, prompt_lengths: Sequence[int] | Tensor) -> Tensor:
    """Spans of documents packed into one row: document i holds [cu[i], cu[i + 1]), its answer follows its prompt.

    Args:
        cu_seqlens: N + 1 rising offsets, the first 0.
        prompt_lengths: N prompt lengths in tokens; a document that is all prompt has no span.

    Returns:
        int64 [S, 3], row 0.
    """
    offsets = _whole_numbers("cu_seqlens", cu_seqlens)
    prompts = _whole_numbers("prompt_lengths", prompt_lengths)
    if not offsets or offsets[0] != 0 or any(b < a for a, b in itertools.pairwise(offsets)):
        raise InputError("cu_seqlens", offsets, "must start at 0 and never fall")
    if len(prompts) != len(offsets) - 1:
        raise InputError("prompt_lengths", prompts, f"must hold {len(offsets) - 1} lengths, one a document")
    spans = []
    for i, (start, stop, prompt) in enumerate(zip(offsets, offsets[1:], prompts, strict=False)):
        if not 0 <= prompt <= stop - start:
            raise InputError(f"prompt_lengths[{i}]", prompt, f"must lie in [0, {stop - start}], the document's length")
        if start + prompt < stop:
            spans.append((0, start + prompt, stop - 1))
    return torch.tensor(spans, dtype=torch.int64).view(-1, 3)


def _whole_numbers(name: str, values: Sequence[int] | Tensor) -> list[int]:
    rule = "must be a list of whole numbers"
    try:
        vector = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):  # None, text, rows of unequal lengths
        raise InputError(name, values, rule) from None
    if vector.ndim != 1 or (vector.numel() and not is_integer(vector)):
        raise InputError(name, vector.tolist(), rule)
    return [int(value) for value in vector.tolist()]


def spans_from_turns(rows: Iterable[Iterable[tuple[str, int]]], *, answer_role: str = "assistant") -> Tensor:
    """Spans from chat turns given in order as (role, number of tokens).

    Tokens that the template writes before an answer (such as the assistant header) are not generated: give them a role
    of their own. The end-of-turn token that the verifier generates belongs to the answer.

    Args:
        rows: for each row of the batch its turns.
        answer_role: the role whose turns are answers.

    Returns:
        int64 [S, 3].

    Raises:
        InputError: turns of another form, or a length that is no whole number.

    >>> spans_from_turns([[("user", 5), ("header", 2), ("assistant", 3)]]).tolist()
    [[0, 7, 9]]
    """
    spans = []
    for row, turns in enumerate(_listed("rows", rows)):
        position = 0
        for index, turn in enumerate(_listed(f"rows[{row}]", turns)):
            if isinstance(turn, str) or not isinstance(turn, Sequence) or len(turn) != 2:
                raise InputError(f"rows[{row}][{index}]", turn, f"must be a turn (role, number of tokens); {_TURNS}")
            role, tokens = turn
            if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
                raise InputError(f"rows[{row}][{index}]", (role, tokens), "must have a whole length of at least 0")
            if role == answer_role and tokens > 0:
                spans.append((row, position, position + tokens - 1))
            position += tokens
    return torch.tensor(spans, dtype=torch.int64).view(-1, 3)


def _listed(name: str, values: Iterable[Any]) -> Iterable[Any]:
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise InputError(name, values, f"must be a list; {_TURNS}")
    return values


_TURNS = "rows holds a list of turns for each row"
