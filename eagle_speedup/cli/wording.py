"""Figures as text. A bracket is shown by its ends: no value within it is likelier than another."""

from __future__ import annotations

from ..estimate import Estimate

__all__ = ["figure", "short", "times"]


def figure(value: Estimate, bracket: bool = False) -> str:
    """``104.2 [78.6, 130.2]``, or ``78.6 to 130.2``."""
    if not bracket:
        return str(value)
    digits = 1 if abs(value.value) >= 20 else 3
    return f"{value.lo:.{digits}f} to {value.hi:.{digits}f}"


def times(ratio: Estimate, bracket: bool = False) -> str:
    """``1.16x [0.87, 1.44]``, or ``0.87x to 1.44x``."""
    if bracket:
        return f"{ratio.lo:.2f}x to {ratio.hi:.2f}x"
    return f"{ratio.value:.2f}x [{ratio.lo:.2f}, {ratio.hi:.2f}]"


def short(value: Estimate, bracket: bool = False) -> str:
    """For cells of a table: ``104 [79, 130]``, or ``79..130``."""
    digits = 0 if value.value >= 20 else 1 if value.value >= 10 else 2
    ends = (f"{end:.{digits}f}" for end in (value.lo, value.hi))
    return "..".join(ends) if bracket else f"{value.value:.{digits}f} [{', '.join(ends)}]"
