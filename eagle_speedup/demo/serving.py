"""The phases that decode: the calibration on the early checkpoint, the measurement of the best one."""

from __future__ import annotations

from collections.abc import Sequence

from ..eagle3.drafter import Eagle3Drafter
from ..eagle3.engine import DraftEngine
from ..throughput import Calibration, load_calibration, save_calibration
from .budget import Plan
from .calibrating import machine_calibration, measured_points, spread_out
from .comparing import Comparison, compare
from .context import Context
from .machine import Machine, use_threads
from .measure import Decode, decoder, prompts_of, serve
from .prepare import HeldOut
from .subject import Subject
from .training import Fit, MainFit, restore

__all__ = ["calibrate_machine", "measure"]


def calibrate_machine(
    run: Context, subject: Subject, machine: Machine, plan: Plan, held_out: HeldOut, fit: Fit
) -> Calibration:
    """Time plain decoding and a few depths on the early checkpoint."""
    depths, file = run.settings.serving.calibration_depths, run.folder.calibration
    with run.story.phase("Calibration of this machine, on the checkpoint just made"):
        if file.is_file() and run.journal.state.threads == machine.decode_threads:
            calibration = load_calibration(file)
        else:
            answers = _spread(held_out, plan.calibration_answers)
            decode = _decoder(subject, held_out, restore(fit.module(1), run.folder.early_checkpoint))
            with run.story.bar("answers") as bar, use_threads(machine.decode_threads):
                served = serve(decode, answers, (0, *depths), progress=bar)
            points = measured_points(served, (0, *depths), _groups(answers, run.settings.serving.calibration_groups))
            calibration = machine_calibration(points, subject.name, machine)
            save_calibration(calibration, file)
            run.journal.note(threads=machine.decode_threads)
        rounds = ", ".join(f"{calibration.model.round_ms(d).value:.2f} at depth {d}" for d in depths)
        run.story.say(f"plain step {calibration.model.step_ms().value:.2f} ms; round {rounds}")
        run.story.say(f"kept as {file}, fingerprint {calibration.fingerprint}")
    return calibration


def measure(
    run: Context,
    subject: Subject,
    machine: Machine,
    plan: Plan,
    held_out: HeldOut,
    drafter: Eagle3Drafter,
    done: MainFit,
    calibration: Calibration,
) -> Comparison:
    """Serve the best checkpoint, and put what was projected beside it."""
    depths, story, settings = run.settings.serving.depths, run.story, run.settings
    begin_s, until_s = run.clock.elapsed(), plan.total_s - settings.budget.reserve_s / 2

    def go_on(answers: int) -> bool:
        now = run.clock.elapsed()
        return answers < settings.held_out.least_served or now + (now - begin_s) / answers < until_s

    with story.phase("Measurement by real decoding"):
        decode = _decoder(subject, held_out, drafter)
        with story.bar("answers") as bar, use_threads(machine.decode_threads):
            served = serve(decode, _spread(held_out, plan.held_out), (0, *depths), progress=bar, go_on=go_on)
        comparison = compare(served, held_out.answers, done.best.profile, calibration)
        answers = comparison.rows[0].answers
        story.say(f"{answers} answers, one at a time: plain and every depth side by side, prefill not timed")
        if answers < plan.held_out:
            story.warn(f"the machine is slower than planned: {plan.held_out - answers} further answers are left out")
        run.journal.note()
    return comparison


def _spread(held_out: HeldOut, count: int) -> list[int]:
    return spread_out(count, [len(c.ids) for c in held_out.conversations])


def _decoder(subject: Subject, held_out: HeldOut, drafter: Eagle3Drafter) -> Decode:
    prompts = prompts_of(held_out.conversations)
    return decoder(
        subject.verifier, DraftEngine(drafter), prompts, max_new=subject.recipe.max_new, eos_id=subject.eos_id
    )


def _groups(answers: Sequence[int], count: int) -> list[Sequence[int]]:
    return [group for group in (answers[i::count] for i in range(count)) if group]
