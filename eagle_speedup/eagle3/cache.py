"""Key/value memory with rollback, for batches of unequal lengths."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_speedup.errors import InputError

__all__ = ["KVCache"]


class KVCache:
    """Preallocated keys and values of `layers` attention layers.

    `lengths[b]` is how many positions of row b are kept; what lies beyond is overwritten by the next `write`.
    Rolling back is therefore setting `lengths`, which the owner does after each forward.

    Args:
        layers, batch, kv_heads, capacity, head_dim: sizes; a layer's tensors are [batch, kv_heads, capacity, head_dim].
    """

    def __init__(
        self, layers: int, batch: int, kv_heads: int, capacity: int, head_dim: int, device: torch.device | None = None
    ) -> None:
        self.keys = [torch.zeros(batch, kv_heads, capacity, head_dim, device=device) for _ in range(layers)]
        self.values = [torch.zeros(batch, kv_heads, capacity, head_dim, device=device) for _ in range(layers)]
        self.batch, self.capacity = batch, capacity
        self.lengths: list[int] = [0] * batch

    def rollback(self, lengths: int | Sequence[int]) -> None:
        """Keep the first `lengths` positions (one number for all rows, or one a row); never more than are held."""
        wanted = [lengths] * self.batch if isinstance(lengths, int) else list(lengths)
        if len(wanted) != self.batch or any(w < 0 or w > held for w, held in zip(wanted, self.lengths, strict=False)):
            raise InputError(
                "lengths", wanted, f"must be {self.batch} numbers between 0 and the held lengths {self.lengths}"
            )
        self.lengths = wanted

    def copy_from(self, other: KVCache) -> None:
        """Hold the positions of another cache of the same model and batch; its capacity may be smaller."""
        held = max(other.lengths)
        for mine, its in ((self.keys, other.keys), (self.values, other.values)):
            for target, source in zip(mine, its, strict=True):
                target[:, :, :held] = source[:, :, :held]
        self.lengths = list(other.lengths)

    def plan(self, new: int) -> CachePlan:
        """Where `new` positions a row go, and what they may attend to; then advances `lengths`."""
        if max(self.lengths) + new > self.capacity:
            raise InputError(
                "sequence length", max(self.lengths) + new, f"must fit the cache of {self.capacity} positions"
            )
        plan = CachePlan(self.lengths, new, self.keys[0].device)
        self.lengths = [length + new for length in self.lengths]
        return plan

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop all rows of the batch but `rows` (answers that are finished leave)."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.keys[0].device)
        self.keys = [k.index_select(0, index) for k in self.keys]
        self.values = [v.index_select(0, index) for v in self.values]
        self.lengths = [self.lengths[r] for r in rows]
        self.batch = len(self.lengths)


class CachePlan:
    """One forward's positions, cache slots and attention mask, shared by all layers."""

    def __init__(self, lengths: Sequence[int], new: int, device: torch.device) -> None:
        self.new, self.total = new, max(lengths) + new
        self.fresh = max(lengths) == 0
        self.single = len(lengths) == 1
        self.start = lengths[0]
        if self.single:
            self.positions = torch.arange(self.start, self.total, device=device)
        else:
            self.positions = (
                torch.tensor(lengths, device=device)[:, None] + torch.arange(new, device=device)
            ).flatten()
            self._rows = torch.arange(len(lengths), device=device).repeat_interleave(new)
        self.mask = self._mask(len(lengths), device)
        self._grouped: dict[int, Tensor] = {}

    def _mask(self, batch: int, device: torch.device) -> Tensor | None:
        if self.fresh or (self.single and self.new == 1):
            return None
        allowed = torch.arange(self.total, device=device) <= self.positions.view(-1, self.new, 1)
        return torch.zeros(allowed.shape, device=device).masked_fill_(~allowed, float("-inf"))[:, None]

    def grouped_mask(self, group: int) -> Tensor | None:
        """The mask for queries whose `group` heads are stacked as rows; made once for all layers."""
        if self.mask is not None and group not in self._grouped:
            self._grouped[group] = self.mask.repeat(1, 1, group, 1)
        return self._grouped.get(group)

    def last_only(self) -> CachePlan:
        """The plan for attending from a single row's newest position alone: it sees everything stored."""
        plan = copy.copy(self)
        plan.new, plan.fresh, plan.mask, plan._grouped = 1, False, None, {}
        return plan

    def store(self, cache: KVCache, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [rows, kv_heads, head_dim] and return all that may be attended to: [batch, kv_heads,
        total, head_dim].
        """
        all_keys, all_values = cache.keys[layer], cache.values[layer]
        if self.single:
            all_keys[0, :, self.start : self.total] = keys.transpose(0, 1)
            all_values[0, :, self.start : self.total] = values.transpose(0, 1)
        else:
            all_keys[self._rows, :, self.positions] = keys
            all_values[self._rows, :, self.positions] = values
        return all_keys[:, :, : self.total], all_values[:, :, : self.total]
