"""A number with its uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import InputError

__all__ = ["Estimate"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and the interval that holds the truth with probability ``level``.

    ``lo <= value <= hi`` unless the interval is one-sided by construction (an upper bound may equal the value).

    >>> print(Estimate(112.5, 104.1, 121.0))
    112.5 [104.1, 121.0]
    """

    value: float
    lo: float
    hi: float
    level: float = 0.90

    def __post_init__(self) -> None:
        if math.isnan(self.lo) or math.isnan(self.hi) or math.isnan(self.value):
            return
        if not self.lo <= self.value <= self.hi:
            raise InputError("Estimate", (self.lo, self.value, self.hi), "must satisfy lo <= value <= hi")

    @classmethod
    def exact(cls, value: float, level: float = 0.90) -> Estimate:
        """An estimate without uncertainty: ``lo == value == hi``."""
        return cls(float(value), float(value), float(value), level)

    @classmethod
    def around(cls, value: float, half_width: float, level: float = 0.90) -> Estimate:
        """The symmetric interval ``value -/+ half_width``."""
        return cls(float(value), float(value - half_width), float(value + half_width), level)

    def scaled(self, factor: float) -> Estimate:
        """The estimate in other units; ``factor`` must be positive, so the order of the bounds stays."""
        if not factor > 0:
            raise InputError("factor", factor, "must be positive")
        return Estimate(self.value * factor, self.lo * factor, self.hi * factor, self.level)

    @property
    def half_width(self) -> float:
        """Half of the interval's width, in the unit of the value."""
        return (self.hi - self.lo) / 2

    def as_dict(self) -> dict[str, float]:
        """``{"value": .., "lo": .., "hi": .., "level": ..}``, all Python floats."""
        return {"value": self.value, "lo": self.lo, "hi": self.hi, "level": self.level}

    def __str__(self) -> str:
        digits = 1 if abs(self.value) >= 20 else 3
        return f"{self.value:.{digits}f} [{self.lo:.{digits}f}, {self.hi:.{digits}f}]"
