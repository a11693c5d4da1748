"""A round taken apart, and what each lever would buy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..estimate import Estimate
from ..projection import project
from ..throughput import Calibration, load_node, load_verifier
from ..throughput.budget import Budget, round_budget
from ..throughput.specs import tensor_parallel
from .console import make_console
from .inputs import Given
from .what_if import point_worth

__all__ = ["Explanation", "Lever", "explain", "show_explanation"]

_DEFAULT_DEPTH = 3


@dataclass(frozen=True)
class Lever:
    """One thing that could be better."""

    name: str
    """What would change."""
    saves_ms: float | None
    """Shorter round; None where the round stays and its yield grows."""
    gain: float
    """More tok/s, as a share."""


@dataclass(frozen=True)
class Explanation:
    """A plain step and a round of one depth, taken apart."""

    node: str
    verifier: str
    calibration: Calibration
    step: Budget
    round: Budget
    step_ms: Estimate
    round_ms: Estimate
    levers: tuple[Lever, ...]
    warnings: tuple[str, ...]
    """What the figures do not fit: another node or verifier, calibrated times outside what was measured, and so on."""

    def as_dict(self) -> dict[str, Any]:
        """Keys of ``explain --json``; milliseconds, 1e9 bytes."""
        return {
            "node": self.node,
            "verifier": self.verifier,
            "calibration": self.calibration.name,
            "fingerprint": self.calibration.fingerprint,
            "step_ms": self.step_ms,
            "round_ms": self.round_ms,
            **{
                name: {**vars(budget), "floor_ms": budget.floor_ms, "rest_ms": budget.rest_ms}
                for name, budget in (("step", self.step), ("round", self.round))
            },
            "levers": [vars(lever) for lever in self.levers],
            "warnings": self.warnings,
        }


def explain(
    calibration: Calibration,
    *,
    given: Given | None = None,
    node: str | None = None,
    verifier: str | None = None,
    depth: int | None = None,
    batch: int = 1,
    context_tokens: float | None = None,
    gpus: int | None = None,
) -> Explanation:
    """Take a round of ``depth`` drafts apart, by the node and verifier named or those of the calibration.

    ``gpus``: accelerators that hold the verifier; None = as the calibration's tensor parallelism says, else all.
    """
    node_spec = load_node(node or _configuration(calibration, "node"))
    verifier_spec = load_verifier(verifier or _configuration(calibration, "verifier"))
    if depth is None:
        depth = _DEFAULT_DEPTH if given is None else given.lengths.ttt_steps
    if depth < 1:
        raise InputError("depth", depth, "must be a whole number >= 1: a plain step is shown beside it")
    model = calibration.model
    times = {d: model.round_ms(d, batch, context_tokens) for d in (0, depth)}
    step, of_round = (
        round_budget(
            node_spec,
            verifier_spec,
            depth=d,
            batch=batch,
            measured_ms=time.value,
            context_tokens=context_tokens,
            gpus=tensor_parallel(calibration.parallelism) if gpus is None else gpus,
        )
        for d, time in times.items()
    )
    levers = [*_accuracy_levers(given, calibration, depth, batch, context_tokens), *_time_levers(of_round)]
    levers.sort(key=lambda lever: -lever.gain)
    notes = (*((of_round.all_reduce_note,) if of_round.all_reduce_note else ()), *_excess(step, of_round))
    fit = (*(() if given is None else given.warnings), *calibration.caveats)
    warnings = (*fit, *model.range_warnings(depth, batch, context_tokens))
    return Explanation(
        node=node_spec.title,
        verifier=verifier_spec.title,
        calibration=calibration,
        step=step,
        round=of_round,
        step_ms=times[0],
        round_ms=times[depth],
        levers=tuple(levers),
        warnings=(*_differing(calibration, node, verifier), *warnings, *notes),
    )


def _differing(calibration: Calibration, node: str | None, verifier: str | None) -> list[str]:
    """That the node or verifier named is not the one the measured times are of."""
    named = (("node", node, calibration.node), ("verifier", verifier, calibration.verifier))
    return [
        f"{field} = {given!r}: the calibration {calibration.name!r} was measured with {recorded!r}, so the floors and "
        "the calibrated times may be of different ones"
        for field, given, recorded in named
        if given is not None and recorded is not None and not _same(calibration, field, given)
    ]


def _same(calibration: Calibration, field: str, given: str) -> bool:
    """Whether a name means the specification that is recorded: a file may hold a copy of a shipped one."""
    if given == getattr(calibration, field):
        return True
    load: Callable[[str | Path], object] = load_node if field == "node" else load_verifier
    try:
        return load(given) == load(_configuration(calibration, field))
    except InputError:
        return False  # what the calibration records is free text, or a file that is not here


def _excess(step: Budget, of_round: Budget) -> list[str]:
    """That a floor can not be one, and what follows."""
    end = "by the calibration: a figure of node, verifier, gpus or calibration is off"
    names = (("plain step", step, ""), ("round", of_round, ", so no lever is computed from its times"))
    return [
        f"the floor of the {name}, {b.floor_ms:.2f} ms, exceeds its measured time, {b.measured_ms:.2f} ms {end}{then}"
        for name, b, then in names
        if b.rest_ms < 0
    ]


def _configuration(calibration: Calibration, field: str) -> str | Path:
    """Name or file of the calibration's node or verifier."""
    name: str | None = getattr(calibration, field)
    if name is None:
        raise InputError(field, None, f"must be given: the calibration {calibration.name!r} names none")
    return calibration.file_of(name) or name


def _accuracy_levers(
    given: Given | None, calibration: Calibration, depth: int, batch: int, context_tokens: float | None
) -> list[Lever]:
    if given is None:
        return []
    projection = project(given.lengths, calibration, depth=depth, batch=batch, context_tokens=context_tokens)
    worth = point_worth(given, projection)
    tok_s = projection.tok_s.value
    out = [Lever(f"accuracy: one more point of step {w.step}, later ones along", None, w.tok_s / tok_s) for w in worth]
    best = projection.best_measured_depth
    if best not in (0, depth):
        gain = projection.by_depth[best - 1].tok_s.value / tok_s - 1
        if gain > 0:  # an extrapolated depth that was asked for may seem faster than all measured ones
            out.append(Lever(f"depth: {best} drafts instead of {depth}", None, gain))
    return out


def _time_levers(budget: Budget) -> list[Lever]:
    """Halves of what can be made shorter; tok/s grows as the round shrinks. None where the floors exceed the round."""
    if budget.rest_ms < 0:
        return []
    rest = "launches and latency" if budget.all_reduce_note is None else "all-reduces, launches and latency"
    savings = [
        ("drafter cost: half the drafter's weights to read", (budget.draft_ms or 0.0) / 2),
        (f"{rest}: half of the rest", budget.rest_ms / 2),
    ]
    if budget.all_reduce_ms is not None and budget.all_reduce_slow_ms is not None:
        gap = min(budget.all_reduce_slow_ms - budget.all_reduce_ms, budget.rest_ms)
        savings.append(("all-reduce: the fastest measured variant, where the slowest runs now", gap))
    return [Lever(name, ms, budget.measured_ms / (budget.measured_ms - ms) - 1) for name, ms in savings if ms > 0]


def show_explanation(explanation: Explanation) -> None:
    """Print it for people."""
    console, e = make_console(), explanation
    console.print(f"{e.verifier} on {e.node}", markup=False)
    label = f"calibration {e.calibration.name}, fingerprint {e.calibration.fingerprint}; batch {e.round.batch}"
    console.print(label, style="dim", markup=False)
    console.print(_table(e))
    if e.round.distinct_experts is not None:
        note = "Expert counts assume uniform, independent routing, so they are on the high side."
        console.print(note)
    for warning in e.warnings:
        console.print(f"- {warning}", markup=False)
    console.print(f"Calibrated round: {e.round_ms} ms.")
    if e.levers:
        console.print("\n[bold]What each lever would buy[/bold]")
    for lever in e.levers:
        saved = "" if lever.saves_ms is None else f", {lever.saves_ms:.2f} ms a round"
        console.print(f"{lever.gain:+6.1%}  {lever.name}{saved}", markup=False)


def _table(explanation: Explanation) -> Any:
    from rich.table import Table

    step, of_round = explanation.step, explanation.round
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "plain step", f"round, depth {of_round.depth}"):
        table.add_column(title)
    both = (step, of_round)
    table.add_row("tokens verified", *(str(b.tokens) for b in both))
    if of_round.distinct_experts is not None:
        table.add_row("routed experts touched, per layer", *(f"{b.distinct_experts:.1f}" for b in both))
    table.add_row("weights read, GB over all", *(f"{b.weight_gb:.1f}" for b in both))
    table.add_row("  reading them, ms", *(f"{b.weights_ms:.2f}" for b in both))
    if of_round.cache_ms is not None:
        table.add_row("  keys and values of the context, ms", *(f"{b.cache_ms:.2f}" for b in both))
    if of_round.all_reduces:
        table.add_row("all-reduces", *(f"{b.all_reduces} of {b.all_reduce_bytes / 1024:.0f} KiB" for b in both))
    if of_round.all_reduce_note is not None:
        table.add_row("  their time, ms", "not known", "not known")
    elif of_round.all_reduces:
        table.add_row(
            "  fastest .. slowest measured variant, ms",
            *(f"{b.all_reduce_ms:.2f} .. {b.all_reduce_slow_ms:.2f}" for b in both),
        )
    table.add_row("drafter's weights, ms", *("not known" if b.draft_ms is None else f"{b.draft_ms:.2f}" for b in both))
    without = " without all-reduces" if of_round.all_reduce_note else ""
    more = "all-reduces, " if of_round.all_reduce_note else ""
    table.add_row(f"floor{without}, ms", *(f"{b.floor_ms:.2f}" for b in both), style="bold")
    table.add_row(f"rest: {more}launches, latency, attention, sampling, ms", *(f"{b.rest_ms:.2f}" for b in both))
    times = (explanation.step_ms, explanation.round_ms)
    cells = (f"{t.value:.2f} [{t.lo:.2f}, {t.hi:.2f}]" for t in times)
    table.add_row("calibrated, ms, 90 % interval", *cells, style="bold")
    return table
