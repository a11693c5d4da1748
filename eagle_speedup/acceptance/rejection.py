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
from .checks import is_integer
from .settings import whole
from .vocabulary import check_absolute

__all__ = ["acceptance_probability", "exactly", "expected_visits"]

_CHUNK = 64


@torch.no_grad()
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

    Logits may be views: cut (``logits[:, :-1]``) or expanded (one verifier for K drafts) they are read where they are,
    never copied. No gradients.

    Args:
        draft_logits: [..., V_draft].
        verifier_logits: [..., V], the same leading shape.
        token_ids: int64 [...] tokens x in the verifier's vocabulary; negative = none, gives 0.
        d2t: int64 [V_draft] verifier id of each draft id (absolute, see
            :func:`~eagle_speedup.acceptance.vocabulary.absolute_d2t`); None = the same vocabulary. Its values are
            checked once: give the same tensor at every batch, or each will wait for the device.
        temperature: of both distributions.
        chunk: rows per pass.

    Returns:
        float64 [...]; 0 for a token that the drafter can not draft: outside its vocabulary, or q(x) = 0.

    Raises:
        InputError: shapes that do not fit, a table of another form, token ids beyond the vocabulary (those in host
            memory; an accelerator's own assertion stops others).
    """
    _check_input(draft_logits, verifier_logits, token_ids, d2t, temperature, chunk)
    vocab_size = verifier_logits.shape[-1]
    if d2t is not None:
        check_absolute(d2t, vocab_size)
    if token_ids.numel() == 0:
        return torch.zeros(token_ids.shape, dtype=torch.float64, device=token_ids.device)
    tokens = token_ids.long()
    if tokens.device.type == "cpu" and int(tokens.max()) >= vocab_size:
        raise InputError("token_ids", int(tokens.max()), f"must be below {vocab_size}, the verifier's vocabulary")
    known = tokens >= 0
    tokens = tokens.clamp(min=0)
    draft_tokens = tokens
    if d2t is not None:
        table = torch.full((vocab_size,), -1, dtype=torch.int64, device=tokens.device)
        table[d2t.to(tokens.device).long()] = torch.arange(len(d2t), device=tokens.device)
        draft_tokens = table[tokens]
        known = known & (draft_tokens >= 0)
    log_q = _log_probability(draft_logits, draft_tokens.clamp(min=0), temperature, chunk)
    log_p = _log_probability(verifier_logits, tokens, temperature, chunk)
    ratio = torch.exp(torch.clamp(log_q - log_p, max=0.0))
    # Where p is 0 as well, the quotient is NaN; but what is never drafted is never accepted.
    return torch.where(known & (log_q != -torch.inf), ratio, 0.0)


def _check_input(
    draft_logits: Tensor,
    verifier_logits: Tensor,
    token_ids: Tensor,
    d2t: Tensor | None,
    temperature: float,
    chunk: int,
) -> None:
    """What shapes and types tell: reads no values."""
    if not (isinstance(temperature, int | float) and 0 < temperature < float("inf")):
        raise InputError("temperature", temperature, "must be positive and finite; at 0 use mode 'greedy'")
    whole("chunk", chunk)
    tensors = {"draft_logits": draft_logits, "verifier_logits": verifier_logits, "token_ids": token_ids}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise InputError(name, type(tensor).__name__, "must be a tensor")
    if not is_integer(token_ids):
        raise InputError("token_ids.dtype", token_ids.dtype, "must be an integer type")
    if draft_logits.shape[:-1] != token_ids.shape or verifier_logits.shape[:-1] != token_ids.shape:
        shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
        raise InputError(f"({', '.join(tensors)}).shape", shapes, "must agree but for the vocabulary")
    draft_size, size = draft_logits.shape[-1], verifier_logits.shape[-1]
    if d2t is None and draft_size != size:
        raise InputError("d2t", None, f"must map the draft vocabulary where sizes differ: {(draft_size, size)}")
    if isinstance(d2t, Tensor) and d2t.shape != (draft_size,):
        raise InputError("d2t.shape", tuple(d2t.shape), f"must be {(draft_size,)}, as draft_logits")


def _log_probability(logits: Tensor, tokens: Tensor, temperature: float, chunk: int) -> Tensor:
    """Log-softmax at one token a row, float64 [...]; makes nothing of the size of the logits."""
    picked = logits.gather(-1, tokens[..., None])[..., 0].float() / temperature
    for dim in range(tokens.ndim):
        if logits.stride(dim) == 0:  # an expanded dimension: the same rows over again
            logits = logits.narrow(dim, 0, 1)
    return picked.double() - _log_normaliser(logits, temperature, chunk)


def _log_normaliser(logits: Tensor, temperature: float, chunk: int) -> Tensor:
    """Log of the sum of exp(logits / temperature) over the vocabulary, float64 [...]."""
    if logits.ndim > 2 and not logits.is_contiguous():  # to reshape these would copy them
        outer = max(range(logits.ndim - 1), key=logits.stride)
        return torch.stack([_log_normaliser(part, temperature, chunk) for part in logits.unbind(outer)], dim=outer)
    rows = logits.view(-1, logits.shape[-1])
    starts = range(0, rows.shape[0], chunk)
    parts = [(rows[start : start + chunk].float() / temperature).logsumexp(dim=1) for start in starts]
    return torch.cat(parts).double().view(logits.shape[:-1])


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
