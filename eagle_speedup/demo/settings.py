"""The constants of the demo: a typed view of ``configs/demo.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..errors import InputError

__all__ = [
    "BudgetSettings",
    "HeldOutSettings",
    "MachineSettings",
    "ServingSettings",
    "Settings",
    "TrainingSettings",
    "load_settings",
]


@dataclass(frozen=True, kw_only=True)
class BudgetSettings:
    """How the minutes are dealt out."""

    reserve_s: float = MISSING
    """Seconds for what can not be cut: table, plot, closing the log files."""
    features_share: float = MISSING
    """Share of the budget for the verifier's features of the training conversations."""
    warm_up_share: float = MISSING
    """Share for the first training steps, whose checkpoint the calibration is measured on."""
    calibration_share: float = MISSING
    """Share for the calibration of this machine."""
    measurement_share: float = MISSING
    """Share for decoding the held-out answers at the end."""


@dataclass(frozen=True, kw_only=True)
class HeldOutSettings:
    """Answers that are validated and served, never trained on."""

    least: int = MISSING
    """Fewest answers, however small the budget."""
    least_served: int = MISSING
    """Fewest of them that are decoded, even if the time is up."""
    most: int = MISSING
    """Most answers, however large it is."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The main fit."""

    validate_every_s: float = MISSING
    """Seconds of training between two validations."""
    step_growth: float = MISSING
    """Mean time of a step over that of the first ones: the more drafts hit, the more chains run on."""
    min_gain_ratio: float = MISSING
    """Smallest relative gain of projected tok/s that counts as one."""
    patience: int = MISSING
    """Validations in a row without such a gain that stop the training."""


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """What is decoded, for the calibration and at the end."""

    depths: tuple[int, ...] = MISSING
    """Draft depths of the final table."""
    calibration_depths: tuple[int, ...] = MISSING
    """Draft depths that are calibrated, beside plain decoding."""
    calibration_groups: int = MISSING
    """Into how many groups the calibration's answers are split: each gives a point per depth, so that scatter shows."""
    estimators_depth: int = MISSING
    """Draft depth at which the ways to estimate the accept length are compared."""


@dataclass(frozen=True, kw_only=True)
class MachineSettings:
    """When the machine is too small or too busy."""

    low_memory_gb: float = MISSING
    """With less free memory than this the training set is cut."""
    least_memory_gb: float = MISSING
    """With less than this the demo refuses to start."""
    busy_factor: float = MISSING
    """One forward pass this many times slower than the best of three means that another program has our cores."""
    probes: int = MISSING
    """Forward passes of a few rows that are timed for this."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All constants of the demo."""

    budget: BudgetSettings = field(default_factory=BudgetSettings)
    """How the minutes are dealt out."""
    held_out: HeldOutSettings = field(default_factory=HeldOutSettings)
    """Held-out answers."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """The main fit."""
    serving: ServingSettings = field(default_factory=ServingSettings)
    """What is decoded."""
    machine: MachineSettings = field(default_factory=MachineSettings)
    """When the machine is too small or too busy."""
    illustration: str = MISSING
    """Calibration of another node that the accept length is projected on at the end."""


def load_settings(changes: Mapping[str, Any] | None = None) -> Settings:
    """``configs/demo.yaml`` with ``changes`` (nested, as in the file) on top.

    >>> load_settings({"held_out": {"most": 12}}).held_out.most
    12

    Raises:
        InputError: unknown key or wrong type, with the dotted path.
    """
    text = (files("eagle_speedup.configs") / "demo.yaml").read_text(encoding="utf-8")
    try:
        config = OmegaConf.merge(OmegaConf.structured(Settings), OmegaConf.create(text), dict(changes or {}))
        settings = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        rule = str(error.msg or error).splitlines()[0]
        raise InputError(str(error.full_key), "configs/demo.yaml", rule) from None
    assert isinstance(settings, Settings)
    return _checked(settings)


def _checked(settings: Settings) -> Settings:
    budget = settings.budget
    shares = {f.name: getattr(budget, f.name) for f in fields(budget) if f.name.endswith("_share")}
    for name, share in shares.items():
        if not 0 < share < 1:
            raise InputError(f"budget.{name}", share, "must lie in (0, 1)")
    if sum(shares.values()) > 0.9:
        raise InputError("budget", shares, "must leave at least a tenth for training")
    serving = settings.serving
    for name in ("depths", "calibration_depths"):
        depths = getattr(serving, name)
        if not depths or min(depths) < 1 or len(set(depths)) != len(depths):
            raise InputError(f"serving.{name}", depths, "must be different numbers of at least 1")
    held_out = settings.held_out
    if not 2 <= held_out.least_served <= held_out.least <= held_out.most:
        raise InputError("held_out.least", held_out.least, "must lie in [held_out.least_served, held_out.most]")
    return settings
