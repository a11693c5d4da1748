"""The demo from start to end."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..projection import project
from ..throughput import Calibration, load_calibration
from .budget import Clock
from .comparing import Comparison
from .context import Context
from .environment import quiet
from .estimators import estimator_rows
from .folder import Journal, RunFolder, RunState, write_json
from .machine import check_memory, free_memory_gb
from .phases import first_steps, hold_out, look_around, read_features, train
from .plot import plot_training
from .prepare import HeldOut
from .report import Findings, show_report
from .results import plain_results
from .serving import calibrate_machine, measure
from .settings import load_settings
from .story import Story, clock_text, make_console
from .subject import Subject
from .training import Fit, MainFit, restore

__all__ = ["Options", "run_demo"]


@dataclass(frozen=True)
class Options:
    """What the user chose."""

    minutes: float = 6.0
    seed: int = 0
    resume: bool = False
    decode: bool = True
    out: Path = Path("demo_out")


def run_demo(
    options: Options,
    load_subject: Callable[[], Subject],
    *,
    changes: Mapping[str, Any] | None = None,
    console: Console | None = None,
    memory_gb: float | None = None,
    begin: float | None = None,
) -> Findings | None:
    """Run it, or go on with it.

    Args:
        options: the user's; of an interrupted run its own minutes, seed and decode count.
        load_subject: loads the verifier and its data.
        changes: to ``configs/demo.yaml``.
        console: where the story is told; default: standard output.
        memory_gb: free memory; default: as measured.
        begin: `time.monotonic()` from which the minutes count; default: now.

    Returns:
        What the report tells; None where a finished run was only shown again.

    Raises:
        InputError: too little memory, or a folder that can not be used.
        KeyboardInterrupt: after saying how to go on.
    """
    console, folder, settings = console or make_console(), RunFolder(options.out), load_settings(changes)
    memory = free_memory_gb() if memory_gb is None else memory_gb
    check_memory(memory, settings.machine)
    state = folder.resume() if options.resume else folder.begin(RunState(options.minutes, options.seed, options.decode))
    if state.finished:
        console.print(folder.report.read_text(encoding="utf-8"), markup=False)
        return None
    before_s = 0.0 if begin is None else time.monotonic() - begin
    clock = Clock(state.elapsed_s + before_s)
    journal = Journal(folder, state, clock.elapsed)
    run = Context(settings, folder, journal, Story(console, 8 if state.decode else 6, clock.elapsed), clock)
    _greet(run, options)
    try:
        with quiet():
            return _run(run, load_subject, memory)
    except KeyboardInterrupt:
        journal.note()
        command = f"eagle-speedup demo --resume --out {options.out}"
        console.print(f"\nInterrupted. What is done is kept; go on with: [bold]{command}[/bold]")
        raise


def _greet(run: Context, options: Options) -> None:
    state, console = run.journal.state, run.story.console
    console.print("[bold]eagle-speedup demo[/bold]: train an EAGLE-3 drafter, project its speed, serve it, compare")
    going_on = f"goes on after {clock_text(state.elapsed_s)} of its " if options.resume else ""
    console.print(
        f"[dim]{going_on}{state.minutes:g} minutes, seed {state.seed}, run folder {run.folder.path}, no network[/dim]"
    )


def _run(run: Context, load_subject: Callable[[], Subject], memory_gb: float) -> Findings:
    subject, machine, plan = look_around(run, load_subject, memory_gb)
    held_out = hold_out(run, subject, plan)
    fit = read_features(run, subject, plan, held_out)
    early = first_steps(run, fit, plan)
    calibration = calibrate_machine(run, subject, machine, plan, held_out, fit) if run.journal.state.decode else None
    done = train(run, subject, plan, fit, early, calibration)
    drafter = restore(fit.module(1), done.best_checkpoint)
    comparison = (
        measure(run, subject, machine, plan, held_out, drafter, done, calibration) if calibration is not None else None
    )
    found = _findings(run, subject, held_out, fit, done, calibration, comparison)
    _report(run, found, calibration)
    return found


def _findings(
    run: Context,
    subject: Subject,
    held_out: HeldOut,
    fit: Fit,
    done: MainFit,
    calibration: Calibration | None,
    comparison: Comparison | None,
) -> Findings:
    module, depth = fit.module(1), run.settings.serving.estimators_depth
    restore(module, done.best_checkpoint)
    other = load_calibration(run.settings.illustration)
    # The answers that were served: other answers would be taken for an error of the estimators.
    answers = range(len(held_out.rows)) if comparison is None else comparison.answers
    conversations, rows = [held_out.conversations[i] for i in answers], [held_out.rows[i] for i in answers]
    return Findings(
        verifier=subject.name,
        fit=done,
        profile=done.best.profile,
        projection=done.best.projected if calibration is not None else None,
        comparison=comparison,
        estimators=estimator_rows(module, subject.verifier, conversations, rows, depth),
        estimators_depth=depth,
        illustration=project(done.best.profile, other),
        illustration_title=other.title or other.name,
    )


def _report(run: Context, found: Findings, calibration: Calibration | None) -> None:
    """Print, and keep: the text, the numbers, the picture."""
    folder, story = run.folder, run.story
    with story.phase("Result"):
        used = calibration or load_calibration(run.settings.illustration)
        plot_training(folder.plot, found.fit, used, found.verifier)
        show_report(story.console, found)
    page = Console(file=io.StringIO(), record=True, width=story.console.width)
    show_report(page, found)
    folder.report.write_text(page.export_text(), encoding="utf-8")
    state = asdict(run.journal.state)
    write_json(
        folder.results, {**plain_results(found, story.durations), "total_s": run.clock.elapsed(), "state": state}
    )
    story.console.print(f"\nplot {folder.plot}   numbers {folder.results}   W&B run (offline) {folder.path / 'wandb'}")
    story.console.print(f"[dim]{clock_text(run.clock.elapsed())} of {run.journal.state.minutes:g} minutes[/dim]")
    run.journal.note(finished=True)
    folder.drop_caches()
