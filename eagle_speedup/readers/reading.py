"""What a reader hands back: measured points, and an account of everything it did not use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import InputError
from ..throughput import MeasuredPoint

__all__ = ["Contradiction", "Hints", "Reading"]

_SHOWN = 8  # reasons that fit a line


@dataclass(frozen=True, slots=True)
class Hints:
    """What the reader of a file is told beforehand, because the file does not say it. None = not told."""

    depth: int | None = None
    """Draft tokens of a round; 0 = no speculation."""
    batch: int | None = None
    """Requests decoded together."""
    context_tokens: float | None = None
    """Context per request."""
    topk: int = 1
    """Branches per draft step; 1 = chain."""
    num_draft_tokens: int | None = None
    """Tokens the verifier checks per request, for trees."""
    workload: str | None = None
    """Data set or traffic."""


class Contradiction(InputError):
    """A hint that its file denies: it refuses the file, where a record that can not be used is only left out."""

    def __init__(self, field: str, value: object, says: str, file: str = "its file") -> None:
        self.says, self.file = says, file
        super().__init__(field, value, f"contradicts {file}, which says {says}: leave the hint out")

    def of(self, file: str) -> Contradiction:
        """The same, with the name of the file."""
        return Contradiction(self.field, self.value, self.says, file)

    def __reduce__(self) -> tuple[type[Contradiction], tuple[str, object, str, str]]:  # type: ignore[override]
        return type(self), (self.field, self.value, self.says, self.file)


@dataclass(frozen=True)
class Reading:
    """Points from one file. ``used`` and ``dropped`` count its records (lines, intervals, results)."""

    points: tuple[MeasuredPoint, ...]
    """One per depth, batch and range of context of every server, or run of it, in the file."""
    used: int
    """Records behind the points."""
    dropped: Mapping[str, int] = field(default_factory=Counter)
    """Records left out, by reason."""
    notes: tuple[str, ...] = ()
    """What was assumed."""
    format: str = ""
    """What the file was taken for."""
    setup: Mapping[str, str] = field(default_factory=dict)
    """Found on the way: ``engine``, ``engine_version``, ``parallelism``, and the ``model`` that was served."""
    date: str | None = None
    """Day of the first record that has one: ``2025-10-22``, or ``10-22`` where no year is printed."""

    def summary(self) -> str:
        """One line: ``vllm log: 12 intervals used, 5 dropped (prompts processed in it: 3 dropped, ..)``."""
        dropped = sum(self.dropped.values())
        ranked = sorted(self.dropped.items(), key=lambda item: -item[1])
        reasons = ", ".join(f"{reason}: {n} dropped" for reason, n in ranked[:_SHOWN])
        if len(ranked) > _SHOWN:
            reasons += f", {len(ranked) - _SHOWN} more reasons: {sum(n for _, n in ranked[_SHOWN:])} dropped"
        return f"{self.format}: {self.used} used, {dropped} dropped" + (f" ({reasons})" if reasons else "")
