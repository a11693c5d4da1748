"""Per-step accuracies in the logs of drafter trainers, with what each trainer means by them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import InputError
from .lines import clean, fault_of

__all__ = ["TRAINERS", "Trainer", "TrainerReading", "read_trainer_log"]


@dataclass(frozen=True, slots=True)
class Trainer:
    """How a trainer prints accuracy."""

    name: str
    """Of the trainer."""
    pattern: str
    """Regular expression of a key; its group ``k`` is the step."""
    kind: str
    """``joint``, ``marginal`` or ``conditional``."""
    targets: str
    """Targets outside the draft vocabulary: ``miss``, ``invisible`` (the restricted argmax takes their place), or
    ``left out`` of numerator and denominator. All but ``miss`` overstate the accuracy."""
    caveats: tuple[str, ...] = ()
    """What else a reader must know."""


_BATCH_MEANS = "a mean of batch means: batches of unlike size weigh alike"

TRAINERS = (
    Trainer(
        "speculators",
        r"(?:val/)?full_acc_(?P<k>\d{1,9})(?:_epoch)?",
        "joint",
        "invisible",
        ("anchors in the prompt count as misses at later steps, so a perfect drafter stays below 1",),
    ),
    Trainer("SpecForge", r"eval/per_position_acc/(?P<k>\d{1,9})", "marginal", "miss"),
    Trainer("TorchSpec", r"eval/acc_(?P<k>\d{1,9})", "marginal", "left out", (_BATCH_MEANS,)),
    Trainer(
        "Model-Optimizer",
        r"train_acc/parallel_0_step_(?P<k>\d{1,9})",
        "marginal",
        "invisible",
        ("training batches of one rank, not validation data", _BATCH_MEANS),
    ),
    Trainer("EAGLE-3", r"test/epochacc_(?P<k>\d{1,9})", "marginal", "miss", (_BATCH_MEANS,)),
    Trainer("EAGLE-1/2", r"test/(?P<k>\d{1,9})_acc", "joint", "miss"),
    Trainer("eagle-speedup", r"speedup/full_acc_(?P<k>\d{1,9})", "joint", "miss"),
)
"""Trainers that are known. The last complete set of steps in a log counts."""

_HIDDEN = "targets outside the draft vocabulary are {}: the accuracy is overstated, served speed will be lower"
_NUMBER = r"(?P<value>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|(?i:[-+]?nan|[-+]?inf|null|none)(?!\w))"
# Never two runs of blanks with nothing between them: a long run would be cut in two in every way.
_KEYS = [(t, re.compile(rf"(?<![\w/]){t.pattern}['\"]?(?:\s*[:=]\s*|\s+)(?:tensor\()?{_NUMBER}")) for t in TRAINERS]
_NAMES = [(t, re.compile(t.pattern)) for t in TRAINERS]
_CELL = re.compile(_NUMBER)
_VALIDATION = re.compile(r"(?i:\b(?:val|valid|validation|eval)\W{1,3}\Z)")
_RANK = re.compile(r"(?i:\brank|\[default)[ :=]{0,2}(\d{1,5})\b")
_PREFIX = 200  # characters of a line that may name the rank that printed it
_MARKER = re.compile(rb"acc")
_MAX_STEPS = 64
_MAX_RANKS = 4096
_ROUNDING = 1e-6  # above 1


@dataclass(frozen=True)
class TrainerReading:
    """Accuracies of the last validation in a log."""

    trainer: Trainer
    """Who printed them."""
    values: tuple[float, ...]
    """Per step, in order."""
    validations: int
    """Complete sets in the log."""
    dropped: int
    """Values left out: not a number, outside [0, 1], or of an incomplete set."""
    faults: tuple[str, ...] = ()
    """What is wrong with the log: a last validation that is broken, values left out, ranks mixed, its end missing."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know about these values, the faults of the log first."""
        hidden = () if self.trainer.targets == "miss" else (_HIDDEN.format(self.trainer.targets),)
        return tuple(f"{self.trainer.name}: {text}" for text in (*self.faults, *hidden, *self.trainer.caveats))


def read_trainer_log(lines: Iterable[bytes], name: str = "log") -> TrainerReading:
    """The last complete set of per-step accuracies in a trainer's log.

    It may be text, JSON lines, printed dictionaries, or a table with a column per metric, as Lightning's CSVLogger
    writes it: a row holds what was logged at one step, and empty cells what was not.

    A set that holds a value which is none, or fewer steps than the one before it, is not complete. Where none is, the
    steps before the broken one are taken. Either is told in ``faults``. Lines that name their rank are read by rank.
    Where some values are said to be of a validation (``val/``, ``val``), those that are not are of training batches.

    Args:
        lines: the log.
        name: what to call it in messages.

    Raises:
        InputError: no set of a known trainer in it.
    """
    sets: _ByTrainer = {}
    table: _Table | None = None
    for index, line in enumerate(lines):
        if table is not None and table.row(line, index, sets):
            continue
        if not _MARKER.search(line):
            continue
        text = clean(line)
        found = _RANK.search(text[:_PREFIX])
        rank = -1 if found is None else int(found[1])
        spoken = False
        for trainer, pattern in _KEYS:
            for match in pattern.finditer(text):
                spoken = True
                before = text[max(0, match.start() - _PREFIX) : match.start()]
                of_trainer = sets.setdefault((trainer.name, _is_validation(match[0], before)), {})
                if rank in of_trainer or len(of_trainer) < _MAX_RANKS:
                    of_trainer.setdefault(rank, _Sets()).add(int(match["k"]), match["value"], index)
        if not spoken:
            table = _table(line) or table
    for by_rank in sets.values():
        for found_sets in by_rank.values():
            found_sets.close()
    chosen = {t.name: sets.get((t.name, True)) or sets.get((t.name, False), {}) for t in TRAINERS}
    trainer = max(TRAINERS, key=lambda t: max((s.rating for s in chosen[t.name].values()), default=(0, 0)))
    faults = [] if (fault := fault_of(lines)) is None else [fault]
    if table is not None and table.odd:
        faults.append(f"{table.odd} rows left out: they have another number of cells than the table has columns")
    return _reading(trainer, chosen[trainer.name], tuple(faults), name)


def _is_validation(key: str, before: str = "") -> bool:
    """Whether a key, with the text ``before`` it, says that its value is of a validation."""
    return key.lstrip("'\"").startswith("val/") or _VALIDATION.search(before) is not None


def _reading(trainer: Trainer, by_rank: dict[int, _Sets], faults: tuple[str, ...], name: str) -> TrainerReading:
    usable = sorted(rank for rank, sets in by_rank.items() if sets.values)
    if not usable:
        keys = ", ".join(re.sub(r"\(\?P<k>.*?\)|\(\?:|\)\?", _plain, t.pattern) for t in TRAINERS)
        reasons = [sets.broken for sets in by_rank.values() if sets.broken][:1] + list(faults)
        why = f" ({'; '.join(reasons)})" if reasons else ""
        raise InputError("file", name, f"holds no complete set of per-step accuracies{why}; known keys: {keys}")
    rank = max(usable, key=lambda rank: (bool(by_rank[rank].complete), -rank))
    best = by_rank[rank]
    if len({by_rank[other].values for other in usable}) > 1:
        chosen = "the lines without a rank" if rank < 0 else f"rank {rank}"
        faults += (f"several ranks printed unlike values: those of {chosen} are taken",)
    return TrainerReading(trainer, best.values, best.complete or best.cut, best.dropped, best.faults() + faults)


def _plain(match: re.Match[str]) -> str:
    return "K" if match.group().startswith("(?P") else ""


class _Sets:
    """Values of one trainer, gathered into sets: a step that comes again opens the next set."""

    def __init__(self) -> None:
        self.complete = 0
        """Sets that hold every step."""
        self.cut = 0
        """Sets that hold the first steps, but not all."""
        self.dropped = 0
        self.broken: str | None = None
        """What is wrong with the set that came last; None = nothing."""
        self._last: tuple[float, ...] = ()
        self._leading: tuple[float, ...] = ()
        self._first = 0
        self._mixed: str | None = None
        self._open: dict[int, str] = {}
        self._newest = (-1, -1)
        """Step and line of the last value."""

    @property
    def values(self) -> tuple[float, ...]:
        """Those of the last complete set; of the steps before the broken one where there is none."""
        return self._last or self._leading

    @property
    def rating(self) -> tuple[int, int]:
        """Order of preference among trainers."""
        return self.complete, len(self.values)

    def add(self, step: int, text: str, line: int) -> None:
        """One value; ``line`` is the number of its line."""
        if step > _MAX_STEPS:
            self.dropped += 1
            return
        newest, self._newest = self._newest, (step, line)
        if step in self._open:
            before, now = _value(self._open[step]), _value(text)
            if step == newest[0] and now is not None and before in (None, now):
                self.dropped += before is None
                self._open[step] = text
                return  # printed twice, or put right
            if step != next(iter(self._open)):
                self._mixed = f"step {step} comes again before step {next(iter(self._open))} does"
            self.close()
        elif self._open and step < next(iter(self._open)) and line != newest[1]:
            self.close()  # the log begins in the middle of a set
        self._open[step] = text

    def close(self) -> None:
        """The end of a set."""
        steps, self._open = self._open, {}
        if not steps:
            return
        values = {step: _value(text) for step, text in steps.items()}
        first = min(steps)
        good: list[float] = []
        while (value := values.get(first + len(good))) is not None:
            good.append(value)
        self.broken = _fault(steps, first, len(good), len(self._last))
        if self.broken is None:
            self._last, self._first = tuple(good), first
            self.complete += 1
            return
        self.dropped += len(steps)
        if good and first <= 1:
            self._leading = tuple(good)
            self._first = self._first if self.complete else first
            self.cut += 1

    def faults(self) -> tuple[str, ...]:
        """What is wrong, in sentences."""
        found = []
        if self.broken is not None and self.complete:
            found.append(f"the last validation is not used, since {self.broken}: these are of an earlier one")
        elif self.broken is not None:
            found.append(f"no validation is whole ({self.broken}): only the {len(self.values)} steps before are used")
        if self._first > 0:
            found.append(
                "its steps begin at 1, which is taken for the first draft: a log without step 0 looks the same"
            )
        if self._mixed is not None:
            found.append(f"{self._mixed}: several ranks or runs may be mixed in the log; give the log of one")
        if self.dropped:
            found.append(f"{self.dropped} values left out: not a number in [0, 1], or of a set that is not whole")
        return tuple(found)


_ByTrainer = dict[tuple[str, bool], dict[int, _Sets]]
"""By trainer, and whether the values are said to be of a validation, and rank."""


class _Table:
    """Columns of a CSV file whose header names accuracies."""

    def __init__(self, names: list[str]) -> None:
        self.odd = 0
        """Rows that do not fit the header."""
        self._width = len(names)
        found = [
            (t, m["k"], column) for t, p in _NAMES for column, name in enumerate(names) if (m := p.fullmatch(name))
        ]
        self.columns = sorted(((t.name, _is_validation(names[column])), int(k), column) for t, k, column in found)
        """((trainer, whether of a validation), step, column) of every accuracy."""
        self._step = names.index("step") if "step" in names else None
        self._latest: dict[tuple[str, bool], str] = {}
        """By trainer and kind of value, at which training step the latest was logged."""

    def row(self, line: bytes, index: int, sets: _ByTrainer) -> bool:
        """Read a row into ``sets``; False where a line is no row of this table."""
        cells = _cells(line)
        if len(cells) != self._width or any(p.fullmatch(cell) for _, p in _NAMES for cell in cells):
            self.odd += len(cells) > 1 and not _MARKER.search(line)
            return False
        for trainer, k, column in self.columns:
            if not cells[column]:
                continue
            of_trainer = sets.setdefault(trainer, {}).setdefault(-1, _Sets())
            at = "" if self._step is None else cells[self._step]
            if self._latest.setdefault(trainer, at) != at:
                of_trainer.close()  # what was logged at another step is of another validation
            self._latest[trainer] = at
            of_trainer.add(k, cells[column] if _CELL.fullmatch(cells[column]) else "nan", index)
        return True


def _table(line: bytes) -> _Table | None:
    """The table that a line is the header of; None where it is none."""
    names = _cells(line)
    if len(names) < 2 or any(_CELL.fullmatch(name) for name in names):
        return None
    table = _Table(names)
    return table if table.columns else None


def _cells(line: bytes) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([clean(line)]), [])]
    except csv.Error:
        return []


def _value(text: str) -> float | None:
    """An accuracy; None for what is none."""
    value = math.nan if text.lower() in ("null", "none") else float(text)
    return min(value, 1.0) if 0 <= value <= 1 + _ROUNDING else None


def _fault(steps: dict[int, str], first: int, good: int, usual: int) -> str | None:
    """What is wrong with a set whose first ``good`` steps are right, where the set before had ``usual``."""
    wrong = next((step for step in sorted(steps) if _value(steps[step]) is None), None)
    if wrong is not None:
        return f"its step {wrong} is {steps[wrong]}"
    if first > 1 or good < len(steps):
        return f"its step {first + good if first <= 1 else 0} is missing"
    if good < usual:
        return f"it holds {good} of {usual} steps"
    return None
