"""The accept length from published per-step accuracies, where no counts are at hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..estimate import Estimate

__all__ = ["AcceptLengthCurve"]

# Joint accuracies averaged over all anchors overstate what decoding shows, because rounds start after misses, that is
# in hard stretches. Measured over six drafters: 2.1 to 9.6 %.
_OVERSTATED_AT_MOST = 0.096
_TAIL_STEPS = 3
_SHORT_TAIL_MARGIN = 0.15
_MAX_DEPTH = 64


@dataclass(frozen=True)
class AcceptLengthCurve:
    """Accept length over depth from joint per-step accuracies averaged over all anchors.

    >>> curve = AcceptLengthCurve.from_full_acc([0.742, 0.47, 0.29, 0.15, 0.097])
    >>> round(curve.accept_length(5).value, 3)
    2.749
    """

    full_acc: tuple[float, ...]
    level: float = 0.90

    @classmethod
    def from_full_acc(cls, full_acc: Iterable[float], *, level: float = 0.90) -> AcceptLengthCurve:
        """Check and keep the joint accuracies (``full_acc[k]``: steps 0..k all right).

        Raises:
            InputError: empty, not a number, outside [0, 1], or rising with k.
        """
        return cls(_checked(list(full_acc)), level)

    @property
    def ttt_steps(self) -> int:
        """Number of steps that were given."""
        return len(self.full_acc)

    @property
    def max_depth(self) -> int:
        """Largest depth that is extrapolated to."""
        return _MAX_DEPTH

    @property
    def conditionals(self) -> tuple[float, ...]:
        """full_acc[k] / full_acc[k - 1]; the first is full_acc[0]; 0 after a step that never holds."""
        previous = (1.0, *self.full_acc[:-1])
        return tuple(now / before if before > 0 else 0.0 for now, before in zip(self.full_acc, previous, strict=True))

    @property
    def tail(self) -> Estimate:
        """Conditional accuracy assumed beyond the given steps: the mean of the last three, within their range."""
        last = self.conditionals[-_TAIL_STEPS:]
        mean = sum(last) / len(last)
        lo, hi = min(last), max(last)
        if len(last) < _TAIL_STEPS:
            lo, hi = max(0.0, mean - _SHORT_TAIL_MARGIN), min(1.0, mean + _SHORT_TAIL_MARGIN)
        # The mean of equal numbers can leave their range by one rounding.
        return Estimate(min(max(mean, lo), hi), lo, hi, self.level)

    def accept_length(self, depth: int) -> Estimate:
        """1 + sum of the joint accuracies of the first ``depth`` steps (with the bonus token).

        The value is the textbook figure. The interval reaches down by what joint accuracies over all anchors were found
        to overstate, and beyond the given steps it follows the range of the tail's conditional.
        """
        if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= _MAX_DEPTH:
            raise InputError("depth", depth, f"must be a whole number in [1, {_MAX_DEPTH}]")
        measured = 1 + math.fsum(self.full_acc[:depth])
        beyond = max(0, depth - self.ttt_steps)
        tail = self.tail
        value, lo, hi = (
            measured + self.full_acc[-1] * _geometric(conditional, beyond)
            for conditional in (tail.value, tail.lo, tail.hi)
        )
        return Estimate(value, max(1.0, lo / (1 + _OVERSTATED_AT_MOST)), hi, self.level)

    @property
    def limit(self) -> float:
        """Accept length at unlimited depth under the mean tail conditional (infinite for a tail of 1)."""
        return self._limit(self.tail.value)

    @property
    def highest_limit(self) -> float:
        """The same under the highest tail conditional: at or above the upper end of every depth."""
        return self._limit(self.tail.hi)

    def _limit(self, tail: float) -> float:
        rest = math.inf if tail >= 1 else self.full_acc[-1] * tail / (1 - tail)
        return 1 + math.fsum(self.full_acc) + (rest if self.full_acc[-1] > 0 else 0.0)


def _geometric(ratio: float, terms: int) -> float:
    """ratio + ratio^2 + .. (``terms`` of them)."""
    return math.fsum(ratio**i for i in range(1, terms + 1))


def _checked(values: Sequence[float]) -> tuple[float, ...]:
    if not values:
        raise InputError("full_acc", values, "must hold at least one accuracy")
    for index, value in enumerate(values):
        field = f"full_acc[{index}]"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(field, value, "must be a number")
        if math.isnan(value) or not 0 <= value <= 1:
            raise InputError(field, value, "must lie in [0, 1]")
        if index and value > values[index - 1]:
            limit = f"full_acc[{index - 1}] = {values[index - 1]}"
            raise InputError(field, value, f"must not exceed {limit}: joint accuracies never rise with the step")
    return tuple(float(v) for v in values)
