"""``--set a.b=c``: a calibration with some of its values replaced."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..throughput import Calibration, load_calibration, load_node, load_verifier
from ..throughput.calibration import parse_calibration
from ..throughput.checks import WHAT_TO_MEASURE
from ..throughput.specs import config_names, config_path
from ..throughput.strict_yaml import parse_yaml, read_yaml
from .simple_rules import rebased

__all__ = ["calibration_with"]

_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_PATH = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[\d+\])*")


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
    data = read_yaml(file)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not _PATH.fullmatch(path.strip()):
            raise InputError("set", assignment, "must have the form a.b=value")
        _assign(data, path.strip(), _value(assignment, text))
    after = rebased(before, parse_calibration(data, file.parent))
    _check_setup(before, after)
    return after


def _check_setup(before: Calibration, after: Calibration) -> None:
    """Refuse a node or verifier that was set and does not exist: a file may hold free text, an option is a choice."""
    for field, load in (("node", load_node), ("verifier", load_verifier)):
        name = getattr(after, field)
        if name is not None and name != getattr(before, field):
            load(after.file_of(name) or name)


def _value(assignment: str, text: str) -> Any:
    try:
        return parse_yaml(f"value: {text}".encode(), "set").get("value")
    except InputError as error:
        rule = error.rule if error.field == "value" else "must have a plain YAML value"
        raise InputError("set", assignment, rule) from None


def _assign(data: dict[str, Any], path: str, value: Any) -> None:
    parts: list[str | int] = [int(index) if index else name for name, index in _PART.findall(path)]
    here: Any = data
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if isinstance(here, list):
            part = int(part) if isinstance(part, str) and part.isdigit() else part
            if not isinstance(part, int) or part >= len(here):
                raise InputError("set", path, f"must name one of the {len(here)} items by its number, from 0")
        elif not isinstance(here, dict):
            raise InputError("set", path, f"{'.'.join(map(str, parts[:position]))} holds a value, not keys")
        if last:
            here[part] = value
        elif isinstance(here, dict):
            if here.get(part) is None:
                here[part] = {}
            here = here[part]
        else:
            here = here[part]
