"""YAML from strangers: plain data only, read strictly, every refusal one line with the dotted path.

No tags that build objects, no aliases (a small file can expand to gigabytes), no duplicate keys, no ``${...}``
interpolation (OmegaConf would read the environment for it), no file above 4 MB, no number that reads as another one
(YAML 1.1 takes 010 for 8, 1:30 for 90 and 92_4 for 924; here they are text).
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ..errors import InputError

__all__ = [
    "check_fields",
    "check_keys",
    "get_list",
    "get_number",
    "get_text",
    "is_file",
    "parse_yaml",
    "plain_data",
    "read_yaml",
    "suggest",
    "within",
]

_MAX_BYTES = 4 * 1024 * 1024
_MAX_DEPTH = 20
_LONGEST = 300  # digits of a whole number: one of more may not go into a float
_LARGEST = 10**_LONGEST
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Narrower than YAML 1.2's: what YAML 1.1 takes for text stays text (1e5), since files are saved by its rules.
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(
    r"(?:[-+]?(?:0|[1-9][0-9]*)\.[0-9]*(?:[eE][-+][0-9]+)?|\.[0-9]+(?:[eE][-+][0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
)
_POWER = re.compile(r"[-+]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})[eE][-+]?[0-9]{1,3}")
_LONG = 20  # characters: nobody writes more in place of a power
_NUMBERS = {"tag:yaml.org,2002:int": _INTEGER, "tag:yaml.org,2002:float": _FLOAT}
T = TypeVar("T")


class _Loader(_Base):
    """Safe loader that keeps dates and odd numbers as text and refuses duplicate keys."""


def _mapping(loader: Any, node: Any) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, (str, int, float)) or isinstance(key, bool):
            raise InputError("key", key, "must be text")
        if key in out:
            raise InputError(str(key), "...", "appears twice")
        out[key] = loader.construct_object(value_node, deep=True)
    return out


def _number(loader: Any, node: Any) -> int | float:
    text = loader.construct_scalar(node)
    if not _NUMBERS[node.tag].match(text):  # tagged by hand: !!int 92_4
        raise InputError("value", text, "must be a number in plain decimal digits")
    if _INTEGER.match(text) and len(text) > _LONGEST:
        raise InputError("value", text, "is too large a number")
    number: int | float = _BUILD[node.tag](loader, node)
    return number


_BUILD = {tag: _Base.yaml_constructors[tag] for tag in _NUMBERS}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in _NUMBERS]
    for first, rules in _Base.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
    _Loader.add_constructor(_tag, _number)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(node))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; InputError for anything else, in one line."""
    try:
        with path.open("rb") as handle:
            raw = handle.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError("file", str(path), error.strerror or "cannot be read") from None
    except ValueError:  # a NUL, or half of a surrogate pair
        raise InputError("file", str(path), "can not be the name of a file") from None
    if len(raw) > _MAX_BYTES:
        raise InputError("file", str(path), "is larger than 4 MB, which no configuration needs")
    return parse_yaml(raw, str(path))


def is_file(path: Path) -> bool:
    """Whether a file is there; False also for what can not be a file's name (too long, or with a NUL in it)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def parse_yaml(raw: bytes, name: str) -> dict[str, Any]:
    """The mapping in YAML text called ``name`` in messages."""
    try:
        text = raw.decode("utf-8")
        depth = 0
        for event in yaml.parse(text, Loader=_Base):
            if isinstance(event, yaml.AliasEvent):
                raise InputError("file", name, "holds a YAML alias (*name), which is not accepted")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise InputError("file", name, f"is nested deeper than {_MAX_DEPTH} levels")
        data = yaml.load(text, Loader=_Loader)
    except UnicodeDecodeError:
        raise InputError("file", name, "is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise InputError("file", name, f"is not plain YAML ({_short(error)})") from None
    except KeyError as error:  # !!bool maybe
        raise InputError("file", name, f"is not plain YAML ({error} does not fit its tag)") from None
    if not isinstance(data, dict):
        raise InputError("file", name, "must hold a mapping at the top")
    _refuse_interpolation(data, "")
    return data


def plain_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of an OmegaConf config or another mapping, under the rules of a file.

    An interpolation is not resolved but refused: what it reads (the environment?) is the caller's to decide, by
    `OmegaConf.resolve`.
    """
    plain = _plain(data, "", 0)
    if not isinstance(plain, dict):
        raise InputError("config", plain, "must be a mapping")
    _refuse_interpolation(plain, "")
    return plain


def _plain(value: Any, path: str, depth: int) -> Any:
    """Mappings and sequences as dicts and lists, OmegaConf's at any depth among them."""
    if depth > _MAX_DEPTH:
        raise InputError(path, "...", f"is nested deeper than {_MAX_DEPTH} levels")
    omegaconf = sys.modules.get("omegaconf")  # not imported here: a tenth of a second, which plain data can do without
    if omegaconf is not None and omegaconf.OmegaConf.is_config(value):
        value = omegaconf.OmegaConf.to_container(value, resolve=False)
        for at, text in _texts(value, path):
            if text == "???":  # in a config of OmegaConf, a value that is still to be given
                raise InputError(at, None, "is required")
    if isinstance(value, Mapping):
        return {key: _plain(item, _join(path, key), depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise InputError(path, f"2^{value.bit_length() - 1} or more", "is too large a number")
    return value


def check_fields(data: object, path: str, layout: type) -> Mapping[str, Any]:
    """``data`` if it is a mapping with the fields of the dataclass ``layout``: those without a default are required."""
    known = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(layout)}
    return check_keys(data, path, known, [name for name, required in known.items() if required])


def check_keys(data: object, path: str, known: Collection[str], required: Collection[str] = ()) -> Mapping[str, Any]:
    """``data`` if it is a mapping with only ``known`` keys and all ``required`` ones."""
    if not isinstance(data, Mapping):
        raise InputError(path, data, "must be a mapping")
    for key in data:
        if key not in known:
            raise InputError(_join(path, key), data[key], f"unknown key{suggest(str(key), known)}")
    for key in required:
        if data.get(key) is None:
            raise InputError(_join(path, key), None, "is required")
    return data


def suggest(word: str, known: Collection[str]) -> str:
    """``'; did you mean ...?'``, or the choices when nothing is near."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; choose from {', '.join(sorted(known)[:12])}" if known else ""


def get_text(data: Mapping[str, Any], path: str, key: str) -> str | None:
    """Text or null at ``key``."""
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(_join(path, key), value, "must be text or null")
    return value


def get_number(data: Mapping[str, Any], path: str, key: str) -> float | None:
    """A finite number or null at ``key``."""
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        rule = _helped("must be a finite number or null", value)
        raise InputError(_join(path, key), value, rule)
    return float(value)


def get_list(data: Mapping[str, Any], path: str, key: str, build: Callable[[Any, str], T]) -> tuple[T, ...]:
    """Every item of the list at ``key`` through ``build(item, path)``; a missing list is empty."""
    value = data.get(key)
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise InputError(_join(path, key), value, "must be a list")
    return tuple(build(item, f"{_join(path, key)}[{i}]") for i, item in enumerate(value))


def within(path: str, build: Callable[[], T]) -> T:
    """``build()``, with ``path`` put before the field of an InputError it raises."""
    try:
        return build()
    except InputError as error:
        raise InputError(_join(path, error.field), error.value, _helped(error.rule, error.value)) from None


def _helped(rule: str, value: object) -> str:
    """The rule of a number, with the way to write it where YAML takes ``1e-2`` for text; a commit may look like it."""
    if "number" not in rule or "rather than" in rule or not isinstance(value, str) or not _POWER.fullmatch(value):
        return rule
    from decimal import Decimal  # here alone, and a refusal can wait for it

    plain = format(Decimal(value), "f")
    return f"{rule} (write {plain} rather than {value})" if len(plain) <= _LONG else rule


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _refuse_interpolation(value: object, path: str) -> None:
    for at, text in _texts(value, path):
        if "${" in text:
            raise InputError(at, text, "interpolation is not accepted, write the value itself")


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    """All texts in plain data with their dotted paths, those of keys included."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key, _join(path, "key"))
            yield from _texts(item, _join(path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _texts(item, f"{path}[{i}]")


def _short(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or type(error).__name__
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)
