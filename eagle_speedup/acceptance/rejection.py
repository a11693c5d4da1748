"""Expected rounds under lossless rejection sampling (drafts sampled from the drafter's q).

On text sampled from the verifier's p, the token x that follows is an accepted draft with probability min(1, q(x) /
p(x)) (Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding, theorem 3.5 read backwards). So
the rounds that would have written a given text are a Markov chain over its positions, and their expected number is
exact.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import InputError

__all__ = ["acceptance_probability", "exactly", "expected_visits"]

_CHUNK = 64


def acceptance_probability(
    draft_logits: Tensor,
    verifier_logits: Tensor,
    token_ids: Tensor,
    *,
    d2t: Tensor | None = None,
    temperature: float = 1.0,
    chunk: int = 1024,
) -> Tensor:
    """min(1, q(x) / p(x)) for given tokens, with only ``chunk`` rows of probabilities in memory at a time.

    Args:
        draft_logits: [..., V_draft].
        verifier_logits: [..., V], the same leading shape.
        token_ids: int64 [...] tokens x in the verifier's vocabulary; negative = none, gives 0.
        d2t: int64 [V_draft] verifier id of each draft id (absolute); None = the same vocabulary.
        temperature: of both distributions.
        chunk: rows per pass.

    Returns:
        float64 [...]; 0 for a token outside the draft vocabulary.
    """
    if not temperature > 0:
        raise InputError("temperature", temperature, "must be positive; at 0 use mode 'greedy'")
    if draft_logits.shape[:-1] != token_ids.shape or verifier_logits.shape[:-1] != token_ids.shape:
        shapes = (tuple(draft_logits.shape), tuple(verifier_logits.shape), tuple(token_ids.shape))
        raise InputError(
            "(draft_logits, verifier_logits, token_ids).shape", shapes, "must agree but for the vocabulary"
        )
    if chunk < 1:
        raise InputError("chunk", chunk, "must be at least 1")
    if d2t is None and draft_logits.shape[-1] != verifier_logits.shape[-1]:
        sizes = (draft_logits.shape[-1], verifier_logits.shape[-1])
        raise InputError("d2t", None, f"must map the draft vocabulary where sizes differ: {sizes}")
    if d2t is not None and d2t.shape != draft_logits.shape[-1:]:
        raise InputError("d2t.shape", tuple(d2t.shape), f"must be {tuple(draft_logits.shape[-1:])}, as draft_logits")
    if token_ids.device.type == "cpu" and token_ids.numel() and int(token_ids.max()) >= verifier_logits.shape[-1]:
        rule = f"must be below {verifier_logits.shape[-1]}, the verifier's vocabulary"
        raise InputError("token_ids", int(token_ids.max()), rule)
    tokens = token_ids.reshape(-1)
    known = tokens >= 0
    safe = tokens.clamp(min=0)
    draft_tokens = safe
    if d2t is not None:
        table = torch.full((verifier_logits.shape[-1],), -1, dtype=torch.int64, device=tokens.device)
        table[d2t] = torch.arange(d2t.shape[0], device=tokens.device)
        draft_tokens = table[safe]
    log_q = _log_probability(draft_logits, draft_tokens.clamp(min=0), temperature, chunk)
    log_p = _log_probability(verifier_logits, safe, temperature, chunk)
    ratio = torch.exp(torch.clamp(log_q - log_p, max=0.0))
    return torch.where(known & (draft_tokens >= 0), ratio, 0.0).view(token_ids.shape)


def _log_probability(logits: Tensor, tokens: Tensor, temperature: float, chunk: int) -> Tensor:
    """Log-softmax at one token a row, float64 [N]."""
    rows = logits.reshape(-1, logits.shape[-1])
    parts = []
    for start in range(0, rows.shape[0], chunk):
        scaled = rows[start : start + chunk].float() / temperature
        picked = scaled.gather(1, tokens[start : start + chunk, None])[:, 0].double()
        parts.append(picked - scaled.logsumexp(dim=1).double())
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=logits.device)


def exactly(accept: Tensor) -> Tensor:
    """Probability that a round from each anchor accepts exactly j drafts, for every depth.

    Args:
        accept: float64 [D, B, T] probability that step k's draft is accepted, given that the earlier ones are; 0 where
            step k has no target inside the span.

    Returns:
        float64 [D, D + 1, B, T], entry [d - 1, j].
    """
    depths = accept.shape[0]
    prefix = torch.cat([torch.ones_like(accept[:1]), accept.cumprod(dim=0)])
    stopped = prefix[:-1] * (1 - accept)
    out = torch.zeros(depths, depths + 1, *accept.shape[1:], dtype=accept.dtype, device=accept.device)
    for depth in range(1, depths + 1):
        out[depth - 1, :depth] = stopped[:depth]
        out[depth - 1, depth] = prefix[depth]
    return out


def expected_visits(chances: Tensor, ends: Tensor, starts: Tensor) -> Tensor:
    """Expected number of rounds that start at each anchor: v[P] = 1, v[t + j + 1] += v[t] * Pr_t(accept exactly j).

    The recurrence is a banded triangular system; it is solved in blocks of positions, so that a long text takes tens of
    device passes, not thousands.

    Args:
        chances: float64 [D, D + 1, B, T] as :func:`exactly` gives.
        ends: int64 [B, T] as :func:`~eagle_speedup.acceptance.spans.anchor_ends` gives.
        starts: float64 [B, T], 1 at every P.

    Returns:
        float64 [D, B, T].
    """
    depths, outcomes, batch, length = chances.shape
    slot = torch.arange(length, device=ends.device)
    padded = -length % _CHUNK
    jumps = torch.arange(1, outcomes + 1, device=ends.device).view(-1, 1, 1)
    stays = (slot + jumps) < ends  # the next round starts inside the span
    flow = functional.pad(chances * stays, (0, padded))
    visits = functional.pad(starts.expand(depths, batch, length), (0, padded + outcomes)).clone()
    offset = torch.arange(_CHUNK, device=ends.device)
    distance = offset[:, None] - offset[None, :] - 1  # j of the jump from column to row
    inside = (distance >= 0) & (distance < outcomes)
    eye = torch.eye(_CHUNK, dtype=chances.dtype, device=ends.device)
    for start in range(0, length, _CHUNK):
        block = flow[..., start : start + _CHUNK].permute(0, 2, 1, 3)  # [D, B, J, C]
        band = block.gather(2, distance.clamp(0, outcomes - 1).expand(depths, batch, -1, -1)) * inside
        right = visits[..., start : start + _CHUNK, None]
        solved = torch.linalg.solve_triangular(eye - band, right, upper=False, unitriangular=True)[..., 0]
        visits[..., start : start + _CHUNK] = solved
        for j in range(outcomes):  # what jumps over the end of the chunk
            beyond = (solved * block[:, :, j])[..., max(0, _CHUNK - j - 1) :]
            first = start + max(_CHUNK, j + 1)
            visits[..., first : first + beyond.shape[-1]] += beyond
    return visits[..., :length]
