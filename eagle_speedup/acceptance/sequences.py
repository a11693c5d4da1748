"""Sequences that are counted once however often they are dealt: ranks are evened out by repeating some.

A row of such counts holds the flat counts and then, as columns that add up like all others, how often the sequence was
counted, the fingerprint of its text, and the square of that. Repeats of one text have one fingerprint f, so that
n * sum(f * f) = sum(f) ** 2; whatever else shares an index is noticed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ..errors import InputError
from .counts import Array

__all__ = [
    "EXTRA_COLUMNS",
    "count_once",
    "named_rows",
    "placed_rows",
    "rows_and_names",
    "text_fingerprint",
    "with_repeats",
]

EXTRA_COLUMNS = 3
_BITS = 20  # squares of fingerprints, added up over thousands of repeats, must stay exact in float64
_PRIME = 65_521


def text_fingerprint(target_ids: Tensor, anchors: Tensor) -> Tensor:
    """A number of 20 bits for the answer tokens of each row, wherever in the row they lie: int64 [B].

    Args:
        target_ids: int64 [B, T].
        anchors: bool [B, T].
    """
    place = anchors.cumsum(dim=1)
    tokens = target_ids.roll(-1, dims=1) + 1  # the token that anchor t must produce
    mixed = tokens * (place * 7919 % _PRIME + 1) % ((1 << _BITS) - 3)
    return torch.where(anchors, mixed, 0).sum(dim=1) % (1 << _BITS)


def with_repeats(counts: Tensor, fingerprint: Tensor) -> Tensor:
    """The counts [B, width] of rows counted once, with the columns that repeats are told by: [B, width + 3]."""
    extra = torch.stack([torch.ones_like(fingerprint), fingerprint, fingerprint * fingerprint], dim=1)
    return torch.cat([counts, extra.to(counts.dtype)], dim=1)


def named_rows(index: Tensor, counts: Tensor) -> Tensor:
    """Rows that carry their sequence [n, 2 + width + 3]: its upper and lower 32 bits, exact in float64 as well."""
    name = torch.stack([index.long() >> 32, index.long() & 0xFFFFFFFF], dim=1)
    return torch.cat([name.to(counts.dtype), counts], dim=1)


def rows_and_names(named: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    """Inverse of :func:`named_rows`."""
    upper, lower = named[:, :2].astype(np.int64).T
    return named[:, 2:], (upper << 32) | lower


def placed_rows(rows: Tensor, most: int, group: Any) -> Tensor:
    """The rows [n, C] of this process in their place among ``most`` of each: [world * most, C], to be added up."""
    world, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
    before = rank * most
    return functional.pad(rows, (0, 0, before, (world - 1 - rank) * most + most - len(rows)))


def count_once(rows: Array, index: npt.NDArray[np.int64], blocks: int) -> Array:
    """Counts of the sequences, each counted once, in blocks ``index % blocks``: [blocks, width].

    Repeats may differ a little, as numerics do between batches of other shapes: then their mean counts, as float64.

    Args:
        rows: [N, width + 3] as :func:`with_repeats` makes them, also added up over repeats.
        index: [N] the sequence of each row.
        blocks: G.

    Raises:
        InputError: one index stands for two texts.
    """
    names, place = np.unique(index, return_inverse=True)
    total = np.zeros((len(names), rows.shape[1]), dtype=rows.dtype)
    np.add.at(total, place, rows)
    counts, (times, fingerprint, squares) = total[:, :-EXTRA_COLUMNS], total[:, -EXTRA_COLUMNS:].T
    for i in np.flatnonzero(times > 1):
        if int(times[i]) * int(squares[i]) != int(fingerprint[i]) ** 2:
            raise InputError("sequence_index", int(names[i]), "must stand for one text; its repeats differ")
    repeats = np.maximum(times, 1)[:, None]
    exact = np.issubdtype(rows.dtype, np.integer) and not np.mod(counts, repeats).any()
    once = counts // repeats if exact else counts / repeats
    folded = np.zeros((blocks, counts.shape[1]), dtype=once.dtype)
    np.add.at(folded, names % blocks, once)
    return folded
