"""Simple throughput rules, kept under their names beside the calibrated model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError

__all__ = ["LinearBreakeven", "OptimisticOverhead", "affine_round"]

_MOST = 1e12


@dataclass(frozen=True, slots=True)
class LinearBreakeven:
    """tok/s in proportion to accept length, through one stated or inferred breakeven accept length.

    It knows no depth: it holds only at the depth at which the breakeven was measured.

    >>> round(LinearBreakeven(baseline_tok_s=90.0, breakeven_accept_length=2.2).tok_s(2.749), 1)
    112.5
    """

    baseline_tok_s: float
    """tok/s without speculation."""
    breakeven_accept_length: float
    """Accept length at which speculation neither gains nor loses."""

    def __post_init__(self) -> None:
        _check_positive("baseline_tok_s", self.baseline_tok_s)
        _check_positive("breakeven_accept_length", self.breakeven_accept_length)

    @classmethod
    def inferred(cls, baseline_tok_s: float, accept_length: float, tok_s: float) -> LinearBreakeven:
        """From one served point: breakeven = accept_length * baseline / tok_s (2.1 * 90 / 82.3 = 2.2965)."""
        for name, value in (("accept_length", accept_length), ("tok_s", tok_s)):
            _check_positive(name, value)
        return cls(baseline_tok_s, accept_length * baseline_tok_s / tok_s)

    def ratio(self, accept_length: float) -> float:
        """Speedup over no speculation."""
        return accept_length / self.breakeven_accept_length

    def tok_s(self, accept_length: float) -> float:
        """Tokens per second, in the sense (total or per user) of ``baseline_tok_s``."""
        return self.ratio(accept_length) * self.baseline_tok_s

    def as_dict(self) -> dict[str, Any]:
        """Fields and kind, ready for YAML."""
        return {
            "kind": "linear_breakeven",
            "baseline_tok_s": self.baseline_tok_s,
            "breakeven_accept_length": self.breakeven_accept_length,
        }


@dataclass(frozen=True, slots=True)
class OptimisticOverhead:
    """A round costs one plain step plus a constant share: an upper bound, because verifying more tokens is free here.

    >>> round(OptimisticOverhead(baseline_tok_s=90.0, draft_overhead=0.15).tok_s(2.749), 1)
    215.1
    """

    baseline_tok_s: float
    """tok/s without speculation."""
    draft_overhead: float
    """Extra time of a round, as a share of a plain step."""

    def __post_init__(self) -> None:
        _check_positive("baseline_tok_s", self.baseline_tok_s)
        if not _is_number(self.draft_overhead) or self.draft_overhead < 0:
            raise InputError("draft_overhead", self.draft_overhead, "must be a finite number >= 0")
        _check_size("draft_overhead", self.draft_overhead)

    def ratio(self, accept_length: float) -> float:
        """Speedup over no speculation, at best."""
        return accept_length / (1.0 + self.draft_overhead)

    def tok_s(self, accept_length: float) -> float:
        """Tokens per second, at best."""
        return self.ratio(accept_length) * self.baseline_tok_s

    def as_dict(self) -> dict[str, Any]:
        """Fields and kind, ready for YAML."""
        return {
            "kind": "optimistic_overhead",
            "baseline_tok_s": self.baseline_tok_s,
            "draft_overhead": self.draft_overhead,
        }


def affine_round(depths: list[int], round_ms: list[float]) -> tuple[float, float]:
    """Plain least squares of ``round_ms = a + b * depth``; returns ``(a, b)`` in ms. Needs two distinct depths."""
    x, y = np.asarray(depths, dtype=float), np.asarray(round_ms, dtype=float)
    if x.shape != y.shape or len(set(x.tolist())) < 2:
        raise InputError("depths", depths, "must hold at least two distinct depths, one per round time")
    slope = float(np.cov(x, y, bias=True)[0, 1] / x.var())
    return float(y.mean() - slope * x.mean()), slope


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf


def _check_positive(name: str, value: object) -> None:
    if not _is_number(value) or value <= 0:  # type: ignore[operator]
        raise InputError(name, value, "must be a finite number > 0")
    _check_size(name, value)


def _check_size(name: str, value: object) -> None:
    if value > _MOST:  # type: ignore[operator]
        raise InputError(name, value, f"must be at most {_MOST:g}")
