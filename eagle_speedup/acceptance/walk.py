"""Hits of the TTT steps and the walk that decoding would take over them, in parallel and without synchronisation.

Definitions: an anchor t is the newest known token when a round starts;
hit[k, t] says that the token which step k drafts from anchor t equals the target at t + 1 + k, inside the answer; n_t
counts the leading hits; the walk starts at t = P and goes t += n_t + 1 until t >= E.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .rejection import exactly, expected_visits

__all__ = [
    "accepted_histogram",
    "expected_histogram",
    "extend_hits",
    "leading_hits",
    "step_validity",
    "ttt_hits",
    "visited_anchors",
]

_NO_TARGET = -2  # differs from every token id and from -1, "no draft"


def step_validity(ends: Tensor, steps: int) -> Tensor:
    """Whether step k of anchor t has a target inside its span: t + 1 + k <= E.

    Args:
        ends: int64 [B, T] as :func:`~eagle_speedup.acceptance.spans.anchor_ends` gives.
        steps: K.

    Returns:
        bool [K, B, T].
    """
    step = torch.arange(1, steps + 1, device=ends.device).view(-1, 1, 1)
    return torch.arange(ends.shape[1], device=ends.device) + step <= ends


def ttt_hits(draft_ids: Tensor, target_ids: Tensor, valid: Tensor) -> Tensor:
    """hit[k, b, t]: the draft of step k from anchor t equals the target t + 1 + k, where that is valid.

    Args:
        draft_ids: int64 [K, B, T] in the verifier's vocabulary, -1 = none.
        target_ids: int64 [B, T].
        valid: bool [K, B, T].
    """
    steps = draft_ids.shape[0]
    future = functional.pad(target_ids, (0, steps), value=_NO_TARGET)[:, 1:].unfold(1, steps, 1).permute(2, 0, 1)
    return (draft_ids == future) & valid


def extend_hits(hits: Tensor, max_depth: int) -> Tensor:
    """Hits for depths beyond the K steps that were run, by the sliding anchor.

    Step k >= K from anchor t counts as a hit iff step K - 1 hits from anchor t + k - K + 1: the same target token,
    drafted from a later anchor. Valid steps stay inside their span, since the target is the same.

    It takes for granted that later steps are as good as step K - 1. A drafter that was trained for K steps and is
    served deeper decays beyond them, which no hit of the first K steps shows, so the accept length is too high: at
    depth 10 from 5 steps by 0.1 to 0.5 % where it is 1.5, by 2 to 14 % where chains run long. Where that counts, run
    the validation's TTT as deep as serving: then it is exact.

    Args:
        hits: [K, B, T], 0/1 or acceptance probabilities.
        max_depth: D; below K the surplus steps are dropped.

    Returns:
        [D, B, T].
    """
    steps = hits.shape[0]
    if max_depth <= steps:
        return hits[:max_depth]
    padded = functional.pad(hits[-1], (0, max_depth - steps))
    length = hits.shape[-1]
    later = [padded[:, shift : shift + length] for shift in range(1, max_depth - steps + 1)]
    return torch.cat([hits, torch.stack(later)])


def leading_hits(hits: Tensor) -> Tensor:
    """n_t for every depth: int64 [D, B, T], entry d - 1 = number of leading hits among steps 0..d-1."""
    return hits.cumprod(dim=0).cumsum(dim=0)


def visited_anchors(leading: Tensor, ends: Tensor, spans: Tensor) -> Tensor:
    """Anchors at which a round starts, for every depth at once.

    The walk is a chain of jumps t -> t + n_t + 1, so it is followed by pointer doubling: after i passes the marked
    anchors are the first 2^i of each chain. That takes log2(T) passes instead of T steps.

    Args:
        leading: int64 [D, B, T].
        ends: int64 [B, T], -1 off the anchors.
        spans: int64 [S, 3] legal rows (row, P, E).

    Returns:
        bool [D, B, T].
    """
    depths, batch, length = leading.shape
    sink = length  # one more slot that every chain ends in
    slot = torch.arange(length, device=leading.device)
    target = slot + leading + 1
    jump = functional.pad(torch.where(target < ends, target, sink), (0, 1), value=sink)

    row, first, last = spans.unbind(-1)
    # An empty span (E = P) starts no round: its mark goes to the sink.
    start = torch.where(last > first, row * (length + 1) + first, length)
    marked = torch.zeros(batch * (length + 1), dtype=torch.bool, device=leading.device)
    marked = marked.scatter(0, start, True).view(batch, length + 1).repeat(depths, 1, 1)
    for _ in range(length.bit_length()):
        marked = marked.scatter(-1, torch.where(marked, jump, sink), True)
        jump = jump.gather(-1, jump)
    return marked[..., :length]


def accepted_histogram(hits: Tensor, ends: Tensor, spans: Tensor) -> Tensor:
    """Rounds of the walk by the number of drafts they accept: int64 [B, D * (D + 1)].

    Args:
        hits: int64 [D, B, T] of 0 and 1.
        ends: int64 [B, T], -1 off the anchors.
        spans: int64 [S, 3] legal rows.
    """
    depths, batch, _ = hits.shape
    leading = leading_hits(hits)
    visited = visited_anchors(leading, ends, spans)
    bins = torch.zeros(depths, batch, depths + 1, dtype=torch.int64, device=ends.device)
    bins.scatter_add_(-1, leading, visited.long())  # bincount would wait for the device
    return bins.transpose(0, 1).reshape(batch, -1)


def expected_histogram(accept: Tensor, ends: Tensor, spans: Tensor) -> Tensor:
    """Expected rounds by the number of drafts they accept: float64 [B, D * (D + 1)].

    Args:
        accept: float64 [D, B, T] acceptance probabilities, 0 where a step has no target inside the span.
        ends: int64 [B, T], -1 off the anchors.
        spans: int64 [S, 3] legal rows.
    """
    batch, length = ends.shape
    row, first, last = spans.unbind(-1)
    start = torch.where(last > first, row * length + first, batch * length)
    starts = torch.zeros(batch * length + 1, dtype=accept.dtype, device=ends.device).scatter(0, start, 1.0)
    chances = exactly(accept)
    visits = expected_visits(chances, ends, starts[:-1].view(batch, length))
    return torch.einsum("djbt,dbt->bdj", chances, visits).reshape(batch, -1)
