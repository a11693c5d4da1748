"""The drafter as a decoder runs it: packed weights, a key/value cache, one chain a row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import cached_attention, rotate
from .cache import CachePlan, KVCache
from .drafter import Eagle3Drafter
from .linear import FewRowLinear
from .sampling import Acceptor

__all__ = ["DraftEngine"]


class DraftEngine:
    """An `Eagle3Drafter` packed for decoding; later changes of the drafter's weights are not seen.

    Args:
        drafter: float32 weights. On the float16 grid (`Eagle3Drafter.round_to_float16_grid_`) it reads half the memory.
        kernel: see `FewRowLinear`.
    """

    def __init__(self, drafter: Eagle3Drafter, kernel: str | None = None) -> None:
        self._drafter, self.config = drafter, drafter.config
        self.tap_layers = drafter.config.tap_layers
        self._norms = [
            w.detach().clone()
            for w in (drafter.embedding_norm, drafter.hidden_norm, drafter.mlp_norm, drafter.final_norm)
        ]
        self._d2t = drafter.d2t.clone()
        self._fc = FewRowLinear(drafter.fc.weight, kernel)
        self._qkv = FewRowLinear(torch.cat((drafter.query.weight, drafter.key.weight, drafter.value.weight)), kernel)
        self._output = FewRowLinear(drafter.output.weight, kernel, many_rows=False)
        self._gate_up = FewRowLinear(torch.cat((drafter.gate.weight, drafter.up.weight)), kernel, many_rows=False)
        self._down = FewRowLinear(drafter.down.weight, kernel, many_rows=False)
        self._head = FewRowLinear(drafter.head.weight, kernel, many_rows=False)

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache; slot s holds anchor s + 1."""
        c = self.config
        return KVCache(1, batch, c.kv_heads, capacity, c.head_dim, self._d2t.device)

    @torch.inference_mode()
    def prefill(self, cache: KVCache, prompts: Sequence[Sequence[int]], taps: Tensor) -> None:
        """Store the keys of the prompts' anchors, their tokens from the second on; taps [B, longest, taps * hidden]."""
        lengths = list(cache.lengths)
        self._anchors(cache, [prompt[1:] for prompt in prompts], taps)
        cache.rollback([length + len(prompt) - 1 for length, prompt in zip(lengths, prompts, strict=True)])

    @torch.inference_mode()
    def draft(
        self, cache: KVCache, pending: Sequence[Sequence[int]], taps: Tensor, depth: int, choose: Acceptor
    ) -> tuple[Tensor, Tensor | None]:
        """Draft `depth` tokens a row.

        The keys of the chain itself are dropped at the end: those of the tokens that will be accepted are made anew
        from verifier features, by the next call, as training assumes.

        Args:
            cache: the drafter's, holding the anchors before `pending`.
            pending: tokens verified since the last call, oldest first: row b's anchors.
            taps: [B, >= longest pending, taps * hidden]: verifier states at the positions before those tokens.
            depth: drafts a row.
            choose: sampling mode.

        Returns:
            Drafts int64 [B, depth] in the verifier's vocabulary and, for `rejection`, their distributions [B, depth,
            vocab].
        """
        state = self._anchor_step(cache, pending, taps)
        held = list(cache.lengths)
        drafts, dists = [], []
        for step in range(depth):
            chosen, q = choose.choose_draft(self._logits(state))
            drafts.append(self._d2t[chosen])
            if q is not None:
                dists.append(torch.zeros(len(q), self.config.vocab_size, device=q.device).index_copy_(1, self._d2t, q))
            if step + 1 < depth:
                state = self._step(cache, drafts[-1], state)
        cache.rollback(held)
        return torch.stack(drafts, 1), torch.stack(dists, 1) if dists else None

    def _anchor_step(self, cache: KVCache, pending: Sequence[Sequence[int]], taps: Tensor) -> Tensor:
        """Step 0 for all pending anchors; returns the newest one's state [B, hidden]."""
        counts, batch, lengths = [len(tokens) for tokens in pending], len(pending), list(cache.lengths)
        query, keys, values, plan, feature = self._anchors(cache, pending, taps)
        if batch == 1:
            # Only the newest anchor drafts, and it may see all that is stored: no mask, one query.
            attended = cached_attention(query[-1:], keys, values, plan.last_only())
            state = self._finish(attended, feature[-1:])
        else:
            newest = torch.arange(batch, device=query.device) * plan.new + torch.tensor(counts, device=query.device) - 1
            attended = cached_attention(query, keys, values, plan)
            state = self._finish(attended[newest], feature[newest])
        cache.rollback([length + count for length, count in zip(lengths, counts, strict=True)])
        return state

    def _anchors(
        self, cache: KVCache, pending: Sequence[Sequence[int]], taps: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, CachePlan, Tensor]:
        """Step 0's queries, keys, values and features of all pending anchors, rows padded to the longest."""
        new = max(map(len, pending))
        ids = torch.tensor([[*tokens, *[0] * (new - len(tokens))] for tokens in pending], device=self._d2t.device)
        feature = self._fuse(taps[:, :new].reshape(len(pending) * new, -1))
        query, keys, values, plan = self._project(cache, ids.reshape(-1), feature, new)
        return query, keys, values, plan, feature

    def _step(self, cache: KVCache, tokens: Tensor, state: Tensor) -> Tensor:
        query, keys, values, plan = self._project(cache, tokens, state, 1)
        return self._finish(cached_attention(query, keys, values, plan), state)

    def _project(
        self, cache: KVCache, tokens: Tensor, hidden: Tensor, new: int
    ) -> tuple[Tensor, Tensor, Tensor, CachePlan]:
        """Queries of the new positions, and all keys and values they may see."""
        c, plan = self.config, cache.plan(new)
        embedded = self._norm(self._drafter.embedding[tokens], self._norms[0])
        x = torch.cat((embedded, self._norm(hidden, self._norms[1])), -1)
        qkv = self._qkv(x).view(len(x), -1, c.head_dim)
        turned = rotate(qkv[:, : c.heads + c.kv_heads], self._drafter.rope[plan.positions])
        keys, values = plan.store(cache, 0, turned[:, c.heads :], qkv[:, c.heads + c.kv_heads :])
        return turned[:, : c.heads], keys, values, plan

    def _fuse(self, taps: Tensor) -> Tensor:
        split = taps.unflatten(-1, (len(self.tap_layers), self.config.hidden_size))
        return self._fc(F.rms_norm(split, split.shape[-1:], None, self.config.norm_eps).flatten(-2))

    def _finish(self, attended: Tensor, residual: Tensor) -> Tensor:
        x = residual + self._output(attended)
        gate_up, size = self._gate_up(self._norm(x, self._norms[2])), self.config.intermediate_size
        return x + self._down(F.silu(gate_up[:, :size]) * gate_up[:, size:])

    def _logits(self, state: Tensor) -> Tensor:
        return self._head(self._norm(state, self._norms[3]))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self.config.norm_eps)
