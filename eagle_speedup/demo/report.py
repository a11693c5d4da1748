"""The demo's last page: tables, and the answer in sentences."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from ..acceptance import AcceptanceProfile
from ..estimate import Estimate
from ..projection import SpeedupProjection
from .comparing import Comparison, DepthRow
from .estimators import EstimatorRow
from .training import MainFit

_DRIFT = 0.02  # smaller changes of the machine's pace are not worth a line

__all__ = [
    "Findings",
    "answer_sentence",
    "estimator_table",
    "illustration_sentence",
    "served_table",
    "show_report",
    "verdict_lines",
]


@dataclass(frozen=True)
class Findings:
    """All that the report tells."""

    verifier: str
    fit: MainFit
    profile: AcceptanceProfile
    """Of the kept checkpoint."""
    projection: SpeedupProjection | None
    """On this machine; None without calibration."""
    comparison: Comparison | None
    """None without decoding."""
    estimators: tuple[EstimatorRow, ...]
    estimators_depth: int
    illustration: SpeedupProjection
    """The same accept length on another node."""
    illustration_title: str


def show_report(console: Console, found: Findings) -> None:
    """Print it."""
    if found.comparison is not None and found.projection is not None:
        console.print(served_table(found.comparison))
        for line in verdict_lines(found.comparison):
            console.print(line)
        console.print()
        console.print(answer_sentence(found.projection, found.comparison), style="bold")
    else:
        console.print(projected_table(found.profile))
        console.print("Nothing was decoded (--no-decode), so this machine is not calibrated: no tok/s of its own.")
    console.print(illustration_sentence(found.illustration, found.illustration_title), style="dim")
    console.print()
    console.print(estimator_table(found))


def served_table(comparison: Comparison) -> Table:
    """Projected against served, one row a depth."""
    answers = comparison.rows[0].answers
    table = Table(
        title="Projected / served, the checkpoint of the best validation",
        caption=f"{answers} held-out answers, one at a time; prefill, which makes the first token, is on no side",
    )
    for name in (
        "depth",
        "accept length",
        "rounds equal",
        "tok/s projected [90 % band]",
        "served",
        "error",
        "speedup served",
    ):
        table.add_column(name, justify="right", no_wrap=name != "tok/s projected [90 % band]")
    table.add_row("plain", "1 / 1", "", "", f"{comparison.plain_tok_s:.1f}", "", "1.00x", style="dim")
    for row in comparison.rows:
        table.add_row(*_cells(row, comparison), style="bold" if row.depth == comparison.best.depth else "")
    return table


def _cells(row: DepthRow, comparison: Comparison) -> tuple[str, ...]:
    return (
        str(row.depth),
        f"{row.accept_length_projected.value:.3f} / {row.accept_length:.3f}",
        f"{row.rounds_equal} of {row.answers}",
        str(row.tok_s_projected),
        f"{row.tok_s:.1f}",
        _percent(row.error),
        f"{row.tok_s / comparison.plain_tok_s:.2f}x",
    )


def verdict_lines(comparison: Comparison) -> list[str]:
    """What must hold, as counted."""
    answers = comparison.rows[0].answers
    lines = [f"{comparison.different} answers differ from plain greedy decoding ({comparison.checked} compared)."]
    if comparison.rounds_all_equal:
        lines.append(f"Rounds projected == rounds served in {answers} of {answers} answers at every depth.")
    else:
        counts = ", ".join(f"{r.rounds_equal} of {r.answers} at depth {r.depth}" for r in comparison.rows)
        lines.append(f"[red]Rounds projected == rounds served in only {counts}.[/red]")
    lines.append(f"Mean absolute error of the projected tok/s over the depths: {100 * comparison.mean_error:.1f} %.")
    change = comparison.pace - 1
    if abs(change) > _DRIFT:
        pace = f"{abs(change):.0%} {'faster' if change > 0 else 'slower'}"
        as_calibrated = comparison.mean_error_as_calibrated
        lines.append(
            f"[yellow]Plain decoding is {pace} than when this machine was calibrated: another load, then or now. The "
            f"projection is at the pace of now; without that its error would be {100 * as_calibrated:.1f} %.[/yellow]"
        )
    return lines


def answer_sentence(projection: SpeedupProjection, comparison: Comparison) -> str:
    """What speedup at current perf?"""
    p = projection
    served = next((row for row in comparison.rows if row.depth == p.depth), None)
    few = len(comparison.answers) < comparison.held_out
    part = f" on {len(comparison.answers)} of the {comparison.held_out} answers" if few else ""
    measured = f"; served{part}: {served.tok_s / comparison.plain_tok_s:.2f}x" if served else ""
    if p.best_depth == 0:
        text = f"none on this machine: at best {_times(p.ratio)}, at depth {p.depth}"
    else:
        tok_s = p.tok_s.scaled(comparison.pace)  # as in the table
        text = f"{_times(p.ratio)} on this machine, {tok_s} tok/s at depth {p.depth}, the best one"
    lengths = f"accept length {p.accept_length.value:.2f}, breakeven {p.breakeven.value:.2f}"
    return f"What speedup at current perf? {text} ({lengths}{measured})."


def illustration_sentence(projection: SpeedupProjection, title: str) -> str:
    """The other node; never to be read as a forecast for it."""
    p = projection
    return (
        f"Illustration only, another node with another verifier ({title}): the same accept length would project to "
        f"{_times(p.ratio)}, {p.tok_s} tok/s at depth {p.depth}."
    )


def projected_table(profile: AcceptanceProfile) -> Table:
    """Accept length over depth, where nothing was served."""
    table = Table(title="Accept length of the checkpoint of the best validation")
    for name in ("depth", "accept length [90 % band]"):
        table.add_column(name, justify="right")
    for depth in range(1, profile.max_depth + 1):
        table.add_row(str(depth), str(profile.accept_length(depth)))
    return table


def estimator_table(found: Findings) -> Table:
    """The ways to estimate the accept length, against the served one (against the walk where nothing was served)."""
    depth, served = found.estimators_depth, None
    if found.comparison is not None:
        served = next((row.accept_length for row in found.comparison.rows if row.depth == depth), None)
    truth = served or found.estimators[0].full_vocabulary
    against = f"served {truth:.3f}" if served else f"the walk {truth:.3f}"
    table = Table(title=f"Ways to estimate the accept length at depth {depth}, and their error against {against}")
    for name in ("estimator", "full-vocabulary targets", "error", "draft-vocabulary targets", "error"):
        table.add_column(name, justify="left" if name == "estimator" else "right")
    for row in found.estimators:
        table.add_row(row.name, *_with_error(row.full_vocabulary, truth), *_with_error(row.draft_vocabulary, truth))
    return table


def _with_error(value: float, truth: float) -> tuple[str, str]:
    return f"{value:.3f}", f"{100 * (value / truth - 1):+.2f} %"


def _percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f}x [{ratio.lo:.2f}, {ratio.hi:.2f}]"
