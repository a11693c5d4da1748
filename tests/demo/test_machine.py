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


@pytest.mark.parametrize(
    ("together", "alone", "seen"),
    [
        ([7, 7, 7, 80, 90], [12] * 5, "a forward pass took 90 ms, the best 7 ms"),
        ([500, 480, 520, 560, 510], [21] * 5, "a forward pass takes 510 ms, with one thread 21 ms"),  # all slow
    ],
)
def test_a_busy_machine_falls_back_to_one_thread_and_says_so(together, alone, seen, subject, monkeypatch):
    timings = iter([[ms / 1000 for ms in part] for part in (together, alone, [100, 100, 100])])
    monkeypatch.setattr(machine, "timed", lambda call, times: next(timings))
    torch.set_num_threads(2)
    try:
        found = inspect_machine(subject.verifier, SETTINGS, memory_gb=16.0)
        assert found.threads == torch.get_num_threads() == 1
        assert found.step_ms == pytest.approx(alone[0])
        (note,) = [n for n in found.notes if "thread" in n]
        told = f"another program uses this machine's cores ({seen}): one thread from here on, and figures will scatter"
        assert note == told
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(("alone", "decode_threads", "step_ms"), [(7.2, 1, 7.2), (12.0, 2, 7.0)])
def test_an_idle_machine_keeps_its_threads(alone, decode_threads, step_ms, subject, monkeypatch):
    timings = iter([[0.007] * 5, [alone / 1000] * 5, [0.1] * 3])
    monkeypatch.setattr(machine, "timed", lambda call, times: next(timings))
    torch.set_num_threads(2)
    try:
        found = inspect_machine(subject.verifier, SETTINGS, memory_gb=16.0)
        assert found.threads == torch.get_num_threads() == 2
        # Two threads wait for each other: they decode only where that is clearly faster.
        assert found.decode_threads == decode_threads and found.step_ms == pytest.approx(step_ms)
        assert not [n for n in found.notes if "thread" in n]
    finally:
        torch.set_num_threads(1)


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
