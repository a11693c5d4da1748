"""The history of validations in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..acceptance import AcceptanceCounts, AcceptanceProfile
from ..errors import InputError
from ..projection import SpeedupProjection
from ..training import Validation

__all__ = ["history_from_state", "history_to_state"]


def history_to_state(history: Sequence[Validation]) -> dict[str, Any]:
    """Counts and steps as Python numbers, strings, lists and tensors, which load under ``weights_only=True``."""
    return {"validations": [_entry(v) for v in history]}


def history_from_state(
    state: Mapping[str, Any], project: Callable[[AcceptanceProfile], SpeedupProjection]
) -> tuple[list[Validation], list[str]]:
    """Rebuild the history, projecting the counts anew.

    Returns:
        (validations, why others could not be projected)
    """
    history, skipped = [], []
    for entry in state["validations"]:
        counts = AcceptanceCounts.from_flat(entry["counts"].cpu().numpy(), entry["ttt_steps"], entry["max_depth"])
        profile = AcceptanceProfile(counts, entry["mode"], entry["level"], entry["coverage_known"])
        try:
            projection = project(profile) if profile.answers else None
        except InputError as error:  # such as a depth that had not been walked then
            skipped.append(f"step {entry['global_step']}: {error}")
            continue
        history.append(Validation(entry["global_step"], entry["epoch"], profile, projection))
    return history, skipped


def _entry(validation: Validation) -> dict[str, Any]:
    profile = validation.profile
    return {
        "global_step": int(validation.global_step),
        "epoch": int(validation.epoch),
        "mode": profile.mode,
        "level": float(profile.level),
        "coverage_known": bool(profile.coverage_known),
        "ttt_steps": profile.ttt_steps,
        "max_depth": profile.max_depth,
        "counts": torch.from_numpy(profile.counts.flat()),
    }
