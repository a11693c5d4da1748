"""Answer spans as tensors: what is legal, and where the anchors are."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError

__all__ = ["SPAN_RULES", "anchor_ends", "check_spans", "span_violations"]

#: Rule texts, in the order of the columns of :func:`span_violations`.
SPAN_RULES = (
    "row must lie in [0, batch)",
    "P must satisfy 0 <= P <= E",
    "E must be below the sequence length",
    "spans of one row must not overlap",
)


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
    if spans.shape[0] > 1:
        clash_sorted[1:] = (row_sorted[1:] == row_sorted[:-1]) & (first_sorted[1:] <= last_sorted[:-1])
    clash = torch.zeros_like(clash_sorted).scatter(0, order, clash_sorted)
    return torch.stack([(row < 0) | (row >= batch), (first < 0) | (first > last), last >= length, clash], dim=-1)


def check_spans(spans: Tensor, batch: int, length: int) -> None:
    """Raise an :class:`InputError` that names the first illegal span. Reads values: for host tensors only."""
    broken = span_violations(spans, batch, length)
    if not bool(broken.any()):
        return
    index, rule = (int(i) for i in broken.nonzero()[0])
    row, first, last = spans[index].tolist()
    raise InputError(f"spans[{index}]", f"(row={row}, P={first}, E={last}), B={batch}, T={length}", SPAN_RULES[rule])


def anchor_ends(spans: Tensor, batch: int, length: int) -> Tensor:
    """E of the span whose anchor each slot is, -1 where the slot is no anchor.

    The anchors of a span (row, P, E) are P..E-1. Illegal spans must have been removed or given E <= P = 0.

    Returns:
        int64 [B, T].
    """
    row, first, last = spans.unbind(-1)
    ends = torch.zeros(batch * length, dtype=torch.int64, device=spans.device)
    # Two spans never share a start, so the scatter has no ties; E grows along a row, so the running maximum is the E
    # of the span that started last.
    ends = ends.scatter(0, row * length + first, last).view(batch, length).cummax(dim=1).values
    slot = torch.arange(length, device=spans.device)
    return torch.where(slot < ends, ends, -1)


def validated(spans: Tensor, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Make spans safe to use on their device and count the broken rules there.

    Returns:
        (spans with every illegal row replaced by the empty span (0, 0, 0), int64 [4] number of breaks per rule)
    """
    broken = span_violations(spans, batch, length)
    return torch.where(broken.any(dim=-1, keepdim=True), 0, spans), broken.sum(dim=0)
