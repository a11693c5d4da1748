"""When to stop: pure functions of the history of validations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import InputError
from ..estimate import Estimate
from .validation import Validation, comparable, paired_gain

__all__ = ["StopDecision", "StopReason", "decide"]


class StopReason(str, Enum):
    """Why training should stop."""

    STALLED = "stalled"
    """The best tok/s has not gained enough over the last validations."""


@dataclass(frozen=True)
class StopDecision:
    """Stop or go on, why, and a sentence with the numbers."""

    stop: bool
    reason: StopReason | None
    message: str
    best_step: int | None = None
    """Step of the highest tok/s among the validations that were compared; its checkpoint is the one to keep."""


def decide(history: Sequence[Validation], *, min_gain_ratio: float = 0.01, patience: int = 3) -> StopDecision:
    """The stall rule: stop when ``patience`` validations in a row brought no confirmed gain of tok/s.

    The reference is the last confirmed gain (at first: the first validation). A validation is a confirmed gain when its
    paired tok/s ratio over the reference gains at least ``min_gain_ratio`` and the interval's lower bound is above 0,
    so noise does not fake a gain; slow gains add up, because the reference stays put until they reach
    ``min_gain_ratio``. A gain of that size whose interval still reaches below 0 is undecided: it moves no reference and
    is not counted against the training either, so noise does not hide a gain.

    A validation without answers (or with all of them in one block, where there is no interval) neither stops nor
    counts. Where the calibration or the validation set changed, only what came after the change is compared, and the
    message says so.

    Args:
        history: validations in order.
        min_gain_ratio: smallest gain that counts, relative (0.01 = 1 %), >= 0.
        patience: validations in a row without a confirmed gain that stop, >= 1.
    """
    _check(min_gain_ratio, patience)
    validations, restart = comparable(history)
    note = f" ({restart})" if restart else ""
    if not validations:
        return StopDecision(False, None, "no validation with answers to compare yet")
    reference, waited, gain = _follow(validations, min_gain_ratio)
    best = max(validations, key=lambda v: v.tok_s)
    best_text = f"best {best.tok_s:.4g} tok/s at step {best.global_step}"
    last = validations[-1]
    if gain is None:
        return StopDecision(False, None, f"first comparable validation: {best_text}{note}", best.global_step)
    change = f"{_percent(gain)} tok/s against step {{step}}"
    if reference is last:
        previous = _follow(validations[:-1], min_gain_ratio)[0]
        text = f"gaining: {change.format(step=previous.global_step)}; {best_text}{note}"
        return StopDecision(False, None, text, best.global_step)
    if gain.value >= min_gain_ratio:
        text = f"undecided: {change.format(step=reference.global_step)}; {best_text}{note}"
        return StopDecision(False, None, text, best.global_step)
    lacks = f"no confirmed gain of {100 * min_gain_ratio:.3g} % in {waited} validation{'s' if waited > 1 else ''}"
    change = change.format(step=reference.global_step)
    text = f"{lacks}: {last.tok_s:.4g} tok/s at step {last.global_step} is {change} ({reference.tok_s:.4g} tok/s)"
    if waited < patience:
        return StopDecision(False, None, f"{text}; waited {waited} of {patience}; {best_text}{note}", best.global_step)
    return StopDecision(True, StopReason.STALLED, f"stalled, {text}; {best_text}{note}", best.global_step)


def _follow(validations: Sequence[Validation], min_gain_ratio: float) -> tuple[Validation, int, Estimate | None]:
    """(reference, validations since it, gain of the last validation over the reference it was compared with)."""
    reference, waited, gain = validations[0], 0, None
    for validation in validations[1:]:
        gain = paired_gain(validation, reference)
        if gain.value >= min_gain_ratio and gain.lo > 0:
            reference, waited = validation, 0
        elif gain.value < min_gain_ratio:
            waited += 1
    return reference, waited, gain


def _percent(gain: Estimate) -> str:
    value, lo, hi = (100 * x for x in (gain.value, gain.lo, gain.hi))
    return f"{value:+.2f} % [{lo:+.2f}, {hi:+.2f}]"


def _check(min_gain_ratio: float, patience: int) -> None:
    number = isinstance(min_gain_ratio, int | float) and not isinstance(min_gain_ratio, bool)
    if not number or not 0 <= min_gain_ratio < math.inf:
        raise InputError("min_gain_ratio", min_gain_ratio, "must be a finite number of at least 0")
    if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
        raise InputError("patience", patience, "must be a whole number of at least 1")
