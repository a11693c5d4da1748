"""The phases of the demo: each takes values and the run's context, and gives a value that a resume can take up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from lightning.pytorch import seed_everything

from ..eagle3.drafter import Eagle3Drafter
from ..eagle3.lightning_module import Eagle3Module
from ..eagle3.linear import fastest_training_dtype
from ..throughput import Calibration, load_calibration
from .budget import Plan, StepBudget, make_plan, step_budget
from .context import Context
from .machine import Machine, inspect_machine
from .prepare import HeldOut, TrainingSet, position_bytes, prepare_held_out, prepare_training
from .subject import Subject
from .training import Fit, FitWatch, MainFit, WarmUp, finished_fit, main_fit, profile_of, restore, warm_up

__all__ = ["first_steps", "hold_out", "look_around", "read_features", "train"]

_LEAST_STEPS = 10
_FEW_STEPS = 40


def look_around(run: Context, load_subject: Callable[[], Subject], memory_gb: float) -> tuple[Subject, Machine, Plan]:
    """Load the verifier, see what the machine can do, and deal out the budget."""
    with run.story.phase("Verifier and machine"):
        subject = load_subject()
        machine = inspect_machine(subject.verifier, run.settings.machine, memory_gb)
        run.story.say(
            f"{subject.name}: {machine.step_ms:.1f} ms a decoding step, prefill {machine.positions_s:,.0f} "
            f"positions/s; {machine.threads} threads ({machine.decode_threads} to decode), {machine.kernels[0]} "
            f"kernels, {machine.memory_gb:.1f} GB free"
        )
        for note in machine.notes:
            run.story.warn(note)
        state = run.journal.state
        plan = make_plan(
            minutes=state.minutes,
            decode=state.decode,
            machine=machine,
            settings=run.settings,
            max_new=subject.recipe.max_new,
            lengths=[len(c.ids) for c in subject.conversations],
            position_bytes=position_bytes(subject),
        )
        if state.plan is not None:
            plan = Plan(**state.plan)  # an interrupted run keeps its answers and features
        run.journal.note(plan=asdict(plan), subject=subject.name)
    return subject, machine, plan


def hold_out(run: Context, subject: Subject, plan: Plan) -> HeldOut:
    """Answers to validate and to serve."""
    with run.story.phase("Held-out answers, written live by the verifier in float32"):
        if run.folder.held_out.is_file():
            run.story.say("written before the interruption")
        held_out = prepare_held_out(subject, plan.held_out, run.journal.state.seed, run.folder, run.story)
        tokens = sum(c.answer_tokens for c in held_out.conversations)
        run.story.say(
            f"{len(held_out.conversations)} greedy answers, {tokens:,} tokens; prompts: {subject.prompts_text}"
        )
        run.journal.note()
    return held_out


def read_features(run: Context, subject: Subject, plan: Plan, held_out: HeldOut) -> Fit:
    """The training set, and how to make a module for it."""
    with run.story.phase("Verifier features of the training conversations"):
        until_s = run.clock.elapsed() + plan.features_s
        training = prepare_training(
            subject, plan.conversations, run.folder, run.story, lambda: run.clock.elapsed() < until_s
        )
        count = f"{len(training.rows)} of {len(subject.conversations)} conversations"
        run.story.say(f"{count}, {training.answer_tokens:,} answer tokens; draft vocabulary {len(training.d2t):,}")
        run.journal.note()
    seed = run.journal.state.seed
    return Fit(_module_maker(subject, training, seed), training.rows, held_out.rows, subject.recipe.batch_size, seed)


def _module_maker(subject: Subject, training: TrainingSet, seed: int) -> Callable[[int], Eagle3Module]:
    recipe, autocast = subject.recipe, str(fastest_training_dtype()).removeprefix("torch.")

    def make(total_steps: int) -> Eagle3Module:
        seed_everything(seed, verbose=False)
        drafter = Eagle3Drafter.for_verifier(subject.verifier, training.d2t, recipe.tap_layers)
        return Eagle3Module(drafter, recipe.training(total_steps, autocast))

    return make


def first_steps(run: Context, fit: Fit, plan: Plan) -> WarmUp:
    """Train a little: the calibration needs a drafter, and the budget the time of a step."""
    with run.story.phase("First training steps"):
        if run.journal.state.warm_up is None:
            until_s = run.clock.elapsed() + plan.warm_up_s
            done = warm_up(
                fit,
                run.folder.early_checkpoint,
                story=run.story,
                until_s=until_s,
                elapsed=run.clock.elapsed,
                least_steps=_LEAST_STEPS,
            )
            run.journal.note(warm_up=asdict(done))
        early = WarmUp(**(run.journal.state.warm_up or {}))
        run.story.say(f"{early.steps} steps of {1000 * early.step_s:.0f} ms; kept as {run.folder.early_checkpoint}")
    return early


def train(
    run: Context, subject: Subject, plan: Plan, fit: Fit, early: WarmUp, calibration: Calibration | None
) -> MainFit:
    """The main fit, from the early checkpoint or from where an interrupted one was."""
    story, node = run.story, None
    with story.phase("Training with SpeedupMonitor and SpeedupEarlyStopping"):
        if calibration is None:
            calibration = load_calibration(run.settings.illustration)
            node = calibration.name
            story.warn(
                f"nothing is decoded, so this machine is not calibrated: the tok/s are of {node}, only for a scale"
            )
        done = finished_fit(fit, calibration, run.settings, run.folder)
        if done is None:
            watch = FitWatch(story, plan.train_until_s, run.clock.elapsed, run.journal.note, node)
            done = _main_fit(run, subject, plan, fit, early, calibration, watch)
        story.say(f"{done.message[0].upper()}{done.message[1:]}.")
        story.say(f"best checkpoint: step {done.best.global_step}, {done.best_checkpoint}")
        run.journal.note()
    return done


def _main_fit(
    run: Context, subject: Subject, plan: Plan, fit: Fit, early: WarmUp, calibration: Calibration, watch: FitWatch
) -> MainFit:
    steps, last, state = _steps(run, plan, fit, early), run.folder.last_checkpoint, run.journal.state
    run.story.say(f"up to step {steps.last_step:,}, a validation every {steps.interval} steps")
    if steps.last_step - early.steps < _FEW_STEPS:
        run.story.warn("hardly any training fits into the time that is left: give it more --minutes")
    return main_fit(
        fit,
        last if last.is_file() else run.folder.early_checkpoint,
        steps,
        calibration=calibration,
        settings=run.settings,
        folder=run.folder,
        config={"seed": state.seed, "minutes": state.minutes, "verifier": subject.name, "plan": asdict(plan)},
        watch=watch,
    )


def _steps(run: Context, plan: Plan, fit: Fit, early: WarmUp) -> StepBudget:
    """The step budget of the main fit, fixed once: the schedule and the forecast build on it."""
    if run.journal.state.steps is None:
        module = fit.module(1)
        restore(module, run.folder.early_checkpoint)
        _, validation_s = profile_of(module, fit.held_out, max(run.settings.serving.depths))
        settings, seconds = run.settings.training, plan.train_until_s - run.clock.elapsed()
        steps = step_budget(
            done=early.steps,
            step_s=early.step_s * settings.step_growth,
            validation_s=validation_s,
            seconds=seconds,
            every_s=settings.validate_every_s,
        )
        run.journal.note(steps=asdict(steps))
    return StepBudget(**(run.journal.state.steps or {}))
