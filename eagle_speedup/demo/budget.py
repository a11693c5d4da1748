"""From minutes and this machine's speed to how much of everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .machine import Machine
from .settings import Settings

__all__ = ["Clock", "Plan", "StepBudget", "make_plan", "step_budget"]

_ROUND_COST = 1.25  # mean round of depths 1..5 over `Machine.step_ms`, which is of three rows; for planning only
_ACCEPT_LENGTH = 1.45  # likewise
_EARLY_ACCEPT_LENGTH = 1.2  # likewise, of the checkpoint that is calibrated on
_PROMPT = 150  # tokens of a prompt, to be read before its answer is decoded at all depths
_WRITING_SHARE = 0.1  # of the budget: the most that writing the held-out answers may take
_WRITING_COST = 3.0  # a token written, in a batch, over one that is read
_FEATURE_SLACK = 0.8  # soft targets and storing cost something beside the prefill that was timed
_MEMORY_SHARE = 0.35  # of the free memory above the least: what the features may take


class Clock:
    """Seconds of the run, those before an interruption included."""

    def __init__(self, spent_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._start = now, now() - spent_s

    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._now() - self._start


@dataclass(frozen=True)
class Plan:
    """How much of everything; a value."""

    total_s: float
    """The whole budget."""
    held_out: int
    """Answers to hold out, to validate on and to decode at the end."""
    calibration_answers: int
    """Of these, how many the calibration decodes; 0 without decoding."""
    conversations: int
    """Training conversations to use, from the start of the shipped list."""
    features_s: float
    """Seconds the features may take; what is done by then is used."""
    warm_up_s: float
    """Seconds of training before the calibration."""
    train_until_s: float
    """Elapsed seconds at which training must end."""


def make_plan(
    *,
    minutes: float,
    decode: bool,
    machine: Machine,
    settings: Settings,
    max_new: int,
    lengths: Sequence[int],
    position_bytes: int,
) -> Plan:
    """Deal out the budget.

    Args:
        minutes: of the whole demo.
        decode: whether it calibrates and measures.
        machine: its speeds and free memory.
        settings: the shares.
        max_new: tokens of the longest answer.
        lengths: tokens of every training conversation.
        position_bytes: size of one position's features.
    """
    total, budget, serving, limits = 60 * minutes, settings.budget, settings.serving, settings.held_out
    token_s = max_new * machine.step_ms / 1000
    served_s = token_s * (1 + len(serving.depths) * _ROUND_COST / _ACCEPT_LENGTH) + _PROMPT / machine.positions_s
    calibration_s = token_s * (1 + len(serving.calibration_depths) * _ROUND_COST / _EARLY_ACCEPT_LENGTH)
    written = _WRITING_SHARE * total * machine.positions_s / (_WRITING_COST * max_new)
    served = budget.measurement_share * total / served_s
    held_out = _within(min(written, served) if decode else written, limits.least, limits.most)
    calibration = _within(budget.calibration_share * total / calibration_s, serving.calibration_groups, held_out)
    positions = budget.features_share * total * machine.positions_s * _FEATURE_SLACK
    memory = (machine.memory_gb - settings.machine.least_memory_gb) * 1e9 * _MEMORY_SHARE
    return Plan(
        total_s=total,
        held_out=held_out,
        calibration_answers=calibration if decode else 0,
        conversations=_fitting(lengths, min(positions, memory / position_bytes)),
        features_s=1.5 * budget.features_share * total,
        warm_up_s=budget.warm_up_share * total,
        train_until_s=total - budget.reserve_s - (held_out * served_s if decode else 0.0),
    )


def _within(value: float, least: int, most: int) -> int:
    return min(max(int(value), least), most)


@dataclass(frozen=True)
class StepBudget:
    """Optimiser steps of the main fit."""

    last_step: int
    """Where it ends, the first steps included: a multiple of ``interval``."""
    interval: int
    """Steps between two validations."""


def step_budget(*, done: int, step_s: float, validation_s: float, seconds: float, every_s: float) -> StepBudget:
    """As many steps as fit, with a validation at the very end.

    Args:
        done: steps already done.
        step_s: seconds a step.
        validation_s: seconds a validation.
        seconds: of the fit, validations included.
        every_s: wanted seconds of training between validations.
    """
    interval = max(1, round(min(every_s, max(seconds, 0.0) / 2) / step_s))
    share = interval * step_s / (interval * step_s + validation_s)
    last = done + int(max(seconds, 0.0) * share / step_s)
    # At least two validations beyond what is done, or there is nothing to compare.
    return StepBudget(max(last // interval, done // interval + 2) * interval, interval)


def _fitting(lengths: Sequence[int], positions: float) -> int:
    """How many of the first conversations fit; at least a few."""
    total = 0
    for count, length in enumerate(lengths):
        total += length
        if total > positions:
            return max(count, min(16, len(lengths)))
    return len(lengths)
