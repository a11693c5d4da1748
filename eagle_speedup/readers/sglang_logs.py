"""SGLang server logs: which decode intervals were steady, and what they measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import InputError
from ..throughput import MeasuredPoint
from .intervals import Interval, Intervals
from .log_fields import day, number, records, seconds, word
from .reading import Hints, Reading
from .sglang_rates import Meaning, RateDepths, depths_from_rates, meanings

__all__ = ["MARKER", "read_sglang_log"]

MARKER = re.compile(rb"Decode batch|Prefill batch|server_args=|ServerArgs\(")

_USUAL_GAP = 10  # seconds between lines of a rank until two of its own tell: longer than any that prints often
_UNSTEADY = "another data-parallel rank was not steady"


@dataclass(frozen=True, slots=True)
class _Decode:
    running: int
    tok_s: float
    accept_length: float | None
    context_tokens: float | None
    meanings: frozenset[Meaning] | None
    """What its accept rate can mean; None without one."""


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
    """Walks over the lines of one run in order and keeps the steady decode intervals."""

    def __init__(self, hints: Hints) -> None:
        self.kept: dict[frozenset[Meaning] | None, Intervals] = {}
        """Those that speculate, by what their accept rates can mean: their depth may show at the end only."""
        self.plain = Intervals()
        """Those that do not."""
        self.dropped: Counter[str] = Counter()
        self.decoded = False
        """Whether a decode line was seen."""
        self.setup: dict[str, str] = {}
        """``parallelism`` and ``model``, by the server arguments."""
        self._rates: Counter[tuple[float, float]] = Counter()
        self._hints = hints
        self._num_steps: int | None = hints.depth
        self._speculates = False
        """Whether the server arguments say so."""
        self._topk, self._num_draft_tokens = hints.topk, hints.num_draft_tokens
        self._ranks: dict[str, _Rank] = {}

    @property
    def data_parallel_ranks(self) -> int:
        """How many printed."""
        return sum(rank.parallel for rank in self._ranks.values())

    def line(self, text: str) -> None:
        """A decode or prefill line."""
        if "Decode batch" in text:
            self.decoded = True
            self._decode(text)
        else:
            rank = self._rank(text)
            rank.disturbed, rank.time = True, seconds(text)

    def arguments(self, text: str) -> None:
        """The server's."""
        steps = number(text, "speculative_num_steps")
        algorithm = word(text, r"speculative_algorithm['\"]?\s{0,9}[=:]\s{0,9}['\"]?(\w{1,40})")
        if algorithm is not None and algorithm.lower() not in ("none", "null"):
            self._speculates = True
        if steps:
            if self._hints.depth not in (None, int(steps)):
                rule = f"contradicts the log's server arguments, which say speculative_num_steps = {steps:g}"
                raise InputError("depth", self._hints.depth, rule)
            self._speculates, self._num_steps = True, int(steps)
            self._topk = max(self._topk, int(number(text, "speculative_eagle_topk") or 1))
            nodes = int(number(text, "speculative_num_draft_tokens") or 0) or None
            self._num_draft_tokens = self._num_draft_tokens or nodes
        parallel = number(text, "tp_size")
        if parallel:
            self.setup["parallelism"] = f"tp{int(parallel)}"
        model = word(text, r"\bmodel_path['\"]?\s{0,9}[=:]\s{0,9}['\"]([^'\"]{1,300})['\"]")
        if model:
            self.setup["model"] = model

    def settle(self) -> tuple[Intervals, list[str]]:
        """The intervals at their depth, and what was assumed for it."""
        depths, notes = self._depths()
        out = self.plain
        for fitting, intervals in self.kept.items():
            depth, fault = depths.depth_of(fitting) if depths else (self._num_steps, None)
            if fault is not None:
                self.dropped[fault] += intervals.count
            else:
                out.merge(intervals, depth)
        if self.data_parallel_ranks > 1:
            notes.append(f"{self.data_parallel_ranks} data-parallel ranks, summed to the node's batch and tok/s")
        return out, notes

    def shape(self) -> Hints:
        """What the points of the run share."""
        context, workload = self._hints.context_tokens, self._hints.workload
        return Hints(None, None, context, self._topk, self._num_draft_tokens, workload)

    def _depths(self) -> tuple[RateDepths | None, list[str]]:
        """What the accept rates say of the depth; None where it is known otherwise, and they do not deny it."""
        steps = self._num_steps
        chain = self._topk == 1 and (self._num_draft_tokens is None or steps in (None, self._num_draft_tokens - 1))
        if not self._rates or (steps is not None and not chain):
            return None, []
        found = depths_from_rates(self._rates)
        if steps is None:
            return found, [found.note]
        if len(found.meanings) == 1 and found.meanings[0].depth != steps:
            return None, [f"depth {steps} taken as given, though the log's own figures fit another: {found.note}"]
        if len(found.meanings) > 1:
            return found, [found.note]
        return (found if found.meanings else None), []

    def _decode(self, text: str) -> None:
        rank, line = self._rank(text), _decode(text)
        if line is None:
            self.dropped["fields missing"] += 1
            return
        if _printer(text) != rank.printer:
            return  # says again what the rank's own printer says
        if rank.parallel and rank.time is None:
            # It ran before its first line, and no prefill says since when: what was summed so far may lack it.
            self.dropped[_UNSTEADY] += self.plain.count + sum(intervals.count for intervals in self.kept.values())
            self.dropped, self.kept, self.plain = +self.dropped, {}, Intervals()
        fault = _unsteady(line, rank)
        self._update(rank, line, seconds(text), fault is None)
        rate = number(text, "accept rate")
        if line.accept_length is not None and rate:
            self._rates[line.accept_length, rate] += 1
        if fault is None:
            fault = self._denied(line) or self._keep(self._together(rank))
        if fault is not None:
            self.dropped[fault] += 1

    def _denied(self, line: _Decode) -> str | None:
        """Why a steady line is not of the server that its log or the hints describe; None where it may be."""
        if line.accept_length is not None and self._num_steps == 0:
            return "accept length printed, but depth 0 given"
        if line.accept_length is None and self._speculates:
            return "no accept length printed, though the server arguments say that it speculates"
        return None

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
        interval = Interval(
            depth=0 if lines[0].accept_length is None else None,
            batch=batch,
            tokens=tok_s / rounds,
            seconds=1 / rounds,
            rounds=1.0,
            context_tokens=sum(known) / batch if len(known) == len(lines) else None,
        )
        spoken = [line.meanings for line in lines if line.meanings is not None]
        fitting = frozenset.intersection(*spoken) if spoken else None
        into = self.plain if interval.depth == 0 else self.kept.setdefault(fitting, Intervals())
        into.add(interval)
        return None

    def _rank(self, text: str) -> _Rank:
        """The scheduler that printed a record; the tensor-parallel ranks of a data-parallel one are one scheduler."""
        name, printer = word(text, r"\b(DP\d{1,5})\b"), _printer(text)
        return self._ranks.setdefault(name or printer, _Rank(printer=printer, parallel=name is not None))


def read_sglang_log(lines: Iterable[bytes], hints: Hints | None = None) -> Reading:
    """Steady decode intervals of an SGLang log.

    An interval counts when the line before it on the same scheduler is a decode line too, with as many running
    requests; the first decode line after a prefill is never used. Data-parallel ranks are summed while all that have
    requests are steady: batch and tok/s are the node's. The draft depth comes from the hints, the server arguments when
    the log holds them, or the ratio of accept length to accept rate. Server arguments after decode lines are those of a
    server that was started again: what follows has points of its own.

    Args:
        lines: the log.
        hints: depth and tree shape where the log holds neither arguments nor usable rates.
    """
    hints = hints or Hints()
    date, run = None, _Scan(hints)
    runs: list[_Scan] = []
    for text in records(lines, MARKER):
        date = date or day(text)
        if "Decode batch" in text or "Prefill batch" in text:
            run.line(text)
        elif "speculative_" in text or "tp_size" in text:
            if run.decoded:
                runs.append(run)
            run = _Scan(hints)  # without decode lines: a server that did not come up, or another host of the same one
            run.arguments(text)
    runs.append(run)
    points: list[MeasuredPoint] = []
    dropped: Counter[str] = Counter()
    decoded = sum(run.decoded for run in runs)
    notes = [f"{decoded} runs in the log: the server was started again; each has its own points"] if decoded > 1 else []
    used = 0
    for run in runs:
        intervals, found = run.settle()
        points += intervals.points(run.shape(), run.dropped)
        used += intervals.count
        dropped += run.dropped
        notes += [*found, *intervals.notes()]
    setup = {"engine": "sglang", **_setup(runs)}
    return Reading(tuple(points), used, dropped, tuple(dict.fromkeys(notes)), "sglang log", setup, date)


def _setup(runs: list[_Scan]) -> dict[str, str]:
    """What the server arguments of the runs that decoded say of the setup.

    Raises:
        InputError: they differ: no one node gave these points.
    """
    said: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in run.setup.items():
            if run.decoded or len(runs) == 1:
                said.setdefault(key, {})[value] = None
    for key, values in said.items():
        if len(values) > 1:
            raise InputError(key, ", ".join(values), "differs between the runs in the log: give each a file of its own")
    return {key: next(iter(values)) for key, values in said.items()}


def _printer(text: str) -> str:
    return word(text, r"\b(TP\d{1,5})\b") or ""


def _silent(other: _Rank, rank: _Rank) -> bool:
    """Whether a rank printed nothing for so long before ``rank`` did that it must be idle."""
    if other.time is None or rank.time is None:
        return False
    return rank.time - other.time > 2 * max(other.gap, rank.gap) + 1


def _decode(text: str) -> _Decode | None:
    running, tok_s = number(text, "running-req"), number(text, "gen throughput (token/s)")
    if running is None or tok_s is None:
        return None
    tokens = number(text, "full token")
    tokens = number(text, "token") if tokens is None else tokens
    context = tokens / running if tokens is not None and running > 0 else None
    length, rate = number(text, "accept len"), number(text, "accept rate")
    return _Decode(int(running), tok_s, length, context, meanings(length, rate) if length and rate else None)


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
