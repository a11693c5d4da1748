"""Steady intervals of one condition, summed to one measured point each."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from ..errors import InputError
from ..throughput import MeasuredPoint
from .reading import Hints

__all__ = ["Interval", "Intervals"]

_UNEVEN = 0.15  # standard deviation over mean of the intervals' rounds per second, from which on a note says so
_SHORT_CONTEXT = 4096.0  # below it, context hardly moves a round; above, one group per doubling


@dataclass(frozen=True, slots=True)
class Interval:
    """One steady stretch of decoding."""

    depth: int | None
    """Draft tokens; 0 = no speculation; None = not known."""
    batch: int
    """Requests that ran throughout."""
    tokens: float
    """Tokens generated, in any unit that ``seconds`` shares."""
    seconds: float
    """Its length, in the same unit."""
    rounds: float
    """Tokens / accept length; equals ``tokens`` without speculation."""
    context_tokens: float | None = None
    """Context per request."""


@dataclass(slots=True)
class _Sums:
    count: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    rounds: float = 0.0
    context: float = 0.0
    mean_pace: float = 0.0
    """Rounds per second of the intervals, each counted alike: tokens vary with what is accepted, too."""
    squares: float = 0.0
    """Sum of the squared distances of the intervals' paces from that mean."""

    def add(self, interval: Interval) -> None:
        self.count += 1
        self.tokens += interval.tokens
        self.seconds += interval.seconds
        self.rounds += interval.rounds
        self.context += interval.context_tokens or 0.0
        pace = interval.rounds / interval.seconds
        off = pace - self.mean_pace
        self.mean_pace += off / self.count
        self.squares += off * (pace - self.mean_pace)

    def merge(self, other: _Sums) -> None:
        """Count in what another counted."""
        count, off = self.count + other.count, other.mean_pace - self.mean_pace
        self.squares += other.squares + off * off * self.count * other.count / count
        self.mean_pace += off * other.count / count
        self.count = count
        self.tokens += other.tokens
        self.seconds += other.seconds
        self.rounds += other.rounds
        self.context += other.context

    @property
    def variation(self) -> float:
        """Standard deviation of the intervals' paces over their mean; 0 where there is but one."""
        return math.sqrt(self.squares / (self.count - 1)) / self.mean_pace if self.count > 1 else 0.0


@dataclass(slots=True)
class Intervals:
    """Sums per condition: memory grows with the conditions, not with the file."""

    sums: dict[tuple[int | None, int, int | None], _Sums] = field(default_factory=dict)

    def add(self, interval: Interval) -> None:
        """Count an interval in."""
        key = (interval.depth, interval.batch, _context_group(interval.context_tokens))
        self.sums.setdefault(key, _Sums()).add(interval)

    def merge(self, other: Intervals, depth: int | None) -> None:
        """Count in what another counted; its intervals of unknown depth are of ``depth``."""
        for (known, batch, group), sums in other.sums.items():
            self.sums.setdefault((depth if known is None else known, batch, group), _Sums()).merge(sums)

    @property
    def count(self) -> int:
        """Intervals counted in."""
        return sum(s.count for s in self.sums.values())

    def points(self, hints: Hints, dropped: Counter[str]) -> tuple[MeasuredPoint, ...]:
        """One point per condition: total tok/s, and accept length as a ratio of sums.

        A condition that can not be (an accept length above depth + 1, say) is taken out and counted in ``dropped``.
        """
        out = []
        for key in sorted(self.sums, key=lambda key: tuple(-1 if part is None else part for part in key)):
            try:
                out.append(_point(key, self.sums[key], hints))
            except InputError as error:
                dropped[str(error)] += self.sums.pop(key).count
        return tuple(out)

    def notes(self) -> tuple[str, ...]:
        """Of the load whose intervals differ most, where they differ wildly; the others are only counted."""
        uneven = sorted((s.variation, key[1], s.count) for key, s in self.sums.items() if s.variation >= _UNEVEN)
        if not uneven:
            return ()
        variation, batch, count = uneven[-1]
        others = f"; {len(uneven) - 1} more vary by {100 * _UNEVEN:.0f} % or more" if len(uneven) > 1 else ""
        what = f"rounds per second of the {count} intervals at batch {batch} vary by {100 * variation:.0f} %"
        return (f"{what} (standard deviation over mean): is it steady?{others}",)


def _point(key: tuple[int | None, int, int | None], sums: _Sums, hints: Hints) -> MeasuredPoint:
    depth, batch, group = key
    context = hints.context_tokens if group is None else round(sums.context / sums.count)
    return MeasuredPoint(
        depth=depth,
        tok_s=round(sums.tokens / sums.seconds, 3),
        accept_length=None if depth == 0 else round(sums.tokens / sums.rounds, 4),
        batch=batch,
        context_tokens=context,
        topk=hints.topk if depth else 1,
        num_draft_tokens=hints.num_draft_tokens if depth else None,
        workload=hints.workload,
    )


def _context_group(context_tokens: float | None) -> int | None:
    if context_tokens is None:
        return None
    return 0 if context_tokens < _SHORT_CONTEXT else math.floor(math.log2(context_tokens / _SHORT_CONTEXT)) + 1
