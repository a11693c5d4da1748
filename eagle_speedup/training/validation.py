"""One validation as the stop rules see it, and how two of them compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..acceptance import AcceptanceProfile
from ..errors import InputError
from ..estimate import Estimate
from ..projection import SpeedupProjection

__all__ = ["Validation", "best", "comparable", "crossed_breakeven", "difference", "paired_gain"]


@dataclass(frozen=True)
class Validation:
    """Counts of one validation and what they project to. A value: nothing changes it."""

    global_step: int
    """Optimizer steps done."""
    epoch: int
    """Epoch that was running, from 0."""
    profile: AcceptanceProfile
    """Acceptance, with the counts."""
    projection: SpeedupProjection | None
    """Under one calibration; None where the validation held no answers."""

    @property
    def usable(self) -> bool:
        """Whether it can be compared: it holds answers in at least two blocks, so that there is an interval."""
        return self.projection is not None and int((self.profile.counts.tokens > 0).sum()) >= 2

    @property
    def projected(self) -> SpeedupProjection:
        """The projection; InputError where there is none."""
        if self.projection is None:
            raise InputError("validation", f"step {self.global_step}", "holds no answers, so there is no projection")
        return self.projection

    @property
    def tok_s(self) -> float:
        """Projected tokens per second; NaN where there is no projection."""
        return math.nan if self.projection is None else self.projection.tok_s.value


def difference(now: Validation, earlier: Validation) -> str | None:
    """Why two validations may not be compared; None where they may."""
    if now.projected.fingerprint != earlier.projected.fingerprint:
        return "another calibration"
    serving = [(v.projected.batch, v.projected.context_tokens, v.profile.mode) for v in (now, earlier)]
    if serving[0] != serving[1]:
        return "another batch size, context or sampling mode"
    if not np.array_equal(now.profile.counts.tokens, earlier.profile.counts.tokens):
        return "another validation set"
    return None


def comparable(history: Sequence[Validation]) -> tuple[list[Validation], str | None]:
    """The usable validations at the end of the history that may be compared with the last one, in order.

    Returns:
        (validations, why the history restarts at the first of them; None where nothing was cut off)
    """
    usable = [v for v in history if v.usable]
    for index in range(len(usable) - 2, -1, -1):
        why = difference(usable[-1], usable[index])
        if why is not None:
            kept = usable[index + 1 :]
            return kept, f"history restarts at step {kept[0].global_step}: {why} before"
    return usable, None


def paired_gain(now: Validation, earlier: Validation) -> Estimate:
    """tok/s of ``now`` over that of ``earlier``, minus 1, paired over the answers they share.

    The value is the ratio of the two projections, so a best depth that moved and whatever does not scale with the
    accept length are in it. The relative band is that of the paired ratio of the accept lengths; the calibration's
    own uncertainty hardly touches a ratio under one calibration and is left out.

    Raises:
        InputError: another calibration, serving point or validation set.
    """
    why = difference(now, earlier)
    if why is not None:
        raise InputError("validations", (earlier.global_step, now.global_step), f"can not be compared: {why}")
    new, old = now.projected, earlier.projected
    length = now.profile.paired_ratio(earlier.profile, new.depth, old.depth)
    scale = (new.tok_s.value / old.tok_s.value) / (1 + length.value)
    value, lo, hi = ((1 + x) * scale - 1 for x in (length.value, length.lo, length.hi))
    return Estimate(value, lo, hi, length.level)


def best(history: Sequence[Validation]) -> Validation | None:
    """The validation of the highest projected tok/s (the first of equals); None where there is no projection."""
    projected = [v for v in history if v.projection is not None]
    return max(projected, key=lambda v: v.tok_s, default=None)


def crossed_breakeven(history: Sequence[Validation]) -> bool:
    """Whether the last validation is the first of the history that projects a speedup above 1."""
    ratios = [v.projection.ratio.value for v in history if v.projection is not None]
    return bool(history and history[-1].projection and ratios[-1] > 1 and all(r <= 1 for r in ratios[:-1]))
