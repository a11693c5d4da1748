"""The exact names and values that are logged at every validation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..acceptance import AcceptanceProfile
from ..estimate import Estimate
from ..projection import SpeedupProjection

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ["HEADLINE", "logged_values", "row_step", "zero_values"]

#: Logged with ``_lo`` and ``_hi``.
HEADLINE = ("accept_length", "tok_s", "ratio")


def logged_values(
    prefix: str, profile: AcceptanceProfile, projection: SpeedupProjection, final: Estimate | None
) -> dict[str, float]:
    """Everything one validation logs, under ``prefix/``; ``final``: tok/s at the end of the budget, if known."""
    values: dict[str, float] = {}
    for key in HEADLINE:
        values.update(_with_band(key, getattr(projection, key)))
    for kind in ("full_acc", "cond_acc", "step_acc"):
        values.update({f"{kind}_{k}": value for k, value in enumerate(getattr(profile, kind))})
    values["breakeven_accept_length"] = projection.breakeven.value
    values["best_depth"] = float(projection.best_depth)
    coverage = profile.draft_vocab_coverage
    if coverage is not None:
        values["draft_vocab_coverage"] = coverage
    if profile.off_policy_rate is not None:
        values["off_policy_rate"] = profile.off_policy_rate
    values["tokens"] = float(profile.tokens)
    values["answers"] = float(profile.answers)
    if final is not None:
        values.update(_with_band("tok_s_final", final))
    return {f"{prefix}/{key}": value for key, value in values.items()}


def zero_values(prefix: str, usual: Iterable[str]) -> dict[str, float]:
    """What a validation without answers logs: 0.0 for the headline and every other key this run has logged so far.

    A monitored key must never be missing, and NaN would make Lightning's EarlyStopping stop; no real accept length,
    tok/s or ratio is 0.
    """
    headline = [f"{prefix}/{key}{end}" for key in HEADLINE for end in ("", "_lo", "_hi")]
    return dict.fromkeys([*headline, f"{prefix}/tokens", f"{prefix}/answers", *usual], 0.0)


def _with_band(key: str, estimate: Estimate) -> dict[str, float]:
    return {key: estimate.value, f"{key}_lo": estimate.lo, f"{key}_hi": estimate.hi}


def row_step(trainer: Trainer) -> int:
    """The step under which Lightning logs this validation's scalars, so that rows logged beside them can be merged."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
