"""Rotary embedding and grouped attention over a cache, shared by the verifier and the drafter's decoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import CachePlan

__all__ = ["cached_attention", "interleave_rotary_rows", "rope_table", "rotate"]


def rope_table(positions: int, head_dim: int, theta: float) -> Tensor:
    """Rotations [positions, 1, head_dim / 2] as complex numbers exp(i * position * theta^(-2j / head_dim)) (RoPE,
    arXiv 2104.09864, section 3.2.2).
    """
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)[:, None]


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate the pairs (2j, 2j + 1) of the last axis of x [rows, heads, head_dim] by rotation [rows, 1, head_dim /
    2].
    """
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2)


def interleave_rotary_rows(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder rows of a query or key weight that pairs (j, j + head_dim / 2) into the layout of `rotate`.

    Attention scores do not change when queries and keys are reordered alike, and interleaved pairs make the rotation
    one multiplication.
    """
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).reshape(weight.shape)


def cached_attention(query: Tensor, keys: Tensor, values: Tensor, plan: CachePlan) -> Tensor:
    """Causal grouped attention of query [rows, heads, head_dim] over keys and values [batch, kv_heads, total,
    head_dim].

    Rows are batch-major, `plan.new` a batch row. Returns [rows, heads * head_dim].
    """
    batch, kv_heads, _, head_dim = keys.shape
    group, new = query.shape[1] // kv_heads, plan.new
    if plan.fresh and new > 1:
        q = query.view(batch, new, -1, head_dim).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=group > 1)
        return out.transpose(1, 2).reshape(batch * new, -1)
    # The heads of a group share keys, so they become rows of one attention problem: nothing is repeated.
    q = (
        query.view(batch, new, kv_heads, group, head_dim)
        .permute(0, 2, 3, 1, 4)
        .reshape(batch, kv_heads, group * new, head_dim)
    )
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=plan.grouped_mask(group))
    return out.view(batch, kv_heads, group, new, head_dim).permute(0, 3, 1, 2, 4).reshape(batch * new, -1)
