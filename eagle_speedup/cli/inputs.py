"""What a user knows about a drafter, from options and files to one checked value."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..projection import AcceptLengthCurve, AcceptLengths
from ..projection.bracket import BracketCurve, conditional_curve, joint_curve, marginal_curve, open_bracket

if TYPE_CHECKING:
    from ..acceptance import AcceptanceProfile

__all__ = ["KINDS", "Given", "from_accuracies", "from_counts", "from_log", "numbers"]

KINDS = ("joint", "marginal", "conditional")
"""What a per-step accuracy can mean."""

_JOINT = (
    "1 + sum of full_acc, bonus token included. Such values, averaged over all anchors, overstate what decoding shows "
    "by 2 to 10 %, because rounds start after misses: the interval reaches down accordingly."
)
_MARGINAL = (
    "A bracket, not a point: marginal accuracies do not say how often steps are right together. Below: as if they were "
    "independent, less the few percent that this was found to overstate. Above: as much together as they can be (the "
    "Frechet bound). Log joint accuracies (full_acc) to close it."
)
_OPEN = (
    "marginal accuracies leave a bracket open: lo and hi are its ends, single values and best depths those of "
    "independent steps; log full_acc to close it"
)
_COUNTED = "Counted: tokens per round of the walk over the validation answers, the rounds that decoding would make."
_MONITOR = "speedup"  # the name under which the callback logs
_MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Given:
    """What is known of a drafter."""

    kind: str
    """``joint``, ``marginal``, ``conditional`` or ``counts``."""
    lengths: AcceptLengths
    """The accept length it implies at every depth."""
    full_acc: tuple[float, ...]
    """Joint accuracies: given, or implied (for marginals: if independent)."""
    conditionals: tuple[float, ...]
    """Step k right, given the steps before it."""
    explanation: str
    """Where the accept length and its interval come from."""
    values: tuple[float, ...]
    """As given."""
    source: str = "command line"
    """Where the values were read."""
    tail: float | None = None
    """Conditional accuracy assumed beyond the given steps; None where nothing is assumed."""
    limit: float | None = None
    """Accept length at unlimited depth under that; infinite where the tail never misses."""
    limit_hi: float | None = None
    """Its upper end: the highest tail that the steps leave open and, for marginals, the Frechet bound."""
    warnings: tuple[str, ...] = ()
    """What a reader must know of the values."""

    @property
    def is_bracket(self) -> bool:
        """Whether the values leave a bracket open: no point within it is then likelier than another."""
        return self.frechet is not None

    @property
    def frechet(self) -> AcceptLengthCurve | None:
        """For marginals, the accept lengths if the steps are right together as often as they can be."""
        bracket = open_bracket(self.lengths)
        return None if bracket is None else bracket.high

    @property
    def table_depth(self) -> int:
        """Largest depth worth a row."""
        return min(16, self.lengths.max_depth)


def numbers(field: str, text: str) -> list[float]:
    """Numbers from ``".742,.47"`` (commas, or blanks); InputError names the item that is none."""
    items = text.split(",") if "," in text else text.split()
    out = []
    for index, item in enumerate(items):
        try:
            out.append(float(item))
        except ValueError:
            raise InputError(f"{field}[{index}]", item.strip(), "must be a number") from None
    return out


def from_accuracies(
    field: str,
    values: list[float],
    kind: str,
    *,
    targets: str = "miss",
    source: str = "command line",
    warnings: tuple[str, ...] = (),
) -> Given:
    """From per-step accuracies of a kind.

    Args:
        field: option the values came from, for messages.
        values: one per step.
        kind: one of ``KINDS``.
        targets: what happened to targets outside the draft vocabulary, see ``Trainer.targets``.
        source: where the values were read.
        warnings: what is known to be wrong with them.
    """
    build = {"joint": joint_curve, "marginal": marginal_curve, "conditional": conditional_curve}
    if kind not in build:
        raise InputError("kind", kind, f"must be one of {', '.join(KINDS)}")
    curve: BracketCurve = build[kind](values, targets)
    middle = curve.middle
    return Given(
        kind=kind,
        lengths=curve,
        full_acc=middle.full_acc,
        conditionals=middle.conditionals,
        explanation=_MARGINAL if kind == "marginal" else _JOINT,
        values=tuple(values),
        source=source,
        tail=middle.tail.value,
        limit=middle.limit,
        limit_hi=max(middle.limit, curve.high.highest_limit),
        warnings=(*warnings, _OPEN) if kind == "marginal" else warnings,
    )


def from_log(path: str | Path) -> Given:
    """From the last validation in a trainer's log."""
    from ..readers.lines import stream_lines
    from ..readers.trainer_logs import read_trainer_log

    reading = read_trainer_log(stream_lines(path), str(path))
    trainer = reading.trainer
    source = f"{trainer.name} log {Path(path).name}, the last whole one of {reading.validations} validations"
    return from_accuracies(
        "log", list(reading.values), trainer.kind, targets=trainer.targets, source=source, warnings=reading.warnings
    )


def from_counts(path: str | Path) -> Given:
    """From the counts of a validation.

    Args:
        path: the JSON of ``AcceptanceCounts.to_dict``, alone or under ``counts``; or an offline W&B run (its folder or
            ``run-*.wandb`` file), whose last validation is taken.
    """
    path = Path(path)
    profile = _logged_profile(path) if path.is_dir() or path.suffix == ".wandb" else _profile(path)
    if profile.answers == 0:
        raise InputError("counts", str(path), "hold no answer with two tokens")
    coverage = profile.draft_vocab_coverage
    return Given(
        kind="counts",
        lengths=profile,
        full_acc=_known(profile.full_acc),
        conditionals=_known(profile.cond_acc),
        explanation=f"{_COUNTED} {profile.answers} answers, {profile.tokens} tokens, sampling mode {profile.mode}.",
        values=_known(profile.full_acc),
        source=f"counts in {path.name}",
        warnings=() if coverage is None else (f"the draft vocabulary covers {coverage:.1%} of the tokens",),
    )


def _logged_profile(path: Path) -> AcceptanceProfile:
    from ..acceptance import AcceptanceProfile
    from ..readers.wandb_file import counts_from_run, read_wandb_run

    run = read_wandb_run(path)
    settings = run.config.get(_MONITOR)
    mode = settings.get("mode", "greedy") if isinstance(settings, dict) else "greedy"
    return AcceptanceProfile(counts_from_run(run, _MONITOR)[-1][1], str(mode))


def _profile(path: Path) -> AcceptanceProfile:
    from ..acceptance import AcceptanceCounts, AcceptanceProfile

    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError("counts", str(path), "is larger than 64 MB, which no counts are")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError("counts", str(path), error.strerror or "can not be read") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("counts", str(path), "is not JSON") from None
    state = data.get("counts", data) if isinstance(data, dict) else None
    mode = data.get("mode", "greedy") if isinstance(data, dict) else "greedy"
    try:
        return AcceptanceProfile(AcceptanceCounts.from_dict(state), str(mode))  # type: ignore[arg-type]
    except InputError:
        raise
    except (KeyError, TypeError, ValueError):
        raise InputError("counts", str(path), "must be an object with ttt_steps, max_depth and flat") from None


def _known(values: tuple[float, ...]) -> tuple[float, ...]:
    """The leading values that are numbers (a step no answer was long enough for has none)."""
    end = next((k for k, value in enumerate(values) if math.isnan(value)), len(values))
    return values[:end]
