"""Configurations as OmegaConf's structured configs, with values changed as by a command line.

A file is read by `strict_yaml` alone, which is safe with YAML from strangers and quick enough for a cold answer;
OmegaConf comes in where configurations are composed, and is imported only then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .calibration import parse_calibration
from .specs import config_path, parse_node, parse_verifier
from .strict_yaml import parse_yaml, read_yaml, suggest

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["compose"]

_PARSE: Mapping[str, Callable[[Mapping[str, Any], Path], object]] = {
    "node": lambda data, folder: parse_node(data),
    "verifier": lambda data, folder: parse_verifier(data),
    "calibration": lambda data, folder: parse_calibration(data, folder).as_config(),
}
_PATH = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[\d+\])*")


def compose(group: str, name_or_path: str | Path, changes: Sequence[str] = ()) -> DictConfig:
    """A configuration as a structured config of `NodeSpec`, `VerifierSpec` or `CalibrationConfig`: typed, read-only.

    Args:
        group: ``node``, ``verifier`` or ``calibration``.
        name_or_path: shipped name or YAML file.
        changes: assignments such as ``prior.noise=0.05`` or ``points[1].depth=4``; the values are plain YAML.

    >>> compose("calibration", "kimi_k2_5_origin", ["points[0].tok_s=95"]).points[0].tok_s
    95.0

    Raises:
        InputError: unknown key (with the nearest valid one), or a value that its file could not hold either.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigIndexError, OmegaConfBaseException

    if not isinstance(group, str) or group not in _PARSE:
        raise InputError("group", group, f"unknown group{suggest(str(group), _PARSE)}")
    if not isinstance(changes, Sequence) or isinstance(changes, str):
        raise InputError("changes", changes, "must be a list of assignments such as 'a.b=value'")
    file = config_path(group, name_or_path)
    config = OmegaConf.create(read_yaml(file))
    for change in changes:
        path, value = _split(change)
        try:
            OmegaConf.update(config, path, value, merge=False)
        except ConfigIndexError as error:
            rule = f"must name one of the {len(error.parent_node or ())} items by its number, from 0"
            raise InputError("set", path, rule) from None
        except (OmegaConfBaseException, TypeError) as error:  # TypeError: a word where a list wants a number
            raise InputError("set", path, _short(error)) from None
        except ValueError:  # a list was given a name, or a number of thousands of digits
            rule = "must name the items of a list by their number, such as points[0]"
            raise InputError("set", path, rule) from None
    # Checked as a file is: OmegaConf itself would turn text into numbers where it can, '92_4' into 924.
    checked = _PARSE[group](OmegaConf.to_container(config), file.parent)  # type: ignore[arg-type]
    result: DictConfig = OmegaConf.structured(checked)
    OmegaConf.set_readonly(result, True)  # as its frozen parts are; change it by ``changes``, so that it is checked
    return result


def _split(change: str) -> tuple[str, Any]:
    if not isinstance(change, str):
        raise InputError("set", change, "must have the form a.b=value")
    path, equals, text = change.partition("=")
    path = path.strip()
    if not equals or not _PATH.fullmatch(path):
        raise InputError("set", change, "must have the form a.b=value")
    try:
        return path, parse_yaml(f"value: {text}".encode(), "set").get("value")
    except InputError as error:
        rule = error.rule if error.field == "value" else "must have a plain YAML value"
        raise InputError("set", change, rule) from None


def _short(error: Exception) -> str:
    return str(getattr(error, "msg", None) or error).splitlines()[0]
