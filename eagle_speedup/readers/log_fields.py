"""Fields of engine log lines, read by name: lines gain, lose and move fields from version to version."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .lines import clean

__all__ = ["day", "number", "numbers_after", "process", "records", "seconds", "word"]

_NUMBER = r"(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
_MAX_CONTINUATIONS = 6
_MAX_RECORD = 8192
_ABSURD = 1e15
_PREFIX = 400  # characters that may name who printed a record

# A line that starts with one of these is a line of its own; anything else is the rest of the line before it, wrapped by
# whoever pasted it. The bare words start one only after a record that is complete as it stands.
_FRESH = re.compile(
    rb"\s*(\x1b|\(\w+[ )]|\[?(INFO|WARN|ERROR|DEBUG|CRITICAL)|\[?\d{4}-\d\d-\d\d|\d\d-\d\d \d\d:|\[\w+/"
    rb"|[\w.-]{1,80}\s{0,40}\||\[[A-Z]\w+ |[{<\"]|Traceback|$)"
)
_BARE = re.compile(rb"\s*(Prefill batch|Decode batch|Engine \d|Avg prompt|SpecDecoding|Speculative metrics)")
_MONTH_DAY = re.compile(r"\b(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_DAY = re.compile(r"(?<![\d-])((?:20\d\d-)?(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))[ T]\d\d:\d\d:\d\d")
_CONTAINER = re.compile(r"\s*(\[\w{1,80}/[\w./-]{1,200}\]|[\w.-]{1,80}\s{0,40}\|)")
_PID = re.compile(r"\((\w{1,80} pid=\d{1,10})\)")
_FIELD: dict[str, re.Pattern[str]] = {}


def records(lines: Iterable[bytes], marker: re.Pattern[bytes]) -> Iterator[str]:
    """Text of every record that holds ``marker``, wrapped lines joined.

    They are joined without a blank, since a wrap may fall inside a number; names below allow for a lost blank.
    """
    record, continuations = b"", 0
    for line in lines:
        full = continuations == _MAX_CONTINUATIONS or len(record) > _MAX_RECORD
        if not record or full or _FRESH.match(line) or (_BARE.match(line) and marker.search(record)):
            if marker.search(record):
                yield clean(record)
            record, continuations = line, 0
        else:
            record, continuations = record + line, continuations + 1
    if marker.search(record):
        yield clean(record)


def number(text: str, name: str) -> float | None:
    """The number after ``name:`` (or ``name=``); None where the field is absent or holds no sensible one."""
    for match in _field(name).finditer(text):
        # A look-behind in the pattern would keep it from skipping ahead to the name.
        before = text[match.start() - 1] if match.start() else " "
        if not (before.isalnum() or before in "_-"):
            value = float(match.group(1))
            return value if abs(value) < _ABSURD else None
    return None


def numbers_after(text: str, name: str) -> list[float]:
    """The comma-separated numbers after ``name:``."""
    match = re.search(_spaced(name) + rf"\s*:\s*({_NUMBER}(?:\s*,\s*{_NUMBER})*)", text)
    return [] if match is None else [float(v) for v in re.findall(_NUMBER, match.group(1))]


def word(text: str, pattern: str) -> str | None:
    """First group of ``pattern`` in the text."""
    match = re.search(pattern, text)
    return None if match is None else match.group(1)


def seconds(text: str) -> int | None:
    """Second of the year of the record's time stamp; None without one. For differences, not for dates."""
    match = _MONTH_DAY.search(text)
    if match is None:
        return None
    month, day, hour, minute, second = map(int, match.groups())
    return ((month * 31 + day) * 24 + hour) * 3600 + minute * 60 + second


def day(text: str) -> str | None:
    """Day of the record's time stamp, ``2025-10-22`` or, where no year is printed, ``10-22``; None without one."""
    return word(text, _DAY.pattern)


def process(text: str) -> str | None:
    """Who printed a record: its container or pod and its process, as far as the prefix names them; None without one."""
    start = text[:_PREFIX]
    container, pid = _CONTAINER.match(start), _PID.search(start)
    names = [match.group(1).rstrip(" |") for match in (container, pid) if match is not None]
    return " ".join(names) or None


def _field(name: str) -> re.Pattern[str]:
    if name not in _FIELD:
        # Never two runs of blanks with nothing between them: a long run would be cut in two in every way.
        _FIELD[name] = re.compile(rf"{_spaced(name)}\s*(?:['\"]\s*)?[:=]\s*{_NUMBER}")
    return _FIELD[name]


def _spaced(name: str) -> str:
    return r"\s*".join(re.escape(part) for part in name.split(" "))
