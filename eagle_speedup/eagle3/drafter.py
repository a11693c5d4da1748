"""The EAGLE-3 drafter: one decoder layer over fused verifier features (arXiv 2503.01840, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle_speedup.errors import InputError

from .attention import rope_table
from .linear import to_float16_grid
from .verifier import LlamaVerifier

__all__ = ["DrafterConfig", "Eagle3Drafter", "draft_vocabulary"]


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Sizes of a drafter; the layer is as wide as one of the verifier's."""

    tap_layers: tuple[int, ...]
    """Verifier layers (0-based) whose outputs are fused into the feature."""
    draft_vocab_size: int
    vocab_size: int
    """The verifier's vocabulary."""
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048

    def as_dict(self) -> dict[str, object]:
        """Plain values, for a checkpoint."""
        return asdict(self) | {"tap_layers": list(self.tap_layers)}


def draft_vocabulary(ids: Tensor, size: int, vocab_size: int) -> Tensor:
    """The `size` most frequent tokens of `ids` (any shape) in rising order, int64 [size]; ties and gaps go to the
    lower ids.
    """
    if not 0 < size <= vocab_size:
        raise InputError("draft_vocab_size", size, f"must lie in [1, {vocab_size}]")
    counts = torch.bincount(ids.reshape(-1).long(), minlength=vocab_size)
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


class Eagle3Drafter(nn.Module):
    """Drafts tokens of a reduced vocabulary from verifier features, one step after another.

    Convention: anchor t is the newest known token x_t with the feature g_{t-1} (the tapped states at position t-1,
        where the verifier
    predicted x_t). Step 0 takes (x_t, g_{t-1}) and drafts x_{t+1}; step k takes the token at t+k and the drafter's
    own state of step k-1.

    Args:
        config: sizes.
        d2t: int64 [draft_vocab_size], verifier id of every draft id.
        embedding: [vocab, hidden], the verifier's, frozen and shared (not in the state dict).
    """

    embedding: Tensor
    d2t: Tensor
    t2d: Tensor
    rope: Tensor

    def __init__(self, config: DrafterConfig, d2t: Tensor, embedding: Tensor) -> None:
        super().__init__()
        if d2t.shape != (config.draft_vocab_size,):
            raise InputError("d2t", tuple(d2t.shape), f"must have shape ({config.draft_vocab_size},)")
        self.config = c = config
        size, wide = c.hidden_size, 2 * c.hidden_size
        self.fc = nn.Linear(len(c.tap_layers) * size, size, bias=False)
        self.query = nn.Linear(wide, c.heads * c.head_dim, bias=False)
        self.key = nn.Linear(wide, c.kv_heads * c.head_dim, bias=False)
        self.value = nn.Linear(wide, c.kv_heads * c.head_dim, bias=False)
        self.output = nn.Linear(c.heads * c.head_dim, size, bias=False)
        self.gate = nn.Linear(size, c.intermediate_size, bias=False)
        self.up = nn.Linear(size, c.intermediate_size, bias=False)
        self.down = nn.Linear(c.intermediate_size, size, bias=False)
        self.head = nn.Linear(size, c.draft_vocab_size, bias=False)
        self.embedding_norm = nn.Parameter(torch.ones(size))
        self.hidden_norm = nn.Parameter(torch.ones(size))
        self.mlp_norm = nn.Parameter(torch.ones(size))
        self.final_norm = nn.Parameter(torch.ones(size))
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.register_buffer("d2t", d2t.long())
        t2d = torch.full((c.vocab_size,), -1, dtype=torch.long)
        t2d[d2t] = torch.arange(c.draft_vocab_size)
        self.register_buffer("t2d", t2d, persistent=False)
        self.register_buffer("rope", rope_table(c.max_positions, c.head_dim, c.rope_theta), persistent=False)

    @classmethod
    def for_verifier(
        cls,
        verifier: LlamaVerifier,
        d2t: Tensor,
        tap_layers: Sequence[int],
        *,
        head_scale: float = 0.4,
        feature_scale: float = 10.0,
    ) -> Eagle3Drafter:
        """A drafter initialised from the verifier: its last layer, its head rows, an even mixture of the taps.

        Args:
            verifier: where sizes and weights come from.
            d2t: draft vocabulary, see `draft_vocabulary`.
            tap_layers: verifier layers to fuse.
            head_scale: final norm's scale; below 1 the first guesses are less sure of themselves, the best start found.
            feature_scale: size of the feature at the start. The verifier's states grow from layer to layer, and what
                its last layer adds would drown a feature of size 1 (accept length 1.58 against 1.51 after 260 steps).
        """
        v = verifier.config
        config = DrafterConfig(
            tap_layers=tuple(tap_layers), draft_vocab_size=len(d2t), vocab_size=v.vocab_size, hidden_size=v.hidden_size,
            intermediate_size=v.intermediate_size, heads=v.heads, kv_heads=v.kv_heads, head_dim=v.head_dim,
            rope_theta=v.rope_theta, norm_eps=v.norm_eps, max_positions=v.max_positions,
        )  # fmt: skip
        drafter = cls(config, d2t, verifier.embedding)
        drafter._start_from(verifier, head_scale, feature_scale)
        return drafter

    @torch.no_grad()
    def _start_from(self, verifier: LlamaVerifier, head_scale: float, feature_scale: float) -> None:
        size, last = self.config.hidden_size, verifier.last_layer
        self.fc.weight.normal_(std=0.02 / len(self.config.tap_layers))
        # Start from the deepest tap, the one closest to the next token.
        self.fc.weight[:, -size:] += feature_scale * torch.eye(size)
        for mine, its in ((self.query, last.query), (self.key, last.key), (self.value, last.value)):
            # The verifier's layer reads one hidden state; here it fills the feature's half, the embedding's half
            # starts near zero.
            mine.weight.normal_(std=0.02)
            mine.weight[:, size:] = its * last.attention_norm
        self.output.weight.copy_(last.output)
        self.gate.weight.copy_(last.gate)
        self.up.weight.copy_(last.up)
        self.down.weight.copy_(last.down)
        self.mlp_norm.copy_(last.mlp_norm)
        self.head.weight.copy_(verifier.head_weight[self.d2t])
        self.final_norm.fill_(head_scale)

    def fuse(self, taps: Tensor) -> Tensor:
        """Feature g [.., hidden] of tapped states [.., taps * hidden]; every tap is normalised, for their scales
        differ by far.
        """
        split = taps.unflatten(-1, (len(self.config.tap_layers), self.config.hidden_size))
        return self.fc(F.rms_norm(split, split.shape[-1:], None, self.config.norm_eps).flatten(-2))

    def layer_input(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """[rows, 2 * hidden] from tokens int64 [rows] and feature or own state [rows, hidden]."""
        embedded = self._norm(self.embedding[tokens], self.embedding_norm)
        return torch.cat((embedded, self._norm(hidden, self.hidden_norm)), -1)

    def finish(self, attended: Tensor, residual: Tensor) -> Tensor:
        """The layer after attention: attended [rows, heads * head_dim], residual [rows, hidden] -> state [rows,
        hidden].
        """
        x = residual + self.output(attended)
        normed = self._norm(x, self.mlp_norm)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def logits(self, state: Tensor) -> Tensor:
        """[rows, draft_vocab] of state [rows, hidden]."""
        return self.head(self._norm(state, self.final_norm))

    @torch.no_grad()
    def round_to_float16_grid_(self) -> Eagle3Drafter:
        """Round all matrices to the float16 grid, in place: the decoder then reads half the memory, and drafts stay
        exactly reproducible.
        """
        for parameter in self.parameters():
            if parameter.dim() == 2:
                parameter.copy_(to_float16_grid(parameter))
        return self

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self.config.norm_eps)
