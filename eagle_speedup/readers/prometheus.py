"""Prometheus text of vLLM and SGLang: one scrape, or several one after the other in a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..throughput import MeasuredPoint
from .lines import clean
from .reading import Contradiction, Hints, Reading

__all__ = ["MARKER", "read_prometheus"]

MARKER = re.compile(rb"^(# (HELP|TYPE) )?(vllm|sglang):", re.MULTILINE)

_SAMPLE = re.compile(r"^((?:vllm|sglang):[A-Za-z0-9_:]+)(\{.*\})?\s+(\S+)")
_GAUGES = ("_running", "running_reqs", "gen_throughput", "spec_accept_length", "num_used_tokens")
_MAX_SERIES = 20_000
_COPIES = re.compile(r'\b(?:tp|pp|moe_ep)_rank="[^"]*",?')
_POSITION = re.compile(r'position="(\d{1,3})"')


@dataclass(slots=True)
class _Series:
    """One series (a name with its labels): first and last value seen."""

    first: float
    last: float
    seen: int = 1


@dataclass(slots=True)
class _Scrapes:
    series: dict[tuple[str, str], _Series] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, line: bytes) -> None:
        """Read one line; comments and foreign metrics are passed over."""
        if not line.startswith((b"vllm:", b"sglang:")) or b"_bucket{" in line:
            return
        match = _SAMPLE.match(clean(line))
        value = _value(match.group(3)) if match else None
        if match is None or value is None:
            self.dropped["not a sample"] += 1
            return
        key = (match.group(1).removesuffix("_total"), match.group(2) or "")
        known = self.series.get(key)
        if known is None and len(self.series) >= _MAX_SERIES:
            self.dropped["more series than any server has"] += 1
        elif known is None:
            self.series[key] = _Series(value, value)
        elif value < known.last and not key[0].endswith(_GAUGES):
            self.dropped["counter went back (restart)"] += 1
            self.series[key] = _Series(value, value)
        else:
            known.last, known.seen = value, known.seen + 1

    @property
    def times(self) -> int:
        """Scrapes in the file."""
        return max((s.seen for s in self.series.values()), default=0)

    def counter(self, *names: str) -> float | None:
        """Sum over engines of the first of the names that exists: its growth, or its value in a single scrape."""
        found = self._named(names)
        return sum(s.last - s.first if self.times > 1 else s.last for _, s in found) if found else None

    def gauge(self, name: str) -> float | None:
        """Last value, summed over engines; None where it is missing."""
        found = self.gauges(name)
        return sum(values[0] for values in found.values()) if found else None

    def gauges(self, name: str) -> dict[str, list[float]]:
        """Last values by data-parallel rank (the labels that tell ranks apart); the first is the rank's own.

        All tensor- and pipeline-parallel schedulers of a rank may export the same figures: they are its copies.
        """
        found: dict[str, list[float]] = {}
        for labels, series in sorted(self._named((name,)), key=lambda item: item[0]):
            found.setdefault(_COPIES.sub("", labels), []).append(series.last)
        return found

    def has(self, name: str) -> bool:
        """Whether a metric is exported, be it 0."""
        return bool(self._named((name,)))

    def speaks_of(self, prefix: str) -> bool:
        """Whether any metric of that prefix is not 0; ``_created`` ones, which hold a time, do not count."""
        positive = (name for (name, _), series in self.series.items() if series.last > 0)
        return any(name.startswith(prefix) and not name.endswith("_created") for name in positive)

    def positions(self, name: str) -> int:
        """Number of draft positions that a per-position counter knows."""
        found = [_POSITION.search(labels) for labels, _ in self._named((name,))]
        return max((int(m.group(1)) + 1 for m in found if m), default=0)

    def _named(self, names: tuple[str, ...]) -> list[tuple[str, _Series]]:
        for name in names:
            found = [(labels, s) for (n, labels), s in self.series.items() if n == name]
            if found:
                return found
        return []


def read_prometheus(lines: Iterable[bytes], hints: Hints | None = None) -> Reading:
    """The point that the metrics of a vLLM or SGLang server describe.

    vLLM: accept length = 1 + accepted / drafts; round time = mean inter-token latency, which the server takes per
    round. Counters since the server's start hold warm-up and idle time, so two scrapes around a steady load in one file
    (``cat before after``) are better than one. SGLang: its gauges. Engines and data-parallel ranks are summed: batch
    and tok/s are the node's.

    Args:
        lines: text of one or several scrapes.
        hints: ``batch`` where the gauge of running requests is 0 at the scrape, ``depth`` for SGLang.
    """
    hints = hints or Hints()
    scrapes = _Scrapes()
    for line in lines:
        scrapes.add(line)
    if any(name.startswith("sglang:") for name, _ in scrapes.series):
        return _sglang(scrapes, hints)
    return _vllm(scrapes, hints)


def _vllm(scrapes: _Scrapes, hints: Hints) -> Reading:
    notes = [_one_scrape()] if scrapes.times == 1 else []
    drafting = _drafting(scrapes, hints, notes)
    if isinstance(drafting, str):
        return _nothing(scrapes, "vllm", drafting)
    depth, length = drafting
    latency = ("inter_token_latency_seconds", "time_per_output_token_seconds")
    total = scrapes.counter(*(f"vllm:{n}_sum" for n in latency))
    count = scrapes.counter(*(f"vllm:{n}_count" for n in latency))
    batch = _batch(hints, scrapes.gauge("vllm:num_requests_running"), notes)
    if not total or not count:
        return _nothing(scrapes, "vllm", "no inter-token latency")
    if not batch:
        return _nothing(scrapes, "vllm", "running requests not known at the scrape; give batch=")
    round_ms = 1000 * total / count
    point = MeasuredPoint(
        depth=depth,
        tok_s=None if depth and length is None else round(1000 * batch * (length or 1.0) / round_ms, 3),
        accept_length=None if length is None else round(length, 4),
        batch=batch,
        context_tokens=hints.context_tokens,
        step_ms=round(round_ms, 4),
        workload=hints.workload,
    )
    notes += _summed(len(scrapes.gauges("vllm:num_requests_running")), "engines")
    return Reading((point,), 1, scrapes.dropped, tuple(notes), "vllm metrics", {"engine": "vllm"})


def _drafting(scrapes: _Scrapes, hints: Hints, notes: list[str]) -> tuple[int | None, float | None] | str:
    """Depth and accept length of a vLLM server; a sentence where its counters do not tell."""
    drafts, accepted = (scrapes.counter(f"vllm:spec_decode_num_{n}") for n in ("drafts", "accepted_tokens"))
    drafted = scrapes.counter("vllm:spec_decode_num_draft_tokens")
    if drafts:
        per_round = (drafted or 0.0) / drafts
        nearest = round(per_round)
        counted = nearest if abs(per_round - nearest) <= 0.02 * nearest else None
        positions = scrapes.positions("vllm:spec_decode_num_accepted_tokens_per_pos")
        depth = positions or counted or hints.depth or nearest
        if drafted and abs(per_round - depth) > 0.02 * depth:
            return "number of draft tokens varied between rounds"
        return depth, 1 + (accepted or 0.0) / drafts
    if drafts is None and scrapes.speaks_of("vllm:spec_decode_"):
        # Older servers count tokens only. Emitted tokens over rounds would do, but nothing says how many drafts a round
        # had, nor whether their time per output token is one of a token or of a round.
        return "it speculates, but does not count its rounds (vllm:spec_decode_num_drafts): give its log instead"
    if drafts is not None or scrapes.has("vllm:spec_decode_num_draft_tokens"):
        if hints.depth != 0:
            return "no drafts counted; give depth=0 if it decoded without speculation"
        notes.append("the speculation counters count no drafts: decoding without speculation (depth 0), as given")
    elif hints.depth is None:
        notes.append("no speculation counters: taken for a server without speculation (depth 0)")
        return 0, None
    elif hints.depth:
        return f"no speculation counters (vllm:spec_decode_...), which a server at depth {hints.depth} would export"
    return hints.depth, None


def _sglang(scrapes: _Scrapes, hints: Hints) -> Reading:
    ranks = scrapes.gauges("sglang:num_running_reqs")
    if any("dp_rank=" not in labels and len(set(values)) > 1 for labels, values in ranks.items()):
        return _nothing(scrapes, "sglang", "ranks differ, and no dp_rank label says which of them share their requests")
    length = _accept_length(scrapes)
    notes = [_one_scrape()]
    batch = _batch(hints, scrapes.gauge("sglang:num_running_reqs"), notes)
    tok_s = scrapes.gauge("sglang:gen_throughput")
    if not tok_s:
        return _nothing(scrapes, "sglang", "no generation throughput at the scrape")
    if not batch:
        return _nothing(scrapes, "sglang", "running requests not known at the scrape; give batch=")
    depth = hints.depth
    if length is None and depth is None and scrapes.speaks_of("sglang:spec_"):
        return _nothing(scrapes, "sglang", "it speculates, but exports no accept length beside its throughput")
    if length is None and depth is None:
        depth = 0
        notes.append("no accept length: taken for a server without speculation (depth 0)")
    if length is not None and depth is None:
        notes.append("draft depth not known: the metrics do not hold it; give depth=")
    if depth and length is None and scrapes.gauges("sglang:spec_accept_length"):
        return _nothing(scrapes, "sglang", "the accept length at the scrape is 0, though a depth is given")
    if length is not None and length > 1 and depth == 0:
        raise Contradiction("depth", 0, f"an accept length of {length:g}")
    used = scrapes.gauge("sglang:num_used_tokens")
    point = MeasuredPoint(
        depth=depth,
        tok_s=round(tok_s, 3),
        accept_length=None if not depth and depth is not None else length,
        batch=batch,
        context_tokens=hints.context_tokens or (round(used / batch) if used else None),
        topk=hints.topk,
        num_draft_tokens=hints.num_draft_tokens,
        workload=hints.workload,
    )
    notes += _summed(len(ranks), "data-parallel ranks")
    return Reading((point,), 1, scrapes.dropped, tuple(notes), "sglang metrics", {"engine": "sglang"})


def _accept_length(scrapes: _Scrapes) -> float | None:
    """Tokens over rounds of all ranks; a rank that generates nothing, whose gauge is 0 or stale, does not count."""
    lengths, speeds = scrapes.gauges("sglang:spec_accept_length"), scrapes.gauges("sglang:gen_throughput")
    busy = [(speeds.get(rank, [0.0])[0], values[0]) for rank, values in lengths.items() if values[0] > 0]
    tokens = sum(speed for speed, _ in busy)
    return tokens / sum(speed / length for speed, length in busy) if tokens > 0 else None


def _summed(count: int, what: str) -> list[str]:
    return [f"{count} {what}, summed to the node's batch and tok/s"] if count > 1 else []


def _batch(hints: Hints, running: float | None, notes: list[str]) -> int:
    """Requests decoded together: as given, since the gauge shows one moment; a note where the two differ."""
    counted = round(running or 0)
    if hints.batch and counted and hints.batch != counted:
        notes.append(f"batch {hints.batch} taken as given, though {counted} requests ran at the scrape")
    return hints.batch or counted


def _nothing(scrapes: _Scrapes, engine: str, reason: str) -> Reading:
    return Reading((), 0, scrapes.dropped + Counter({reason: 1}), (), f"{engine} metrics", {"engine": engine})


def _one_scrape() -> str:
    return "a single scrape: counters hold everything since the server's start, gauges one moment"


def _value(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None
