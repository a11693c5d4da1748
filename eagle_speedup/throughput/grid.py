"""Results over depths and batch sizes, with their intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..estimate import Estimate
from .posterior import Array

__all__ = ["Band", "Grid"]

LEVEL = 0.90
_Z90 = 1.6448536269514722


@dataclass(frozen=True)
class Band:
    """Values with 90 % intervals, arrays of one shape [depths, batches]."""

    value: Array
    """Expected."""
    lo: Array
    """Lower end."""
    hi: Array
    """Upper end."""

    def at(self, depth_index: int, batch_index: int = 0) -> Estimate:
        """One cell."""
        cell = (depth_index, batch_index)
        return Estimate(float(self.value[cell]), float(self.lo[cell]), float(self.hi[cell]), LEVEL)


@dataclass(frozen=True)
class Grid:
    """Round time and throughput over depths x batches."""

    depths: NDArray[np.int64]
    """[D]."""
    batches: NDArray[np.int64]
    """[B]."""
    round_ms: Band
    """Milliseconds per round, decoding only; at depth 0 a plain step."""
    breakeven: Band
    """Accept length at which speculation neither gains nor loses."""
    tok_s: Band
    """Total tokens per second."""
    speedup: Band
    """tok/s over tok/s without speculation."""


def interval(log_draws: Array, extra: Array, sides: Array | None, shape: tuple[int, int]) -> Band:
    """Band of log-normal quantities: row 0 of ``log_draws`` [1 + n, N] is the value, the rest its draws.

    ``extra`` [N] is a further standard deviation, ``sides`` [2, N] the log half-widths of a factor's own interval (its
    lower one negative); all join in quadrature, side by side.
    """
    value, draws = log_draws[0], log_draws[1:]
    centre = draws.mean(axis=0)
    apart = draws - centre
    width = _Z90 * np.hypot(np.sqrt(np.einsum("ij,ij->j", apart, apart) / len(apart)), extra)
    down, up = (width, width) if sides is None else (np.hypot(width, sides[0]), np.hypot(width, sides[1]))
    lo, hi = np.minimum(centre - down, value), np.maximum(centre + up, value)
    return Band(*(np.broadcast_to(np.exp(x), value.shape).reshape(shape) for x in (value, lo, hi)))
