"""How drafts are chosen and verified: greedy, onehot, rejection."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_speedup.errors import InputError

__all__ = ["Acceptor"]

_MODES = ("greedy", "onehot", "rejection")


class Acceptor:
    """One sampling mode's choices.

    - `greedy`: the draft is the drafter's most likely token, accepted iff it is the verifier's most likely one.
    - `onehot`: the draft is the drafter's most likely token, accepted iff it is the token sampled from the verifier.
    - `rejection`: the draft x is sampled from the drafter's q and accepted with probability min(1, p(x) / q(x)); on
      refusal the token comes from the residual max(p - q, 0), normalised (speculative sampling, arXiv 2211.17192,
      section 2.3).

    Args:
        mode: one of the three.
        temperature: softmax temperature of both models in the sampling modes.
        generator: source of randomness.
    """

    def __init__(
        self, mode: str = "greedy", temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> None:
        if mode not in _MODES:
            raise InputError("mode", mode, f"must be one of {', '.join(_MODES)}")
        if not temperature > 0:
            raise InputError("temperature", temperature, "must be above 0")
        self.mode, self._temperature, self._generator = mode, temperature, generator

    def sample(self, logits: Tensor) -> Tensor:
        """The verifier's own next token int64 [..] from logits [.., V]."""
        if self.mode == "greedy":
            return logits.argmax(-1)
        return self._draw(self._softmax(logits))

    def choose_draft(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Draft ids int64 [B] (draft vocabulary) from the drafter's logits [B, Vd], and q [B, Vd] where verification
        needs it.
        """
        if self.mode != "rejection":
            return logits.argmax(-1), None
        q = self._softmax(logits)
        return self._draw(q), q

    def __call__(self, logits: Tensor, drafts: Tensor, q: Tensor | None) -> list[list[int]]:
        """Verified tokens of every row: the accepted drafts and one token of the verifier's.

        Args:
            logits: verifier's [B, depth + 1, V]; position i follows the newest token and i drafts.
            drafts: int64 [B, depth], verifier vocabulary.
            q: [B, depth, V], the drafter's distribution, for `rejection`.
        """
        if self.mode == "rejection":
            assert q is not None
            return self._reject(self._softmax(logits), drafts, q)
        # Positions after the first refusal are sampled in vain; they do not touch what comes before.
        own = self.sample(logits).tolist()
        return [mine[: _leading(mine, draft) + 1] for mine, draft in zip(own, drafts.tolist(), strict=True)]

    def _reject(self, p: Tensor, drafts: Tensor, q: Tensor) -> list[list[int]]:
        at_draft = drafts.unsqueeze(-1)
        ratio = (p[:, :-1].gather(-1, at_draft) / q.gather(-1, at_draft)).squeeze(-1)
        uniform = torch.rand(drafts.shape, generator=self._generator, device=drafts.device)
        accepted = (uniform < ratio).long().cumprod(-1).sum(-1)
        # After the last draft there is nothing to reject: q = 0 makes the residual p itself.
        q = torch.cat((q, torch.zeros_like(q[:, :1])), 1)
        rows = torch.arange(len(drafts), device=drafts.device)
        residual = (p[rows, accepted] - q[rows, accepted]).clamp_(min=0)
        total = residual.sum(-1, keepdim=True)
        # Where p equals q but for rounding, a refusal can leave nothing of the residual.
        own = self._draw(torch.where(total > 0, residual / total, p[rows, accepted])).tolist()
        return [[*draft[:n], last] for draft, n, last in zip(drafts.tolist(), accepted.tolist(), own, strict=True)]

    def _softmax(self, logits: Tensor) -> Tensor:
        return (logits.float() / self._temperature).softmax(-1)

    def _draw(self, probability: Tensor) -> Tensor:
        flat = probability.reshape(-1, probability.shape[-1])
        return torch.multinomial(flat, 1, generator=self._generator).view(probability.shape[:-1])


def _leading(own: list[int], draft: list[int]) -> int:
    for i, token in enumerate(draft):
        if own[i] != token:
            return i
    return len(draft)
