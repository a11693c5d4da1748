"""vLLM server logs: which intervals were steady, and what they measured."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..throughput import MeasuredPoint
from .intervals import Interval, Intervals
from .log_fields import day, number, numbers_after, records, seconds, word
from .reading import Hints, Reading
from .vllm_servers import Servers

__all__ = ["MARKER", "read_vllm_log"]

MARKER = re.compile(
    rb"Avg\s*generation\s*throughput|SpecDecoding\s*metrics|Speculative\s*metrics|API server version|LLM engine \(v"
    rb"|speculative_config"
)

_USUAL_GAP = 10  # seconds between statistics lines unless configured otherwise
_DOUBLED = "an engine printed twice in one second: two servers in one log?"
_AGREE = 0.05  # printed throughput against the speculation line's own


@dataclass(slots=True)
class _Spec:
    """Speculation counters of an interval."""

    accepted: float = 0.0
    rounds: float = 0.0
    depth: int | None = None
    tok_s: float | None = None
    fault: str | None = None

    def add(self, other: _Spec) -> None:
        self.accepted += other.accepted
        self.rounds += other.rounds
        self.depth = other.depth if self.depth in (None, other.depth) else -1
        if other.tok_s is not None:
            self.tok_s = (self.tok_s or 0.0) + other.tok_s
        self.fault = self.fault or other.fault


@dataclass(slots=True)
class _Group:
    """The records of one second: one statistics line per engine, and speculation lines."""

    time: int | None
    engines: set[str] = field(default_factory=set)
    tok_s: float = 0.0
    prompt_tok_s: float = 0.0
    running: int = 0
    waiting: int = 0
    spec: _Spec | None = None
    spec_lines: int = 0
    fault: str | None = None

    def takes(self, time: int | None, engine: str | None) -> bool:
        """Whether a record belongs here; ``engine`` None = a speculation line."""
        near = self.time == time or (time is not None and self.time is not None and abs(time - self.time) <= 1)
        if not near:
            return False
        return self.spec_lines < max(1, len(self.engines)) if engine is None else engine not in self.engines


class _Scan:
    """Walks over the groups in order and keeps the steady ones."""

    def __init__(self, hints: Hints) -> None:
        self.hints = hints
        self.intervals = Intervals()
        self.dropped: Counter[str] = Counter()
        self.speculates = False
        self.engines = 0
        """Most that printed in one second."""
        self._group: _Group | None = None
        self._previous: _Group | None = None
        self._gap: int | None = None
        self._unpaired = Intervals()

    def statistics(self, text: str) -> None:
        """A line of throughput and request counts."""
        tok_s, running = number(text, "Avg generation throughput"), number(text, "Running")
        if tok_s is None or running is None:
            self.dropped["fields missing"] += 1
            return
        engine = _engine(text)
        group = self._place(seconds(text), engine)
        group.engines.add(engine)
        self.engines = max(self.engines, len(group.engines))
        group.tok_s += tok_s
        group.prompt_tok_s += number(text, "Avg prompt throughput") or 0.0
        group.running += int(running)
        group.waiting += int(number(text, "Waiting") or number(text, "Pending") or 0)

    def speculation(self, text: str) -> None:
        """A line of speculation counters."""
        self.speculates = True
        spec = _speculation(text, self.hints.depth)
        group = self._place(seconds(text), None)
        group.spec_lines += 1
        if group.spec is None:
            group.spec = spec
        else:
            group.spec.add(spec)

    def finish(self) -> None:
        """The end of the file."""
        if self._group is not None:
            self._close(self._group)
            self._group = None

    def _place(self, time: int | None, engine: str | None) -> _Group:
        if self._group is None or not self._group.takes(time, engine):
            doubled = _DOUBLED if self._group is not None and _same_second(self._group, time, engine) else None
            if self._group is not None and doubled:
                self._group.fault = doubled
            self.finish()
            self._group = _Group(time, fault=doubled)
        return self._group

    def _close(self, group: _Group) -> None:
        previous, self._previous = self._previous, group
        gap = _between(previous, group)
        usual, self._gap = self._gap, gap
        fault = group.fault or _unsteady(group, previous, gap, usual) or (group.spec.fault if group.spec else None)
        if fault is None and group.spec is None:
            # Whether this is a baseline or a speculating server's line without its partner shows at the end.
            self._unpaired.add(Interval(0, group.running, group.tok_s, 1.0, group.tok_s))
        elif fault is None:
            fault = self._keep(group)
        if fault is not None:
            self.dropped[fault] += 1

    def _keep(self, group: _Group) -> str | None:
        spec = group.spec
        assert spec is not None
        if spec.depth is None or spec.depth < 1:
            return "number of draft tokens not known"
        if spec.rounds <= 0:
            return "no drafts in the interval"
        if spec.tok_s is not None and abs(spec.tok_s / group.tok_s - 1) > _AGREE:
            return "throughput and speculation lines disagree"
        accept_length = 1 + spec.accepted / spec.rounds
        tokens = group.tok_s
        self.intervals.add(Interval(spec.depth, group.running, tokens, 1.0, tokens / accept_length))
        return None

    def settle_baseline(self, says_it_speculates: bool) -> None:
        """Steady intervals without speculation counters: the baseline, unless the server speculated.

        Args:
            says_it_speculates: whether its header does.
        """
        count = self._unpaired.count
        if self.speculates:
            self.dropped["no speculation line in the same second"] += count
        elif says_it_speculates:
            self.dropped["no speculation counters, though the log's header says that it speculates"] += count
        elif self.hints.depth:
            self.dropped["no speculation counters at the given depth"] += count
        else:
            self.intervals.sums.update(self._unpaired.sums)
        self.dropped = +self.dropped  # a reason that met nothing is none

    def notes(self) -> tuple[str, ...]:
        """What was assumed, once ``settle_baseline`` has run."""
        baseline = "no speculation counters in the log: taken for a server without speculation (depth 0)"
        ranks = f"{self.engines} engines, summed to the node's batch and tok/s"
        return (
            *([ranks] if self.engines > 1 else ()),
            *([baseline] if self.intervals.sums and not self.speculates else ()),
            *self.intervals.notes(),
        )


def read_vllm_log(lines: Iterable[bytes], hints: Hints | None = None) -> Reading:
    """Steady intervals of a vLLM log (V1, or V0 with its cumulative counters).

    An interval counts when the same number of requests ran at both of its ends, none waited, and no prompt was
    processed in it. Accept lengths are ratios of sums, 1 + accepted / rounds, which is what the server prints. The
    engines of one server (data parallelism) are summed: batch and tok/s are the node's. Servers that the prefixes of
    the lines tell apart keep points of their own, and so do the runs of one that was started again.

    Args:
        lines: the log.
        hints: depth where the log does not print per-position rates.
    """
    hints = hints or Hints()
    servers, date = Servers(lambda: _Scan(hints)), None
    for text in records(lines, MARKER):
        date = date or day(text)
        if re.search(r"SpecDecoding|Speculative\s*metrics", text):
            servers.of(text, None).speculation(text)
        elif re.search(r"Avg\s*generation", text):
            servers.of(text, _engine(text)).statistics(text)
        else:
            servers.header(text)
    points: list[MeasuredPoint] = []
    dropped: Counter[str] = Counter()
    for scan, start in zip(servers.scans, servers.starts, strict=True):
        scan.finish()
        scan.settle_baseline(start.speculates)
        points += scan.intervals.points(hints, scan.dropped)
        dropped += scan.dropped
    notes = servers.notes() + tuple(dict.fromkeys(note for scan in servers.scans for note in scan.notes()))
    used = [scan.intervals.count for scan in servers.scans]
    setup = {"engine": "vllm", **servers.setup([count > 0 for count in used])}
    return Reading(tuple(points), sum(used), dropped, notes, "vllm log", setup, date)


def _engine(text: str) -> str:
    return word(text, r"Engine\s*(\d+)") or ""


def _same_second(group: _Group, time: int | None, engine: str | None) -> bool:
    """Whether an engine that a group holds prints again in its very second, which one server never does."""
    return time is not None and time == group.time and engine in group.engines


def _between(earlier: _Group | None, later: _Group) -> int | None:
    """Seconds from one group to the next; None where a time stamp is missing."""
    if earlier is None or earlier.time is None or later.time is None:
        return None
    return later.time - earlier.time


def _unsteady(group: _Group, previous: _Group | None, gap: int | None, usual: int | None) -> str | None:
    """Why an interval is not steady; None when it is."""
    if not group.engines:
        return "speculation line without a throughput line in the same second"
    if group.running == 0 or group.tok_s <= 0:
        return "idle at its end"
    if previous is None or not previous.engines or previous.fault:
        return "start not seen"
    if group.engines != previous.engines or group.running != previous.running:
        return "number of running requests changed"
    if group.waiting or previous.waiting:
        return "requests were waiting"
    if group.prompt_tok_s > 0:
        return "prompts processed in it"
    if gap is not None and gap > 1.5 * max(_USUAL_GAP, usual or 0):
        return "start not seen"
    return None


def _speculation(text: str, hinted_depth: int | None) -> _Spec:
    """Counters of one speculation line, in whichever of the versions' forms it comes."""
    accepted, drafted = number(text, "Accepted"), number(text, "Drafted")
    if accepted is None:
        return _speculation_v0(text)
    rates = numbers_after(text, "Per-position acceptance rate")
    depth = len(rates) or hinted_depth
    mean = number(text, "Mean acceptance length")
    if not drafted or (mean is None and not depth):
        return _Spec(depth=depth, fault="number of draft tokens not known" if drafted else "no drafts in the interval")
    rounds = drafted / depth if depth else accepted / (mean - 1) if mean and mean > 1 else 0.0
    if mean is not None and depth and abs(1 + accepted / rounds - mean) > 0.01 * mean + 0.006:
        return _Spec(depth=depth, fault="number of draft tokens varied within the interval")
    rate = number(text, "Accepted throughput")
    length = 1 + accepted / rounds if rounds else math.nan
    return _Spec(accepted, rounds, depth, rate * length / (length - 1) if rate and length > 1 else None)


def _speculation_v0(text: str) -> _Spec:
    """V0's counters run since the start of the server; accept length = efficiency * (depth + 1)."""
    depth = number(text, "Number of speculative tokens")
    emitted, drafted = number(text, "Number of emitted tokens"), number(text, "Number of draft tokens")
    if not depth or not drafted or emitted is None:
        return _Spec(fault="fields missing")
    rounds = drafted / depth
    return _Spec(emitted - rounds, rounds, int(depth))
