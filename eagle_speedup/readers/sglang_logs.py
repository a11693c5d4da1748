"""SGLang server logs: which decode intervals were steady, and what they measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import InputError
from .intervals import Interval, Intervals
from .log_fields import day, number, records, seconds, word
from .reading import Hints, Reading

__all__ = ["MARKER", "draft_tokens", "read_sglang_log"]

MARKER = re.compile(rb"Decode batch|Prefill batch|server_args=|ServerArgs\(")

_ROUNDING = 0.00501  # accept len and accept rate are printed with two decimals
_MIN_SHARE = 0.8
_USUAL_GAP = 10  # seconds between lines of a rank until two of its own tell: longer than any that prints often
_UNSTEADY = "another data-parallel rank was not steady"


@dataclass(frozen=True, slots=True)
class _Decode:
    running: int
    tok_s: float
    accept_length: float | None
    context_tokens: float | None


@dataclass(slots=True)
class _Rank:
    """What the last lines of a scheduler said."""

    line: _Decode | None = None
    disturbed: bool = True
    """Whether a prefill, or nothing at all, came before the next decode line."""
    steady: bool = False
    """Whether ``line`` ended a steady interval."""
    time: int | None = None
    gap: int = _USUAL_GAP
    """Seconds between its last two decode lines with no prefill between them."""
    printer: str = ""
    """The tensor-parallel rank that speaks for it."""
    parallel: bool = False
    """Whether it is a data-parallel one, with requests of its own."""


class _Scan:
    """Walks over the lines in order and keeps the steady decode intervals."""

    def __init__(self, hints: Hints) -> None:
        self.intervals = Intervals()
        self.dropped: Counter[str] = Counter()
        self.rates: Counter[tuple[float, float]] = Counter()
        self.setup: dict[str, str] = {"engine": "sglang"}
        self.date: str | None = None
        self.num_steps: int | None = hints.depth
        self._hinted_depth = hints.depth
        self.topk, self.num_draft_tokens = hints.topk, hints.num_draft_tokens
        self._ranks: dict[str, _Rank] = {}

    @property
    def data_parallel_ranks(self) -> int:
        """How many printed."""
        return sum(rank.parallel for rank in self._ranks.values())

    def line(self, text: str) -> None:
        """One record."""
        self.date = self.date or day(text)
        if "Decode batch" in text:
            self._decode(text)
        elif "Prefill batch" in text:
            rank = self._rank(text)
            rank.disturbed, rank.time = True, seconds(text)
        else:
            self._arguments(text)

    def _decode(self, text: str) -> None:
        rank, line = self._rank(text), _decode(text)
        if line is None:
            self.dropped["fields missing"] += 1
            return
        if _printer(text) != rank.printer:
            return  # says again what the rank's own printer says
        if rank.parallel and rank.time is None:
            # It ran before its first line, and no prefill says since when: what was summed so far may lack it.
            self.dropped[_UNSTEADY] += self.intervals.count
            self.dropped, self.intervals = +self.dropped, Intervals()
        fault = _unsteady(line, rank)
        self._update(rank, line, seconds(text), fault is None)
        rate = number(text, "accept rate")
        if line.accept_length is not None and rate:
            self.rates[line.accept_length, rate] += 1
        if fault is None and line.accept_length is not None and self.num_steps == 0:
            fault = "accept length printed, but depth 0 given"
        if fault is None:
            fault = self._keep(self._together(rank))
        if fault is not None:
            self.dropped[fault] += 1

    @staticmethod
    def _update(rank: _Rank, line: _Decode, time: int | None, steady: bool) -> None:
        if not rank.disturbed and time is not None and rank.time is not None:
            rank.gap = max(1, time - rank.time)
        rank.line, rank.disturbed, rank.steady, rank.time = line, False, steady, time

    def _together(self, rank: _Rank) -> list[_Decode] | None:
        """The last lines of all data-parallel ranks that decode beside ``rank``; None while one of them is unsteady.

        A rank without requests prints nothing: it counts as idle once it has been silent for longer than its own lines,
        and those of ``rank``, are apart.
        """
        lines: list[_Decode] = []
        for other in self._ranks.values():
            if other is not rank and (not (rank.parallel and other.parallel) or _silent(other, rank)):
                continue
            if other.line is None or other.disturbed or not other.steady:
                return None
            lines.append(other.line)
        return lines

    def _keep(self, lines: list[_Decode] | None) -> str | None:
        """Count an interval in; why not, where it is not."""
        if lines is None:
            return _UNSTEADY
        if len({line.accept_length is None for line in lines}) > 1:
            return "only some data-parallel ranks printed an accept length"
        tok_s, batch = sum(line.tok_s for line in lines), sum(line.running for line in lines)
        rounds = sum(line.tok_s / (line.accept_length or 1.0) for line in lines)  # per second
        known = [line.context_tokens * line.running for line in lines if line.context_tokens is not None]
        # Lines come every so many rounds: tokens are in proportion to the accept length, time to tokens / throughput.
        self.intervals.add(
            Interval(
                depth=0 if lines[0].accept_length is None else None,
                batch=batch,
                tokens=tok_s / rounds,
                seconds=1 / rounds,
                rounds=1.0,
                context_tokens=sum(known) / batch if len(known) == len(lines) else None,
            )
        )
        return None

    def _rank(self, text: str) -> _Rank:
        """The scheduler that printed a record; the tensor-parallel ranks of a data-parallel one are one scheduler."""
        name, printer = word(text, r"\b(DP\d{1,5})\b"), _printer(text)
        return self._ranks.setdefault(name or printer, _Rank(printer=printer, parallel=name is not None))

    def _arguments(self, text: str) -> None:
        steps = number(text, "speculative_num_steps")
        if steps:
            if self._hinted_depth not in (None, int(steps)):
                rule = f"contradicts the log's server arguments, which say speculative_num_steps = {steps:g}"
                raise InputError("depth", self._hinted_depth, rule)
            self.num_steps = int(steps) if self.num_steps is None else self.num_steps
            self.topk = max(self.topk, int(number(text, "speculative_eagle_topk") or 1))
            self.num_draft_tokens = (
                self.num_draft_tokens or int(number(text, "speculative_num_draft_tokens") or 0) or None
            )
        parallel = number(text, "tp_size")
        if parallel:
            self.setup["parallelism"] = f"tp{int(parallel)}"


def read_sglang_log(lines: Iterable[bytes], hints: Hints | None = None) -> Reading:
    """Steady decode intervals of an SGLang log.

    An interval counts when the line before it on the same scheduler is a decode line too, with as many running
    requests; the first decode line after a prefill is never used. Data-parallel ranks are summed while all that have
    requests are steady: batch and tok/s are the node's. The draft depth comes from the hints, the server arguments when
    the log holds them, or the ratio of accept length to accept rate.

    Args:
        lines: the log.
        hints: depth and tree shape where the log holds neither arguments nor usable rates.
    """
    hints = hints or Hints()
    scan = _Scan(hints)
    for text in records(lines, MARKER):
        scan.line(text)
    depth, note = scan.num_steps, None
    if scan.rates:
        found, how = _depth_from_rates(scan.rates)
        if depth is None:
            depth, note = found, how
        elif found is not None and found != depth and scan.topk == 1 and scan.num_draft_tokens is None:
            note = f"depth {depth} taken as given, though the log's own figures fit another: {how}"
    intervals = _at_depth(scan.intervals, depth)
    shape = Hints(depth, None, hints.context_tokens, scan.topk, scan.num_draft_tokens, hints.workload)
    points = intervals.points(shape, scan.dropped)
    notes = [note] if note else []
    if scan.data_parallel_ranks > 1:
        notes.append(f"{scan.data_parallel_ranks} data-parallel ranks, summed to the node's batch and tok/s")
    notes += intervals.notes()
    return Reading(points, intervals.count, scan.dropped, tuple(notes), "sglang log", scan.setup, scan.date)


def draft_tokens(rates: Counter[tuple[float, float]]) -> tuple[str, int] | None:
    """What ``accept rate`` means in a log, from pairs (accept len, accept rate): the meaning changed between builds.

    Returns:
        ``("draft tokens", n)`` where rate = length / n, ``("steps", n)`` where rate = (length - 1) / n, whichever
        holds within rounding on at least four fifths of the lines; None where neither or both do.
    """
    total = sum(rates.values())
    found = []
    for meaning, offset in (("draft tokens", 0.0), ("steps", 1.0)):
        votes: Counter[int] = Counter()
        for (length, rate), count in rates.items():
            for n in range(1, 129):
                slack = _ROUNDING * (1 / n + 1)
                if abs((length - offset) / n - rate) <= slack:
                    votes[n] += count
        if votes:
            best, count = min(votes.items(), key=lambda item: (-item[1], item[0]))
            tied = [n for n, c in votes.items() if c == count]
            if count >= _MIN_SHARE * total and len(tied) == 1:
                found.append((meaning, best))
    return found[0] if len(found) == 1 else None


def _depth_from_rates(rates: Counter[tuple[float, float]]) -> tuple[int | None, str]:
    found = draft_tokens(rates)
    if found is None:
        return None, "draft depth not known: accept rate fits neither of its meanings; give depth="
    meaning, n = found
    if meaning == "steps":
        return n, f"depth {n} read from accept rate = (accept len - 1) / {n}"
    return n - 1, f"depth {n - 1} read from accept rate = accept len / {n}, taken for a chain of {n} draft tokens"


def _printer(text: str) -> str:
    return word(text, r"\b(TP\d{1,5})\b") or ""


def _silent(other: _Rank, rank: _Rank) -> bool:
    """Whether a rank printed nothing for so long before ``rank`` did that it must be idle."""
    if other.time is None or rank.time is None:
        return False
    return rank.time - other.time > 2 * max(other.gap, rank.gap) + 1


def _at_depth(intervals: Intervals, depth: int | None) -> Intervals:
    """The same intervals with the depth filled in."""
    sums = intervals.sums
    return Intervals({(depth if d is None else d, batch, group): sums[d, batch, group] for d, batch, group in sums})


def _decode(text: str) -> _Decode | None:
    running, tok_s = number(text, "running-req"), number(text, "gen throughput (token/s)")
    if running is None or tok_s is None:
        return None
    tokens = number(text, "full token")
    tokens = number(text, "token") if tokens is None else tokens
    context = tokens / running if tokens is not None and running > 0 else None
    return _Decode(int(running), tok_s, number(text, "accept len"), context)


def _unsteady(line: _Decode, rank: _Rank) -> str | None:
    if line.running == 0 or line.tok_s <= 0:
        return "idle"
    if line.accept_length is not None and line.accept_length < 1:
        return "accept length below 1"
    if rank.disturbed or rank.line is None:
        return "first line after a prefill"
    if rank.line.running != line.running:
        return "number of running requests changed"
    return None
