"""``--set a.b=c``: a calibration with some of its values replaced."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError
from ..throughput import Calibration, compose, load_calibration, load_node, load_verifier
from ..throughput.calibration import parse_calibration
from ..throughput.checks import WHAT_TO_MEASURE
from ..throughput.specs import config_names, config_path
from ..throughput.strict_yaml import plain_data
from .simple_rules import rebased

__all__ = ["calibration_with"]


def calibration_with(name_or_path: str, assignments: Sequence[str]) -> Calibration:
    """A calibration by name or file, with assignments such as ``prior.noise=0.05`` or ``points[1].depth=4`` applied.

    Values are plain YAML. The result is checked as any calibration file is, so an unknown key is refused with the
    nearest valid one; its fingerprint differs wherever a projection would. Simple rules follow the points they were
    made from, see `rebased`.
    """
    if name_or_path in config_names("node"):
        rule = (
            "is a node, and no measurement of it is named; calibrations lists those there are. No figure is invented: "
        )
        raise InputError("calibration", name_or_path, rule + WHAT_TO_MEASURE)
    if not assignments:
        return load_calibration(name_or_path)
    file, before = config_path("calibration", name_or_path), load_calibration(name_or_path)
    changed = plain_data(compose("calibration", file, assignments))
    after = rebased(before, parse_calibration(changed, file.parent))
    _check_setup(before, after)
    return after


def _check_setup(before: Calibration, after: Calibration) -> None:
    """Refuse a node or verifier that was set and does not exist: a file may hold free text, an option is a choice."""
    for field, load in (("node", load_node), ("verifier", load_verifier)):
        name = getattr(after, field)
        if name is not None and name != getattr(before, field):
            load(after.file_of(name) or name)
