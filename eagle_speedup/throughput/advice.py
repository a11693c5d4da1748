"""What to serve: a decision with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..estimate import Estimate
from .grid import Grid

__all__ = ["Advice", "Option"]


@dataclass(frozen=True, slots=True)
class Option:
    """A way to speculate and the accept length it reaches."""

    depth: int
    """Draft steps."""
    accept_length: float | Estimate
    """Tokens per round, bonus token included."""
    topk: int = 1
    """Branches per draft step; 1 = chain."""
    num_draft_tokens: int | None = None
    """Nodes of a tree, root included."""

    def __str__(self) -> str:
        return f"depth {self.depth}" + (f", tree of {self.num_draft_tokens}" if self.topk > 1 else "")


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommended option; a value, nothing applies it."""

    speculate: bool
    """Whether speculation is expected to gain anything."""
    depth: int
    """Depth to serve; 0 = do not speculate."""
    option: Option | None
    """The recommended option; None = do not speculate."""
    speedup: Estimate | None
    """Of the best option, recommended or not; None where there was none."""
    reason: str
    """One sentence with the numbers."""
    warnings: tuple[str, ...] = ()
    """What a reader must know before acting."""


def choose(
    options: Sequence[Option], grid: Grid, inconsistent: str | None, outside: Sequence[tuple[str, ...]]
) -> Advice:
    """The option of the highest expected speedup, if that is above 1.

    ``grid`` has one row per option, ``outside`` for each in what way it lies outside what was measured. A comparison is
    no better than its worst side, so the options that were not taken are checked too.
    """
    best = int(grid.speedup.value[:, 0].argmax())
    speedup = grid.speedup.at(best)
    warnings = outside[best]
    others = [str(o) for o, found in zip(options, outside, strict=True) if set(found) - set(warnings)]
    if others:
        warnings = (*warnings, f"compared with options outside the calibrated range: {', '.join(others)}")
    if inconsistent:
        warnings = (f"inconsistent: {inconsistent}", *warnings)
    if speedup.value <= 1 or options[best].depth == 0:
        reason = f"do not speculate: the best option ({options[best]}) gives {speedup} of plain decoding"
        return Advice(False, 0, None, speedup, reason, warnings)
    need = grid.breakeven.at(best)
    sure = "" if speedup.lo > 1 else "; a loss is not excluded"
    reason = f"{options[best]} gives {speedup} of plain decoding (breakeven accept length {need}){sure}"
    return Advice(True, options[best].depth, options[best], speedup, reason, warnings)
