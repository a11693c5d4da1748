"""The phases in order on a tiny verifier: calibrate, fit, measure, report."""

from __future__ import annotations

import json

import pytest
import torch

from eagle_speedup.demo.folder import RunFolder
from eagle_speedup.readers.wandb_file import counts_from_run, read_wandb_run
from eagle_speedup.throughput import load_calibration

from .conftest import run_tiny

HEADLINE = [f"speedup/{key}{end}" for key in ("accept_length", "tok_s", "ratio") for end in ("", "_lo", "_hi")]
PER_STEP = [f"speedup/{kind}_{k}" for kind in ("full_acc", "cond_acc", "step_acc") for k in range(5)]
OTHER = ["speedup/breakeven_accept_length", "speedup/best_depth", "speedup/draft_vocab_coverage"]
SIZES = ["speedup/tokens", "speedup/answers"]
FORECAST = [f"speedup/tok_s_final{end}" for end in ("", "_lo", "_hi")]


def wandb_file(out):
    (folder,) = (out / "wandb").glob("offline-run-*")
    return read_wandb_run(folder)


def test_every_answer_takes_the_projected_rounds_and_none_changes(finished):
    comparison = finished.found.comparison
    assert comparison.different == 0
    assert comparison.checked == 5 * 12
    assert [row.depth for row in comparison.rows] == [1, 2, 3, 4, 5]
    assert all(row.rounds_equal == row.answers == 12 for row in comparison.rows)
    for row in comparison.rows:
        assert row.accept_length == pytest.approx(row.accept_length_projected.value, rel=1e-12)
    assert "0 answers differ from plain greedy decoding (60 compared)" in finished.text
    assert "Rounds projected == rounds served in 12 of 12 answers at every depth" in finished.text


def test_the_projection_is_the_callback_s_own(finished):
    found = finished.found
    best = max(found.fit.history, key=lambda v: v.tok_s)
    assert found.fit.best is best
    assert found.projection is best.projection
    assert torch.load(found.fit.best_checkpoint, weights_only=True)["global_step"] == best.global_step
    calibration = load_calibration(finished.out / "this_machine.yaml")
    assert {v.projection.fingerprint for v in found.fit.history} == {calibration.fingerprint}
    assert {p.depth for p in calibration.points} == {0, 1, 3, 5}


def test_only_the_walk_over_the_full_vocabulary_meets_decoding(finished):
    walk, joint, marginal = finished.found.estimators
    served = finished.found.comparison.rows[-1].accept_length
    assert walk.full_vocabulary == pytest.approx(served, rel=1e-12)
    for tempting in (walk.draft_vocabulary, joint.full_vocabulary, marginal.full_vocabulary, joint.draft_vocabulary):
        assert tempting > served * 1.005


def test_the_wandb_file_holds_every_key_at_every_validation(finished):
    run = wandb_file(finished.out)
    assert run.finished
    validations = [row for row in run.history if "speedup/tok_s" in row]
    assert len(validations) == len(finished.found.fit.history) >= 2
    for row, validation in zip(validations, finished.found.fit.history, strict=True):
        missing = [key for key in HEADLINE + PER_STEP + OTHER + SIZES + FORECAST if key not in row]
        assert missing == []
        assert row["speedup/tok_s"] == pytest.approx(validation.tok_s, rel=1e-6)
    for (_, counts), validation in zip(counts_from_run(run), finished.found.fit.history, strict=True):
        assert counts == validation.profile.counts


def test_the_wandb_file_says_what_was_calibrated_and_why_it_stopped(finished):
    run = wandb_file(finished.out)
    fingerprint = load_calibration(finished.out / "this_machine.yaml").fingerprint
    assert fingerprint in json.dumps(run.config)
    assert run.summary["speedup/stop_reason"] == finished.found.fit.reason
    assert run.summary["speedup/stop_message"] == finished.found.fit.message
    best = run.summary["speedup/tok_s"]["max"]
    assert best == pytest.approx(finished.found.fit.best.tok_s, rel=1e-6)


def test_what_is_left_in_the_folder(finished):
    folder = RunFolder(finished.out)
    assert folder.plot.read_bytes().startswith(b"\x89PNG")
    assert folder.early_checkpoint.is_file() and folder.last_checkpoint.is_file()
    assert not folder.features.exists() and not folder.held_out.exists()
    data = json.loads(folder.results.read_text())
    assert [row["depth"] for row in data["served"]["rows"]] == [1, 2, 3, 4, 5]
    assert len(data["seconds"]) == 8 and data["state"]["seed"] == 0
    report = folder.report.read_text()
    for line in ("What speedup at current perf?", "Illustration only", "Ways to estimate the accept length at depth 5"):
        assert line in report and line in finished.text
    assert str(folder.plot) in finished.text


def test_a_finished_run_is_shown_again(finished, subject):
    again = run_tiny(subject, finished.out, resume=True)
    assert again.found is None
    assert RunFolder(finished.out).report.read_text().strip() in again.text


def test_without_decoding_there_is_no_figure_of_this_machine(subject, tmp_path):
    told = run_tiny(subject, tmp_path / "out", decode=False)
    assert told.found.comparison is None and told.found.projection is None
    assert not (tmp_path / "out" / "this_machine.yaml").exists()
    assert "this machine is not calibrated" in told.text and "only for a scale" in told.text
    assert "What speedup at current perf?" not in told.text
    assert "against the walk" in told.text and "6/6" in told.text
