"""Batches, wishes, worth of a point, served acceptance, overrides, plots."""

from __future__ import annotations

import pytest

from eagle_speedup.cli.served import check_served

from .conftest import ORIGIN

ASK = ("estimate", "--full-acc", ORIGIN, "--calibration", "kimi_k2_5_origin")


def test_best_depth_per_batch(cli):
    data = cli.json(*ASK, "--batches", "1,4,16")
    assert [row["batch"] for row in data["by_batch"]] == [1, 4, 16]
    for row in data["by_batch"]:
        assert 0 <= row["best_depth"] <= 5
        assert row["tok_s"]["value"] == pytest.approx(row["ratio"]["value"] * row["baseline_tok_s"])
    assert "Best depth per batch size" in cli.text(*ASK, "--batches", "1 4")
    assert cli.refusal(*ASK, "--batches", "1,two") == "batches[1] = 'two': must be a whole number"
    assert cli.refusal(*ASK, "--batches", "0") == "batches[0] = 0: must be a whole number >= 1"


def test_what_a_wished_speed_takes(cli):
    data = cli.json(*ASK, "--want-tok-s", "110")
    wish = data["wish"]
    needed = wish["accept_length"]
    assert data["accept_length"]["value"] < needed["value"]
    assert needed["lo"] < needed["value"] < needed["hi"]
    grown = data["accept_length"]["value"] * 110 / data["calibrated"]["tok_s"]["value"]
    assert needed["value"] == pytest.approx(grown, rel=0.03)  # in proportion, but for time that is not decoding
    c = wish["conditional"]
    assert sum(c**k for k in range(6)) == pytest.approx(needed["value"])
    assert wish["reachable"] is True
    far = cli.json(*ASK, "--want-tok-s", "1000")["wish"]
    assert far["reachable"] is False and far["conditional"] is None
    assert "out of reach" in cli.text(*ASK, "--want-tok-s", "1000")
    assert cli.refusal(*ASK, "--want-tok-s", "-1") == "want_tok_s = '-1': must be a finite number > 0"


def test_worth_of_a_point(cli):
    data = cli.json(*ASK)
    worth = data["worth_of_a_point"]
    assert [step["step"] for step in worth] == [1, 2, 3, 4, 5]
    assert worth[0]["accept_length"] == pytest.approx(0.01 / 0.742 * 1.749)  # step 1 and all after it
    assert worth[4]["accept_length"] == pytest.approx(0.01)
    better = cli.json("estimate", "--full-acc", ".742,.47,.29,.15,.107", "-c", "kimi_k2_5_origin")
    gained = better["calibrated"]["tok_s"]["value"] - data["calibrated"]["tok_s"]["value"]
    assert worth[4]["tok_s"] == pytest.approx(gained, rel=1e-2)


@pytest.mark.parametrize(
    ("validated", "served", "alarm"), [(0.87, 0.036, True), (0.87, 0.071, True), (0.7, 0.65, False)]
)
def test_served_acceptance_that_can_not_be_the_same_drafter(validated, served, alarm):
    check = check_served(validated, served)
    assert check.alarm is alarm
    assert check.ratio == pytest.approx(served / validated)


def test_the_alarm_is_the_first_warning(cli):
    data = cli.json(*ASK, "--served-acc", "0.036,0.01")
    assert data["served"]["alarm"] is True
    assert data["warnings"][0].startswith("ALARM: first-step acceptance 0.036 served against 0.742 validated")
    assert "consistent" in cli.text(*ASK, "--served-acc", "0.70")
    assert cli.json(*ASK, "--served-acc", "0.9")["served"]["alarm"] is True
    assert cli.refusal(*ASK, "--served-acc", "36") == "served_acc[0] = 36.0: must lie in [0, 1]"


def test_overrides(cli):
    plain, changed = cli.json(*ASK), cli.json(*ASK, "--set", "points[0].tok_s=99", "--set", "notes=mine")
    assert changed["calibrated"]["baseline_tok_s"] > plain["calibrated"]["baseline_tok_s"]
    assert changed["fingerprint"] != plain["fingerprint"]
    assert cli.json(*ASK, "--set", "title=mine")["fingerprint"] == plain["fingerprint"]


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("prio.noise=1", "prio = {'noise': 1}: unknown key; did you mean 'prior'?"),
        ("points[0].toks=1", "points[0].toks = 1: unknown key; did you mean 'tok_s'?"),
        ("points[9].tok_s=1", "set = 'points[9].tok_s': must name one of the 2 items by its number, from 0"),
        ("points[0].tok_s.x=1", "set = 'points[0].tok_s.x': points.0.tok_s holds a value, not keys"),
        ("points[0].tok_s=fast", "points[0].tok_s = 'fast': must be a finite number > 0"),
        ("nothing", "set = 'nothing': must have the form a.b=value"),
        ("name=!!python/name:os.system", "set = 'name=!!python/name:os.system': must have a plain YAML value"),
    ],
)
def test_overrides_that_are_refused(cli, assignment, line):
    assert cli.refusal(*ASK, "--set", assignment) == line


def test_overrides_do_not_read_the_environment(cli):
    assert "interpolation is not accepted" in cli.refusal(*ASK, "--set", "name=${oc.env:HOME}")


def test_plot(cli, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    assert f"plot written to {path}" in cli.text(*ASK, "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "must end in .png" in cli.refusal(*ASK, "--plot", str(tmp_path / "out.jpeg"))
    assert "No such file" in cli.refusal(*ASK, "--plot", str(tmp_path / "none" / "out.png"))
