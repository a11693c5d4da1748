"""Whether what an engine served can be the drafter that was validated."""

from __future__ import annotations

from dataclasses import dataclass

from ..throughput import mismatch_alarm

__all__ = ["ServedCheck", "check_served"]

_ROUNDS = 300  # of one user in the 10 s that an engine's line covers: the least that stands behind a printed rate


@dataclass(frozen=True)
class ServedCheck:
    """First-step acceptance, served against validated."""

    ratio: float
    """Served over validated."""
    alarm: bool
    """Whether they can not be the same drafter on the same kind of text."""
    message: str
    """One sentence with the numbers."""


def check_served(validated: float, served: float) -> ServedCheck:
    """Compare the first-step acceptance that an engine prints with the validated accuracy of the first step.

    Rounds start after misses, that is in hard stretches, so served acceptance is somewhat lower. Where `mismatch_alarm`
    finds more than that can be, the engine runs something else (weights, layers of the taps, vocabulary mapping, chat
    template): a fault to find, not a factor to calibrate with.

    >>> check_served(0.87, 0.036).alarm
    True
    """
    ratio = served / validated if validated > 0 else float("inf") if served > 0 else 1.0
    figures = f"first-step acceptance {served:.3f} served against {validated:.3f} validated (ratio {ratio:.2f})"
    if mismatch_alarm(validated, served, _ROUNDS) is None:
        return ServedCheck(ratio, False, f"{figures}: consistent, as far as the text served may differ")
    if ratio > 1:
        return ServedCheck(ratio, True, f"ALARM: {figures}: served on far easier text, or another drafter")
    advice = "these can not be the same drafter; look for a mismatch of training and serving, do not calibrate with it"
    return ServedCheck(ratio, True, f"ALARM: {figures}: {advice}")
