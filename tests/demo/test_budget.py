"""Minutes into work."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_speedup.demo.budget import Clock, Plan, make_plan, step_budget
from eagle_speedup.demo.machine import Machine
from eagle_speedup.demo.settings import load_settings

SETTINGS = load_settings()
MACHINE = Machine(
    memory_gb=20.0, threads=2, decode_threads=1, kernels=("float16", "plain"), step_ms=8.0, positions_s=2500.0
)


def plan_of(machine=MACHINE, minutes=6.0, decode=True):
    return make_plan(
        minutes=minutes,
        decode=decode,
        machine=machine,
        settings=SETTINGS,
        max_new=64,
        lengths=[200] * 400,
        position_bytes=3656,
    )


def test_the_parts_leave_time_for_training():
    plan = plan_of()
    assert plan.total_s == 360
    assert 2 <= plan.calibration_answers <= plan.held_out <= SETTINGS.held_out.most
    assert 0 < plan.conversations <= 400
    assert plan.train_until_s > plan.warm_up_s + SETTINGS.budget.features_share * 360 + 60


def test_a_slower_machine_and_a_shorter_budget_do_less():
    usual, slow, short = plan_of(), plan_of(replace(MACHINE, step_ms=30.0, positions_s=400.0)), plan_of(minutes=1.5)
    assert slow.held_out < usual.held_out and slow.conversations < usual.conversations
    assert short.held_out <= usual.held_out and short.conversations < usual.conversations
    assert short.warm_up_s == pytest.approx(usual.warm_up_s / 4)
    very_slow = plan_of(replace(MACHINE, step_ms=500.0, positions_s=40.0))
    assert very_slow.held_out == SETTINGS.held_out.least


def test_little_memory_cuts_the_training_set():
    small = plan_of(replace(MACHINE, memory_gb=2.6))
    assert 16 <= small.conversations < plan_of().conversations


def test_without_decoding_its_time_goes_to_training():
    assert plan_of(decode=False).train_until_s == 360 - SETTINGS.budget.reserve_s
    assert plan_of(decode=False).calibration_answers == 0


def test_a_plan_survives_the_run_folder():
    assert Plan(**asdict(plan_of())) == plan_of()


@given(
    done=st.integers(0, 500),
    step_s=st.floats(0.01, 5),
    validation_s=st.floats(0.01, 20),
    seconds=st.floats(-10, 1000),
    every_s=st.floats(1, 60),
)
def test_the_main_fit_ends_with_a_validation(done, step_s, validation_s, seconds, every_s):
    steps = step_budget(done=done, step_s=step_s, validation_s=validation_s, seconds=seconds, every_s=every_s)
    assert steps.last_step % steps.interval == 0
    assert steps.last_step // steps.interval >= done // steps.interval + 2
    fitting = (steps.last_step - done) * step_s * (1 + validation_s / (steps.interval * step_s))
    assert fitting <= max(seconds, 0) * 1.01 or steps.last_step // steps.interval == done // steps.interval + 2


def test_step_budget_by_hand():
    # 100 s at 0.2 s a step with 5 s of validation every 20 s: 400 steps fit in 80 s + 4 validations of 5 s.
    steps = step_budget(done=50, step_s=0.2, validation_s=5.0, seconds=100.0, every_s=20.0)
    assert (steps.interval, steps.last_step) == (100, 400)


def test_the_clock_counts_what_an_interrupted_run_spent():
    now = [100.0]
    clock = Clock(spent_s=40.0, now=lambda: now[0])
    now[0] = 103.5
    assert clock.elapsed() == pytest.approx(43.5)
