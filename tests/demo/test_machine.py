"""Busy, small or plain machines: a plain sentence and the sensible action."""

from __future__ import annotations

import pytest
import torch

from eagle_speedup.demo import machine
from eagle_speedup.demo.flow import Options, run_demo
from eagle_speedup.demo.machine import check_memory, free_memory_gb, inspect_machine, is_busy, kernel_note
from eagle_speedup.demo.settings import load_settings
from eagle_speedup.errors import InputError

SETTINGS = load_settings().machine


@pytest.mark.parametrize(
    ("milliseconds", "busy"),
    [
        ([7, 8, 7, 7, 8, 9], False),
        ([7, 8, 7, 50, 8, 7], False),  # a hiccup
        ([7, 8, 7, 50, 8, 41], True),
        ([50, 7, 41, 7, 8, 7], True),  # the best of three is the measure, not the first
        ([7, 7, 7, 34, 34, 34], False),  # slow, yet below five times the best
    ],
)
def test_busy_is_five_times_the_best_of_three(milliseconds, busy):
    assert is_busy([ms / 1000 for ms in milliseconds], factor=5.0) is busy


IDLE = ([7] * 5, [500] * 3, [12] * 5, [900] * 3)  # few rows, many rows; the same with one thread
SPIKES = ([7, 7, 7, 80, 90], [500] * 3, [12] * 5, [900] * 3)
NO_GAIN = ([7] * 5, [880] * 3, [12] * 5, [900] * 3)


def inspected(subject, monkeypatch, *looks):
    """What `inspect_machine` finds on two threads, when its looks take these milliseconds."""
    timings = iter([[ms / 1000 for ms in part] for look in looks for part in look])
    monkeypatch.setattr(machine, "timed", lambda call, times: next(timings))
    monkeypatch.setattr(machine, "_PAUSE_S", 0.0)
    torch.set_num_threads(2)
    try:
        found = inspect_machine(subject.verifier, SETTINGS, memory_gb=16.0)
        assert found.threads == torch.get_num_threads() and next(timings, None) is None
        return found
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("look", "seen"),
    [
        (SPIKES, "a forward pass took 90 ms, the best 7 ms"),
        (NO_GAIN, "256 tokens at once take 880 ms, with one thread 900 ms"),
    ],
)
def test_a_busy_machine_falls_back_to_one_thread_and_says_so(look, seen, subject, monkeypatch):
    found = inspected(subject, monkeypatch, look, look)
    assert (found.threads, found.step_ms) == (1, pytest.approx(12.0))
    assert found.positions_s == pytest.approx(256 / 0.9)
    (note,) = [n for n in found.notes if "thread" in n]
    assert (
        note == f"another program uses this machine's cores ({seen}): one thread from here on, and figures will scatter"
    )


def test_a_neighbour_s_burst_is_looked_at_twice(subject, monkeypatch):
    found = inspected(subject, monkeypatch, SPIKES, IDLE)
    assert found.threads == 2 and not [n for n in found.notes if "thread" in n]


@pytest.mark.parametrize(("few_alone", "decode_threads", "step_ms"), [(6.0, 1, 6.0), (7.2, 1, 7.2), (12.0, 2, 7.0)])
def test_an_idle_machine_keeps_its_threads(few_alone, decode_threads, step_ms, subject, monkeypatch):
    found = inspected(subject, monkeypatch, ([7] * 5, [500] * 3, [few_alone] * 5, [900] * 3))
    # Two threads wait for each other: they decode only where that is clearly faster. That they are not is no sign of
    # a neighbour, kernels for few rows may use one thread only.
    assert (found.threads, found.decode_threads, found.step_ms) == (2, decode_threads, pytest.approx(step_ms))
    assert found.positions_s == pytest.approx(512)
    assert not [n for n in found.notes if "thread" in n]


def test_the_verifier_is_really_timed(subject):
    found = inspect_machine(subject.verifier, SETTINGS, memory_gb=16.0)
    assert found.step_ms > 0 and found.positions_s > 0 and found.kernels


@pytest.mark.parametrize(
    ("kernels", "note"),
    [
        (("float16", "onednn", "plain"), None),
        (("plain",), "no packed few-row kernels (oneDNN, FBGEMM) work on this machine: plain ones are used"),
        (("plain", "onednn"), "no packed few-row kernels (oneDNN, FBGEMM) are faster than it: plain ones are used"),
    ],
)
def test_missing_kernels_are_told(kernels, note):
    told = kernel_note(kernels)
    if note is None:
        assert told is None
    else:
        assert told is not None and told.startswith(note) and "slow-down" in told


def test_memory():
    assert check_memory(8.0, SETTINGS) is None
    assert check_memory(4.04, SETTINGS) == ("only 4.0 GB of memory are free: the training set is cut to what fits")
    with pytest.raises(InputError, match=r"free memory = '1\.9 GB': must be at least 2\.5 GB; close other programs"):
        check_memory(1.9, SETTINGS)


def test_too_little_memory_is_refused_before_anything_is_loaded_or_written(tmp_path):
    def load():
        raise AssertionError("loaded")

    with pytest.raises(InputError, match="free memory"):
        run_demo(Options(out=tmp_path / "out"), load, memory_gb=1.0)
    assert not (tmp_path / "out").exists()


def test_free_memory_is_read(tmp_path):
    assert free_memory_gb() > 0
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemAvailable:   2000000 kB\n")
    assert free_memory_gb(meminfo) == pytest.approx(2.048)
    assert free_memory_gb(tmp_path / "none") == float("inf")
