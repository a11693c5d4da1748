"""A lean Llama-architecture verifier for greedy and speculative decoding, with feature taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle_speedup.errors import InputError

from .attention import cached_attention, interleave_rotary_rows, rope_table, rotate
from .cache import KVCache
from .linear import FewRowLinear, ranked_kernels, to_float16_grid

__all__ = ["LlamaVerifier", "VerifierConfig", "VerifierOutput"]


@dataclass(frozen=True, kw_only=True)
class VerifierConfig:
    """Sizes of a Llama-architecture model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048
    """Longest sequence the rotary table covers."""


class VerifierOutput(NamedTuple):
    """What one forward returns; `None` where it was not asked for."""

    logits: Tensor | None
    """[batch, new, vocab] or, for `logits="last"`, [batch, 1, vocab]."""
    taps: Tensor | None
    """[batch, new, taps * hidden]: hidden states after the tapped layers, side by side."""
    hidden: Tensor | None
    """[batch, new, hidden]: the normalised last state before the head, for `LlamaVerifier.logits`."""


class LayerWeights(NamedTuple):
    """Float32 weights of one layer. Query and key rows are interleaved (see `interleave_rotary_rows`)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    attention_norm: Tensor
    mlp_norm: Tensor


class LlamaVerifier:
    """Inference-only Llama model in float32: RMSNorm, RoPE, grouped attention, SwiGLU.

    Norm weights are folded into the linear layers that follow them.

    Args:
        config: sizes.
        layers: one `LayerWeights` a layer.
        embedding: [vocab, hidden].
        final_norm: [hidden].
        head: [vocab, hidden]; None when tied to the embedding.
        float16_grid: round the folded weights to values that float16 represents. The arithmetic stays float32, so
            that prefill, plain and speculative decoding still agree; it halves the memory traffic of a step where
            FBGEMM is available (see `linear`).
        kernel: kernel name for few rows, None for the fastest exact one.
    """

    def __init__(
        self,
        config: VerifierConfig,
        layers: Sequence[LayerWeights],
        embedding: Tensor,
        final_norm: Tensor,
        head: Tensor | None = None,
        *,
        float16_grid: bool = False,
        kernel: str | None = None,
    ) -> None:
        self.config = config
        self.embedding = embedding.detach().float()
        grid = to_float16_grid if float16_grid else (lambda weight: weight)
        if float16_grid and kernel is None and self.device.type == "cpu":
            kernel = ranked_kernels()[0]  # any is exact here, no need to test every weight

        # `_norm` divides by the vector's norm, not by its root mean square: the factor goes into the weights as well.
        root, self._floor = config.hidden_size**0.5, torch.tensor((config.hidden_size * config.norm_eps) ** 0.5)

        def linear(*weights: Tensor, norm: Tensor | None = None) -> FewRowLinear:
            stacked = torch.cat(weights)
            return FewRowLinear(grid(stacked if norm is None else stacked * (norm * root)), kernel)

        self.last_layer = layers[-1]
        rows = self.embedding if head is None else head.detach().float()
        self.head_weight = rows * final_norm.detach().float()
        self._qkv = [linear(w.query, w.key, w.value, norm=w.attention_norm) for w in layers]
        self._out = [linear(w.output) for w in layers]
        self._gate_up = [linear(w.gate, w.up, norm=w.mlp_norm) for w in layers]
        self._down = [linear(w.down) for w in layers]
        self._head = FewRowLinear(grid(self.head_weight * root), kernel)
        self._rope = rope_table(config.max_positions, config.head_dim, config.rope_theta).to(self.device)

    @classmethod
    def from_hf(
        cls, model: Any, *, float16_grid: bool = False, kernel: str | None = None, max_positions: int = 2048
    ) -> LlamaVerifier:
        """Copy a `transformers` LlamaForCausalLM (or one of the same layout). Biases and scaled RoPE are refused."""
        source, state = model.config, {k: v.detach().float().clone() for k, v in model.state_dict().items()}
        _check_hf(source, state)
        head_dim = getattr(source, "head_dim", None) or source.hidden_size // source.num_attention_heads
        config = VerifierConfig(
            vocab_size=source.vocab_size, hidden_size=source.hidden_size, intermediate_size=source.intermediate_size,
            layers=source.num_hidden_layers, heads=source.num_attention_heads, kv_heads=source.num_key_value_heads,
            head_dim=head_dim, rope_theta=_hf_rope_theta(source), norm_eps=source.rms_norm_eps,
            max_positions=max_positions,
        )  # fmt: skip
        layers = [_hf_layer(state, f"model.layers.{i}.", head_dim) for i in range(config.layers)]
        head = None if source.tie_word_embeddings else state["lm_head.weight"]
        return cls(
            config,
            layers,
            state["model.embed_tokens.weight"],
            state["model.norm.weight"],
            head,
            float16_grid=float16_grid,
            kernel=kernel,
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for `batch` rows of up to `capacity` positions."""
        c = self.config
        if capacity > c.max_positions:
            raise InputError("capacity", capacity, f"must be at most max_positions = {c.max_positions}")
        return KVCache(c.layers, batch, c.kv_heads, capacity, c.head_dim, self.device)

    @torch.inference_mode()
    def forward(self, ids: Tensor, cache: KVCache, *, taps: Sequence[int] = (), logits: str = "all") -> VerifierOutput:
        """Append ids int64 [batch, new] to the cache's rows and run the model on them.

        Args:
            ids: new tokens of every row, at positions `cache.lengths[b]` and on.
            cache: advanced by `new`; roll it back to drop padding or refused drafts.
            taps: layers (0-based) after which the hidden state is taken.
            logits: "all", "last" (the last new position only), "hidden" (no logits, only what `logits` takes) or
                "none".
        """
        batch, new = ids.shape
        plan, taken = cache.plan(new), []
        rotation = self._rope[plan.positions]
        x = self.embedding[ids.reshape(-1)]
        deepest = max(taps, default=-1) + 1 if logits == "none" else self.config.layers
        for i in range(deepest):
            x = self._layer(i, x, rotation, plan, cache)
            if i in taps:
                taken.append(x)
        tapped = torch.cat(taken, -1).view(batch, new, -1) if taken else None
        if logits == "none":
            return VerifierOutput(None, tapped, None)
        x = x.view(batch, new, -1)
        hidden = self._norm(x[:, -1:] if logits == "last" else x)
        return VerifierOutput(None if logits == "hidden" else self.logits(hidden), tapped, hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head to `VerifierOutput.hidden` [..., hidden]; returns [..., vocab]."""
        return self._head(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:-1], -1)

    def head_rows(self, tokens: Tensor) -> Tensor:
        """Rows [.., hidden] of the head for `tokens` int64 [..]: their product with `VerifierOutput.hidden` is the
        logit.
        """
        return self.head_weight[tokens] * self.config.hidden_size**0.5

    def logits_of(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Logits [.., n] of chosen tokens int64 [n], from `VerifierOutput.hidden` [.., hidden]."""
        return F.linear(hidden, self.head_rows(tokens))

    def _norm(self, x: Tensor) -> Tensor:
        # x / sqrt(|x|^2 + hidden * eps): RMSNorm without its factor, three operations instead of eight.
        return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)

    def _layer(self, i: int, x: Tensor, rotation: Tensor, plan: Any, cache: KVCache) -> Tensor:
        c, rows = self.config, x.shape[0]
        qkv = self._qkv[i](self._norm(x)).view(rows, -1, c.head_dim)
        turned = rotate(qkv[:, : c.heads + c.kv_heads], rotation)
        keys, values = plan.store(cache, i, turned[:, c.heads :], qkv[:, c.heads + c.kv_heads :])
        x = x + self._out[i](cached_attention(turned[:, : c.heads], keys, values, plan))
        gate_up = self._gate_up[i](self._norm(x))
        return x + self._down[i](F.silu(gate_up[:, : c.intermediate_size]) * gate_up[:, c.intermediate_size :])


def _check_hf(source: Any, state: dict[str, Tensor]) -> None:
    biased = [name for name in state if name.endswith(".bias")]
    if biased:
        raise InputError("model", biased[0], "must have no biases")
    rope = getattr(source, "rope_parameters", None) or getattr(source, "rope_scaling", None) or {}
    if rope.get("rope_type", "default") != "default":
        raise InputError("model.config.rope_parameters", rope, "must be plain RoPE")


def _hf_rope_theta(source: Any) -> float:
    rope = getattr(source, "rope_parameters", None) or {}
    theta: Any = rope.get("rope_theta") or getattr(source, "rope_theta", 10_000.0)
    return float(theta)


def _hf_layer(state: dict[str, Tensor], prefix: str, head_dim: int) -> LayerWeights:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return LayerWeights(
        query=interleave_rotary_rows(state[attention + "q_proj.weight"], head_dim),
        key=interleave_rotary_rows(state[attention + "k_proj.weight"], head_dim),
        value=state[attention + "v_proj.weight"],
        output=state[attention + "o_proj.weight"],
        gate=state[mlp + "gate_proj.weight"],
        up=state[mlp + "up_proj.weight"],
        down=state[mlp + "down_proj.weight"],
        attention_norm=state[prefix + "input_layernorm.weight"],
        mlp_norm=state[prefix + "post_attention_layernorm.weight"],
    )
