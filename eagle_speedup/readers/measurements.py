"""Measured points from a file of any known format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..errors import InputError
from . import prometheus, sglang_logs, vllm_logs
from .bench_json import read_bench_json
from .lines import fault_of, head, stream_lines
from .reading import Contradiction, Hints, Reading

__all__ = ["FORMATS", "read_measurements", "sniff"]

FORMATS = ("vllm-log", "sglang-log", "prometheus", "bench-json")
"""Formats, as they can be named."""


_CONTEXT_ROOM = 2.0


def read_measurements(path: str | Path, hints: Hints | None = None, *, format: str | None = None) -> Reading:
    """Points from an engine's log, its metrics, or a benchmark's result.

    Args:
        path: the file; of any size.
        hints: what the file does not say.
        format: one of ``FORMATS``; None = told by the content.

    Raises:
        InputError: unreadable, of no known format, or in contradiction to the hints.
    """
    hints = hints or Hints()
    kind = format or sniff(path)
    if kind == "bench-json":
        return _agreeing(read_bench_json(path, hints), hints, path)
    readers = {
        "vllm-log": vllm_logs.read_vllm_log,
        "sglang-log": sglang_logs.read_sglang_log,
        "prometheus": prometheus.read_prometheus,
    }
    if kind not in readers:
        raise InputError("format", kind, f"must be one of {', '.join(FORMATS)}")
    lines = stream_lines(path)
    try:
        reading = readers[kind](lines, hints)
    except Contradiction as error:
        raise error.of(Path(path).name) from None
    fault = fault_of(lines)
    if fault is not None:
        reading = replace(reading, notes=(*reading.notes, fault))
    return _agreeing(reading, hints, path)


def _agreeing(reading: Reading, hints: Hints, path: str | Path) -> Reading:
    """The reading, if what it found agrees with what was said of the file: hints add to a file, they correct none."""
    for name, hinted, found in (
        ("depth", hints.depth, {p.depth for p in reading.points if p.depth is not None}),
        ("batch", hints.batch, {p.batch for p in reading.points}),
    ):
        if hinted is not None and found - {hinted}:
            raise Contradiction(name, hinted, ", ".join(map(str, sorted(found))), Path(path).name)
    contexts = [p.context_tokens for p in reading.points if p.context_tokens is not None]
    if hints.context_tokens is not None and contexts:
        # A hint is a round figure of what grows while it is measured: only another order is a contradiction.
        least, most = min(contexts) / _CONTEXT_ROOM, max(contexts) * _CONTEXT_ROOM
        if not least <= hints.context_tokens <= most:
            says = f"{min(contexts):g}" if min(contexts) == max(contexts) else f"{min(contexts):g} to {max(contexts):g}"
            raise Contradiction("context", hints.context_tokens, f"{says} tokens", Path(path).name)
    return reading


def sniff(path: str | Path) -> str:
    """Which of ``FORMATS`` a file is in, by its first line that can tell.

    Raises:
        InputError: unreadable, or no such line.
    """
    start = head(path)
    text = start.lstrip()
    is_json = text[:1] == b"{" or (text[:1] == b"[" and text[1:].lstrip()[:1] == b"{")
    if is_json and not vllm_logs.MARKER.search(start) and not sglang_logs.MARKER.search(start):
        return "bench-json"
    for line in stream_lines(path):
        if prometheus.MARKER.search(line):
            return "prometheus"
        if sglang_logs.MARKER.search(line):
            return "sglang-log"
        if vllm_logs.MARKER.search(line):
            return "vllm-log"
    what = "is empty" if not start else "is not text" if b"\0" in start else "holds no line of a known format"
    raise InputError("file", str(path), f"{what} (known: {', '.join(FORMATS)})")
