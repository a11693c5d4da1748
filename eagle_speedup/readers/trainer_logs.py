"""Per-step accuracies in the logs of drafter trainers, with what each trainer means by them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import InputError
from .lines import clean

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
        r"(?:val/)?full_acc_(?P<k>\d+)(?:_epoch)?",
        "joint",
        "invisible",
        ("anchors in the prompt count as misses at later steps, so a perfect drafter stays below 1",),
    ),
    Trainer("SpecForge", r"eval/per_position_acc/(?P<k>\d+)", "marginal", "miss"),
    Trainer("TorchSpec", r"eval/acc_(?P<k>\d+)", "marginal", "left out", (_BATCH_MEANS,)),
    Trainer(
        "Model-Optimizer",
        r"train_acc/parallel_0_step_(?P<k>\d+)",
        "marginal",
        "invisible",
        ("training batches of one rank, not validation data", _BATCH_MEANS),
    ),
    Trainer("EAGLE-3", r"test/epochacc_(?P<k>\d+)", "marginal", "miss", (_BATCH_MEANS,)),
    Trainer("EAGLE-1/2", r"test/(?P<k>\d+)_acc", "joint", "miss"),
    Trainer("eagle-speedup", r"speedup/full_acc_(?P<k>\d+)", "joint", "miss"),
)
"""Trainers that are known. The last complete set of steps in a log counts."""

_HIDDEN = "targets outside the draft vocabulary are {}: the accuracy is overstated, served speed will be lower"
_NUMBER = r"(?P<value>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf)"
_KEYS = [(t, re.compile(rf"(?<![\w/]){t.pattern}['\"]?\s*(?:[:=]|\s)\s*(?:tensor\()?{_NUMBER}")) for t in TRAINERS]
_MARKER = re.compile(rb"acc")
_MAX_STEPS = 64


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

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know about these values."""
        hidden = () if self.trainer.targets == "miss" else (_HIDDEN.format(self.trainer.targets),)
        return tuple(f"{self.trainer.name}: {text}" for text in (*hidden, *self.trainer.caveats))


def read_trainer_log(lines: Iterable[bytes], name: str = "log") -> TrainerReading:
    """The last complete set of per-step accuracies in a trainer's log (text, JSON lines or printed dictionaries).

    Args:
        lines: the log.
        name: what to call it in messages.

    Raises:
        InputError: no set of a known trainer in it.
    """
    sets = {trainer.name: _Sets() for trainer in TRAINERS}
    for line in lines:
        if not _MARKER.search(line):
            continue
        text = clean(line)
        for trainer, pattern in _KEYS:
            for match in pattern.finditer(text):
                sets[trainer.name].add(int(match["k"]), float(match["value"]))
    for found in sets.values():
        found.close()
    trainer = max(TRAINERS, key=lambda t: sets[t.name].complete)
    best = sets[trainer.name]
    if best.last is None:
        keys = ", ".join(t.pattern.replace(r"(?P<k>\d+)", "K").replace("(?:", "").replace(")?", "") for t in TRAINERS)
        raise InputError("file", name, f"holds no complete set of per-step accuracies; known keys: {keys}")
    return TrainerReading(trainer, best.last, best.complete, best.dropped)


class _Sets:
    """Values of one trainer, gathered into sets: a step that comes again opens the next set."""

    def __init__(self) -> None:
        self.last: tuple[float, ...] | None = None
        self.complete = 0
        self.dropped = 0
        self._open: dict[int, float] = {}

    def add(self, step: int, value: float) -> None:
        if step > _MAX_STEPS or math.isnan(value) or not 0 <= value <= 1:
            self.dropped += 1
            return
        if step in self._open:
            self.close()
        self._open[step] = value

    def close(self) -> None:
        steps, self._open = self._open, {}
        first = min(steps, default=0)
        if not steps:
            return
        if first > 1 or sorted(steps) != list(range(first, first + len(steps))) or len(steps) < self._steps():
            self.dropped += len(steps)
            return
        self.last = tuple(steps[k] for k in sorted(steps))
        self.complete += 1

    def _steps(self) -> int:
        return 0 if self.last is None else len(self.last)
