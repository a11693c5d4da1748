"""Ctrl-C keeps what is done, says how to go on, and going on gives the whole history."""

from __future__ import annotations

import json
import os
import signal

import pytest

from eagle_speedup.demo import phases, prepare, serving
from eagle_speedup.demo.watching import Deadline
from eagle_speedup.errors import InputError
from eagle_speedup.readers.wandb_file import counts_from_run, merge_wandb_runs, read_wandb_run

from .conftest import run_tiny


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """A shell starts background jobs with Ctrl-C ignored, and this suite may be one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupted_in_training_and_resumed(subject, tmp_path, monkeypatch):
    out, count = tmp_path / "out", Deadline.on_train_batch_end

    def press_ctrl_c(self, trainer, pl_module, *args):
        count(self, trainer, pl_module, *args)
        if trainer.global_step == 38:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Deadline, "on_train_batch_end", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt) as stopped:
            run_tiny(subject, out)
    assert f"go on with: eagle-speedup demo --resume --out {out}" in str(stopped.value)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    state = json.loads((out / "demo.json").read_text())
    assert not state["finished"] and state["plan"] and state["steps"] and state["elapsed_s"] > 0

    monkeypatch.setattr(phases, "warm_up", None)  # what is done is not done again
    monkeypatch.setattr(prepare, "generate_answers", None)
    told = run_tiny(subject, out, resume=True, seed=5)
    assert "goes on after" in told.text
    assert json.loads((out / "demo.json").read_text())["seed"] == 0
    assert [v.global_step for v in told.found.fit.history] == [15, 20, 25, 30, 35, 40, 45]
    assert told.found.comparison.rounds_all_equal and told.found.comparison.different == 0

    first, second = [read_wandb_run(part) for part in sorted((out / "wandb").glob("offline-run-*"))]
    assert len(counts_from_run(first)) == 5 and len(counts_from_run(second)) == 2
    merged = counts_from_run(merge_wandb_runs([first, second]))
    assert [counts for _, counts in merged] == [v.profile.counts for v in told.found.fit.history]


def test_interrupted_in_the_measurement_trains_no_more(subject, tmp_path, monkeypatch):
    out, serve, calls = tmp_path / "out", serving.serve, []

    def second_is_interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return serve(*args, **kwargs)

    monkeypatch.setattr(serving, "serve", second_is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_tiny(subject, out)
    before = (out / "checkpoints" / "best.ckpt").stat().st_mtime_ns
    told = run_tiny(subject, out, resume=True)
    assert (out / "checkpoints" / "best.ckpt").stat().st_mtime_ns == before
    assert told.found.comparison.rounds_all_equal


def test_nothing_to_resume(subject, tmp_path):
    with pytest.raises(InputError, match=r"resume = .*holds no earlier run to go on with"):
        run_tiny(subject, tmp_path / "out", resume=True)


@pytest.mark.parametrize("text", ["{broken", "[1]", '{"my": "project"}', '{"format": 1, "minutes": 6, "extra": 1}'])
def test_a_file_of_the_same_name_is_no_earlier_run(text, subject, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in ("checkpoints/mine.ckpt", "demo.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=r"resume = .*demo.json.*: is damaged or of another version"):
        run_tiny(subject, tmp_path, resume=True)
    with pytest.raises(InputError, match=r"out = .*must be new, empty, or the folder of an earlier demo"):
        run_tiny(subject, tmp_path)
    assert (tmp_path / "checkpoints" / "mine.ckpt").read_text() == (tmp_path / "demo.json").read_text() == text


def test_a_folder_that_can_not_be_made_is_named(subject, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"out = .*can not be written: Not a directory"):
        run_tiny(subject, tmp_path / "file" / "sub")


def test_another_folder_s_files_are_left_alone(subject, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"out = .*must be new, empty, or the folder of an earlier demo"):
        run_tiny(subject, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
