"""What the accept rate of an SGLang log says of the draft depth: its meaning changed between builds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Meaning", "RateDepths", "depths_from_rates", "meanings"]

_ROUNDING = 0.00501  # accept len and accept rate are printed with two decimals
_MIN_SHARE = 0.8
_MIN_RUN = 0.2  # share of the lines that makes a run of its own: odd lines fit some depth by chance
_MAX_RUNS = 3
_MOST = 128  # draft tokens
_ASK = "give depth="


@dataclass(frozen=True, slots=True, order=True)
class Meaning:
    """``accept rate`` = accept len / ``n`` draft tokens, or (accept len - 1) / ``n`` steps."""

    of_steps: bool
    """Whether it is the latter."""
    n: int

    @property
    def depth(self) -> int:
        """Steps of a chain."""
        return self.n if self.of_steps else self.n - 1

    def __str__(self) -> str:
        if self.of_steps:
            return f"depth {self.depth} read from accept rate = (accept len - 1) / {self.n}"
        taken = f"taken for a chain of {self.n} draft tokens"
        return f"depth {self.depth} read from accept rate = accept len / {self.n}, {taken}"


@dataclass(frozen=True, slots=True)
class RateDepths:
    """The meanings that the lines of a log fit."""

    meanings: tuple[Meaning, ...]
    """None where the depth stays unknown; several where the lines are of several runs."""
    note: str
    """How they were found, or why not."""

    def depth_of(self, fitting: frozenset[Meaning] | None) -> tuple[int | None, str | None]:
        """Depth of lines that fit ``fitting`` (None = no rate in them), and why they can not be used, where so."""
        if not self.meanings or (fitting is None and len(self.meanings) == 1):
            return (self.meanings[0].depth if self.meanings else None), None
        depths = {m.depth for m in self.meanings if fitting is not None and m in fitting}
        if len(depths) == 1:
            return depths.pop(), None
        if depths or fitting is None:
            return None, "which of the log's draft depths it is of is not known"
        return None, "its accept rate does not fit the draft depth of the other lines: another run in the log?"


@lru_cache(maxsize=4096)
def meanings(length: float, rate: float) -> frozenset[Meaning]:
    """Those in which a line's accept length and rate agree within rounding."""
    return frozenset(
        Meaning(of_steps, n)
        for of_steps in (False, True)
        for n in range(1, _MOST + 1)
        if abs((length - of_steps) / n - rate) <= _ROUNDING * (1 / n + 1)
    )


def depths_from_rates(rates: Counter[tuple[float, float]]) -> RateDepths:
    """What the rate means, from pairs (accept len, accept rate) and how many lines print them.

    One meaning must hold on four fifths of the lines, and the other on fewer. Where none does, several runs may be in
    the log, each of a depth of its own: they are told apart if together they hold on as many.
    """
    total = rates.total()
    votes = _votes(rates)
    likely: list[Meaning] = []
    for of_steps in (False, True):
        of_one = {m: count for m, count in votes.items() if m.of_steps == of_steps}
        most = max(of_one.values(), default=0)
        if most >= _MIN_SHARE * total:
            likely += [m for m, count in of_one.items() if count == most]
    if len(likely) == 1:
        return RateDepths((likely[0],), str(likely[0]))
    if likely:
        depths = " or ".join(str(depth) for depth in sorted({m.depth for m in likely}))
        return RateDepths(
            (), f"draft depth not known: accept rate fits several of its meanings (depth {depths}); {_ASK}"
        )
    runs = _apart(rates)
    if runs:
        depths = ", ".join(str(m.depth) for m in runs)
        return RateDepths(runs, f"runs of several draft depths in the log ({depths}), told apart by their accept rates")
    return RateDepths((), f"draft depth not known: accept rate fits neither of its meanings throughout; {_ASK}")


def _votes(rates: Counter[tuple[float, float]]) -> Counter[Meaning]:
    votes: Counter[Meaning] = Counter()
    for (length, rate), count in rates.items():
        for meaning in meanings(length, rate):
            votes[meaning] += count
    return votes


def _apart(rates: Counter[tuple[float, float]]) -> tuple[Meaning, ...]:
    """The meanings of several runs, the commonest first; none where they do not explain enough of the lines."""
    total, left, found = rates.total(), rates, []
    for _ in range(_MAX_RUNS):
        votes = _votes(left)
        if not votes:
            break
        best, count = min(votes.items(), key=lambda item: (-item[1], item[0]))
        if count < _MIN_RUN * total:
            break
        of_best = Counter({pair: n for pair, n in left.items() if best in meanings(*pair)})
        if sum(other == count for other in _votes(of_best).values()) > 1:
            return ()  # nothing says which of them
        found.append(best)
        left = left - of_best
    return tuple(found) if left.total() <= (1 - _MIN_SHARE) * total and len(found) > 1 else ()
