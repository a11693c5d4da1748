"""Results of benchmark clients: vLLM ``bench serve``, SGLang ``bench_serving`` and ``bench_one_batch``, GuideLLM.

Decode speed is taken from the time per output token, which leaves the first token (prefill and queueing) out, where the
client reports it; from the total throughput over the wall clock otherwise.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..throughput import MeasuredPoint
from .bench_load import (
    accept_length,
    agreed_batch,
    check_token_time,
    counted_tok_s,
    positive,
    served_batch,
    total_tok_s,
)
from .lines import TextPieces, fault_of
from .reading import Contradiction, Hints, Reading

__all__ = ["read_bench_json"]

_MAX_WHOLE = 32 * 1024 * 1024  # a larger document is scanned for its scalars instead of being parsed
_SCALAR = re.compile(rb'"([A-Za-z_0-9]{1,60})"\s*:\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?=\s*[,}\]\s])')
_MARK = re.compile(rb'\n(?=\{)|"benchmarks"\s*:\s*\[|' + _SCALAR.pattern)
_MAX_BROKEN = 1000  # documents that can not be parsed, each of which may be read to its end before that shows
_LONGEST = 256  # bytes that a scalar and its key take at most
_WHOLE = 0.02  # a depth that is off a whole number by more was not one depth
_BESIDE = (
    "write the run into a .yaml file as points: [{depth: .., batch: .., tok_s: .., accept_length: ..}], with the "
    "accept length from the server's log or metrics of the same run"
)
_KNOWN = frozenset(
    [
        "accept_length",
        "acc_length",
        "batch_size",
        "completed",
        "concurrency",
        "duration",
        "input_len",
        "last_gen_throughput",
        "last_ttft",
        "latency",
        "max_concurrency",
        "mean_tpot_ms",
        "median_decode_latency",
        "median_decode_throughput",
        "median_tpot_ms",
        "output_len",
        "output_throughput",
        "spec_decode_acceptance_length",
        "spec_decode_accepted_tokens",
        "spec_decode_draft_tokens",
        "spec_decode_num_drafts",
        "total_input_tokens",
        "total_output_tokens",
    ]
)


def read_bench_json(path: str | Path, hints: Hints | None = None) -> Reading:
    """Points from a result file: one JSON document, JSON lines, or documents one after the other.

    What can not be parsed as a whole (broken off, or above 32 MB) is scanned for the scalars that are needed.

    Raises:
        InputError: unreadable file, or a hint that a result in it denies.
    """
    hints = hints or Hints()
    dropped: Counter[str] = Counter()
    notes: list[str] = []
    points: list[MeasuredPoint] = []
    formats: Counter[str] = Counter()
    date: str | None = None
    for result in _results(Path(path), dropped, notes):
        if not isinstance(result, Mapping):
            dropped["not a result"] += 1
            continue
        date = date or _day(result.get("date"))
        for name, build in _runs(result):
            try:
                point = build(hints, notes)
            except Contradiction as error:
                raise error.of(Path(path).name) from None
            except InputError as error:
                dropped[str(error)] += 1
                continue
            if point is None:
                dropped["no throughput in it"] += 1
                continue
            formats[name] += 1
            points.append(point)
    name = formats.most_common(1)[0][0] if formats else "benchmark result"
    engine = {"vllm": "vllm", "sglang": "sglang"}.get(name.split()[0])
    setup = {"engine": engine} if engine else {}
    return Reading(tuple(points), len(points), dropped, tuple(dict.fromkeys(notes)), name, setup, date)


def _runs(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(format, function of hints and notes that builds the point) for every run in a document."""
    if isinstance(result.get("benchmarks"), list):
        for run in result["benchmarks"]:
            if isinstance(run, Mapping):
                yield "guidellm", lambda hints, notes, run=run: _guidellm(run, hints, notes)
    elif "median_decode_latency" in result or "median_decode_throughput" in result:
        yield "sglang bench_one_batch", lambda hints, notes: _one_batch(result, hints, notes)
    elif "last_gen_throughput" in result or ("latency" in result and "batch_size" in result):
        yield "sglang bench_one_batch_server", lambda hints, notes: _one_batch_server(result, hints, notes)
    else:
        name = "sglang bench_serving" if "accept_length" in result or "sglang" in str(result.get("backend")) else None
        yield name or "vllm bench serve", lambda hints, notes: _serving(result, hints, notes)


def _serving(result: Mapping[str, Any], hints: Hints, notes: list[str]) -> MeasuredPoint | None:
    """vLLM ``bench serve`` and SGLang ``bench_serving``."""
    tpot, total = positive(result, "mean_tpot_ms"), total_tok_s(result)
    if tpot is None and total is None:
        return None
    wall = total or counted_tok_s(result)
    check_token_time("mean_tpot_ms", tpot, 1, wall, "output_throughput")  # the batch itself rests on it
    batch = served_batch(result, hints.batch, tpot, notes)
    length = accept_length(result, notes)
    drafts, drafted = positive(result, "spec_decode_num_drafts"), positive(result, "spec_decode_draft_tokens")
    depth = drafted / drafts if drafts and drafted else None
    drawn = None if depth is None else round(depth)
    if depth is not None and abs(depth - round(depth)) > _WHOLE:
        rule = f"are {depth:.3g} for each of {drafts:g} rounds: the depth varied"
        raise InputError("spec_decode_draft_tokens", drafted, rule)
    if hints.depth and result.get("spec_decode_num_drafts") == 0:
        raise Contradiction("depth", hints.depth, "that no drafts were made")
    if tpot is None:
        notes.append("no time per output token: wall-clock throughput taken, prefill included")
    requests, tokens = positive(result, "completed"), positive(result, "total_input_tokens")
    outputs = positive(result, "total_output_tokens") or 0.0
    context = round((tokens + outputs / 2) / requests) if tokens and requests else None
    return _point(hints, notes, drawn, length, batch, context, per_user=_speed(tpot), total=total)


def _one_batch(result: Mapping[str, Any], hints: Hints, notes: list[str]) -> MeasuredPoint | None:
    batch = agreed_batch(hints.batch, round(positive(result, "batch_size") or hints.batch or 0))
    latency = positive(result, "median_decode_latency")
    if not batch or latency is None:
        return None
    plain = replace(hints, depth=0)  # this program runs the verifier alone
    return _point(plain, notes, None, None, batch, _mean_context(result), total=batch / latency)


def _one_batch_server(result: Mapping[str, Any], hints: Hints, notes: list[str]) -> MeasuredPoint | None:
    batch = agreed_batch(hints.batch, round(positive(result, "batch_size") or hints.batch or 0))
    latency, first = positive(result, "latency"), positive(result, "last_ttft")
    tokens = positive(result, "output_len")
    length = positive(result, "acc_length")  # -1 = not measured
    if batch and latency and first and tokens and latency > first:
        total: float | None = batch * tokens / (latency - first)
    else:
        total = positive(result, "last_gen_throughput") or positive(result, "output_throughput")
        notes.append("no time to first token: the server's own throughput taken")
    return _point(hints, notes, None, length, batch, _mean_context(result), total=total) if batch and total else None


def _guidellm(run: Mapping[str, Any], hints: Hints, notes: list[str]) -> MeasuredPoint | None:
    metrics = run.get("metrics")
    if not isinstance(metrics, Mapping):
        return None
    mean = _successful(metrics, "request_concurrency")
    batch = agreed_batch(hints.batch, round(mean or hints.batch or 0), mean=mean)
    # Its time_per_output_token counts the first token in, its inter_token_latency does not.
    names = ("inter_token_latency_ms", "time_per_output_token_ms")
    name, latency = next(((n, value) for n in names if (value := _successful(metrics, n))), (names[0], None))
    total = _successful(metrics, "output_tokens_per_second")
    if latency is None and total is None:
        return None
    if not batch:
        raise InputError("batch", None, "not known; give batch=")
    prompt, output = (_successful(metrics, f"{n}_token_count") for n in ("prompt", "output"))
    check_token_time(name, latency, batch, total, "output_tokens_per_second")
    context = round(prompt + (output or 0.0) / 2) if prompt else None
    return _point(hints, notes, None, None, batch, context, per_user=_speed(latency), total=total)


def _point(
    hints: Hints,
    notes: list[str],
    depth: int | None,
    length: float | None,
    batch: int,
    context: float | None,
    *,
    per_user: float | None = None,
    total: float | None = None,
) -> MeasuredPoint:
    depth = depth or hints.depth
    if depth is None and length is None:
        asked = "give depth= (0 = no speculation)"
        raise InputError("depth", None, f"not known, and no accept length in the result; {asked}; if it did, {_BESIDE}")
    if depth == 0 and length is not None and length > 1:
        raise Contradiction("depth", 0, f"an accept length of {length:g}")
    if depth and length is None:
        rule = f"not in the result, and without it nothing says how long a round at depth {depth} takes; {_BESIDE}"
        raise InputError("accept_length", None, rule)
    if depth is None:
        notes.append("draft depth not known: the result does not hold it; give depth=")
    tok_s = total if per_user is None else per_user
    return MeasuredPoint(
        depth=depth,
        tok_s=None if tok_s is None else round(tok_s, 4),
        accept_length=None if depth == 0 else length,
        batch=batch,
        context_tokens=context if hints.context_tokens is None else hints.context_tokens,
        per_user=per_user is not None,
        topk=hints.topk if depth else 1,
        num_draft_tokens=hints.num_draft_tokens if depth else None,
        workload=hints.workload,
    )


def _results(path: Path, dropped: Counter[str], notes: list[str]) -> Iterator[Any]:
    """Documents of a file; the scalars of its broken or oversized part at the end."""
    text = _read(path, notes)
    if text is None:
        notes.append("larger than 32 MB: scanned for its scalars only")
        yield from _scan(path, dropped, notes)
        return
    decoder, at, found = json.JSONDecoder(), 0, False
    while at < len(text):
        if text[at].isspace() or text[at] == ",":
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            following = text.find("\n{", at)
            dropped["broken JSON"] += 1
            if following < 0 or dropped["broken JSON"] >= _MAX_BROKEN:
                break
            at = following + 1
            continue
        found = True
        yield from value if isinstance(value, list) else [value]
    if not found and dropped["broken JSON"]:
        notes.append("broken off: scanned for its scalars")
        yield from _scan(path, dropped, notes)


def _read(path: Path, notes: list[str]) -> str | None:
    """The text of a file; None when it is too large to hold."""
    pieces, held = TextPieces(path), bytearray()
    for piece in pieces:
        held += piece
        if len(held) > _MAX_WHOLE:
            return None
    notes += [fault] if (fault := fault_of(pieces)) else []
    return held.decode("utf-8", "replace")


def _scan(path: Path, dropped: Counter[str], notes: list[str]) -> Iterator[dict[str, float]]:
    """First value of each known scalar of every document, found piece by piece; a line that opens one ends the last."""
    found: dict[str, float] = {}
    pieces, rest = TextPieces(path), b""
    for chunk in itertools.chain(pieces, [b""]):
        text = rest + chunk
        end = len(text) - _LONGEST if chunk else len(text)  # what starts later may go on in the next piece
        for match in _MARK.finditer(text):
            if match.start() >= end:
                break
            key = match.group(1)
            if key is not None:
                if (name := key.decode()) in _KNOWN:
                    found.setdefault(name, float(match.group(2)))
            elif match.group().startswith(b"\n"):
                if found:
                    yield found
                found = {}
            else:
                dropped["GuideLLM results that can not be parsed as a whole"] += 1
        rest = text[max(0, end) :]
    notes += [fault] if (fault := fault_of(pieces)) else []
    if found:
        yield found


def _mean_context(result: Mapping[str, Any]) -> float | None:
    prompt = positive(result, "input_len")
    return None if prompt is None else round(prompt + (positive(result, "output_len") or 0.0) / 2)


def _successful(metrics: Mapping[str, Any], name: str) -> float | None:
    entry = metrics.get(name)
    entry = entry.get("successful") if isinstance(entry, Mapping) else None
    return positive(entry, "mean") if isinstance(entry, Mapping) else None


def _day(value: object) -> str | None:
    """ISO day from vLLM's ``20251022-102756``."""
    match = re.match(r"(20\d\d)-?(\d\d)-?(\d\d)(?!\d)", value) if isinstance(value, str) else None
    return None if match is None else "-".join(match.groups())


def _speed(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else 1000.0 / milliseconds
