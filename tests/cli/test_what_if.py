"""Batches, wishes, worth of a point, served acceptance, overrides, plots."""

from __future__ import annotations

import pytest

from eagle_speedup.cli.served import check_served
from eagle_speedup.throughput import mismatch_alarm

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
    ("validated", "served", "alarm"),
    [(0.87, 0.036, True), (0.87, 0.071, True), (0.7, 0.65, False), (0.74, 0.45, False), (0.2, 0.8, True)],
)
def test_served_acceptance_that_can_not_be_the_same_drafter(validated, served, alarm):
    check = check_served(validated, served)
    assert check.alarm is alarm
    assert alarm == (mismatch_alarm(validated, served, 300) is not None)  # one threshold, not two
    assert check.ratio == pytest.approx(served / validated)


def test_the_alarm_is_the_first_warning(cli):
    data = cli.json(*ASK, "--served-acc", "0.036,0.01")
    assert data["served"]["alarm"] is True
    assert data["warnings"][0].startswith("ALARM: first-step acceptance 0.036 served against 0.742 validated")
    assert "consistent" in cli.text(*ASK, "--served-acc", "0.70")
    assert cli.json(*ASK, "--served-acc", "0.9")["served"]["alarm"] is False  # easier text can give that
    assert cli.refusal(*ASK, "--served-acc", "36") == "served_acc[0] = 36.0: must lie in [0, 1]"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("points[0].depth=1",), "its baseline of 90 tok/s is none of the calibration's (none at batch 1)"),
        (("points[0].batch=8",), "no round was served at batch 8, its baseline's"),
        (("points[0].batch=4", "points[0].per_user=true"), "its baseline of 90 tok/s is none of the calibration's"),
        (("points[1].tok_s=200",), "its breakeven of 0.945 would make a round shorter than the plain step"),
    ],
)
def test_a_linear_rule_that_lost_its_points_is_left_out(cli, words, reason):
    batch = next((w.partition("=")[2] for w in words if ".batch=" in w), "1")
    data = cli.json(*ASK, "--batch", batch, *(part for w in words for part in ("--set", w)))
    assert data["linear"] == {}
    assert any(f"the rule linear_inferred is left out: {reason}" in w for w in data["warnings"])


def test_overrides(cli):
    plain, changed = cli.json(*ASK), cli.json(*ASK, "--set", "points[0].tok_s=99", "--set", "notes=mine")
    assert changed["calibrated"]["baseline_tok_s"] > plain["calibrated"]["baseline_tok_s"]
    assert changed["fingerprint"] != plain["fingerprint"]
    assert cli.json(*ASK, "--set", "title=mine")["fingerprint"] == plain["fingerprint"]


def test_one_value_of_the_prior_leaves_the_others_as_they_are(cli):
    """0.012 is the noise in use anyway; the elasticity in use is that of a mixture of experts, not the general one."""
    assert cli.json(*ASK, "--set", "prior.noise=0.012") == cli.json(*ASK)
    dense = cli.json(*ASK, "--set", "verifier=llama_3_1_8b")
    assert dense["calibrated"] != cli.json(*ASK)["calibrated"]
    for order in (("prior.noise=0.012", "verifier=llama_3_1_8b"), ("verifier=llama_3_1_8b", "prior.noise=0.012")):
        assert cli.json(*ASK, *(word for change in order for word in ("--set", change))) == dense


def test_the_simple_rules_follow_overridden_points(cli):
    points = ("--set", "points[0].tok_s=300", "--set", "points[1].tok_s=330")
    words = ("estimate", "--full-acc", ".742,.47,.29", "-c", "kimi_k2_5_origin", *points)
    data = cli.json(*words)
    assert data["optimistic"]["tok_s"] == pytest.approx(300 * data["optimistic"]["ratio"])
    assert data["optimistic"]["tok_s"] > data["calibrated"]["tok_s"]["hi"]  # an upper bound
    assert data["linear"]["inferred"]["breakeven"] == pytest.approx(2.1 * 300 / 330)
    assert "stated" not in data["linear"]
    assert any("the rule linear_stated is left out: its breakeven of 2.2 contradicts" in w for w in data["warnings"])
    assert "linear_stated is left out" in cli.text(*words)


def test_the_example_of_the_help(cli):
    data = cli.json("estimate", "--full-acc", ".8,.6", "-c", "kimi_k2_5_origin", "--set", "points[0].tok_s=95")
    assert data["optimistic"]["tok_s"] == pytest.approx(95 * 2.4 / 1.15)
    inferred = data["linear"]["inferred"]
    assert inferred["breakeven"] == pytest.approx(2.1 * 95 / 82.3)
    assert (inferred["ratio"], inferred["tok_s"]) == pytest.approx((2.4 * 82.3 / 2.1 / 95, 2.4 * 82.3 / 2.1))


def test_rules_that_are_replaced_themselves_stay(cli):
    data = cli.json(*ASK, "--set", "points[0].tok_s=95", "--set", "simple_models.optimistic.draft_overhead=0.2")
    assert data["optimistic"]["overhead"] == 0.2
    assert data["optimistic"]["tok_s"] == pytest.approx(95 * 2.749 / 1.2)
    small = cli.json(*ASK, "--set", "points[0].tok_s=90.5")
    assert set(small["linear"]) == {"stated", "inferred"}
    assert small["linear"]["stated"]["tok_s"] == pytest.approx(90.5 * 2.749 / 2.2)


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("simple_models.optimistic.baseline_tok_s=80", "its baseline of 80 tok/s is none of the calibration's (90)"),
        ("points[1].tok_s=170", "no upper bound with its overhead of 0.15: it gives 164.3 tok/s"),
    ],
)
def test_a_bound_that_contradicts_the_points_is_left_out(cli, assignment, reason):
    data = cli.json(*ASK, "--set", assignment)
    assert data["optimistic"]["overhead"] == 0
    assert data["optimistic"]["tok_s"] == pytest.approx(data["calibrated"]["baseline_tok_s"] * 2.749)
    assert any(f"the rule optimistic is left out: {reason}" in w for w in data["warnings"])


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("prio.noise=1", "prio = {'noise': 1}: unknown key; did you mean 'prior'?"),
        ("points[0].toks=1", "points[0].toks = 1: unknown key; did you mean 'tok_s'?"),
        ("points[9].tok_s=1", "set = 'points[9].tok_s': must name one of the 2 items by its number, from 0"),
        ("points[0].tok_s.x=1", "points[0].tok_s = {'x': 1}: must be a finite number > 0"),
        ("points.first.tok_s=1", "set = 'points.first.tok_s': Index 'first' (str) is not an int"),
        ("points[0].tok_s=92_4", "points[0].tok_s = '92_4': must be a finite number > 0"),
        ("points[0].tok_s=fast", "points[0].tok_s = 'fast': must be a finite number > 0"),
        ("points.tok_s=3", "set = 'points.tok_s': must name the items of a list by their number, such as points[0]"),
        ("points.append=3", "set = 'points.append': must name the items of a list by their number, such as points[0]"),
        ("points[0].tok_s=9e1", "points[0].tok_s = '9e1': must be a finite number > 0 (write 90 rather than 9e1)"),
        ("prior.noise=1e-2", "prior.noise = '1e-2': must be a finite number > 0 (write 0.01 rather than 1e-2)"),
        (
            "points[1].depth=3E0",
            "points[1].depth = '3E0': must be a whole number >= 0 or null (write 3 rather than 3E0)",
        ),
        ("notes=[1e-2]", "notes = ['1e-2']: must be text or null"),
        ("prior.noise=1e99", "prior.noise = '1e99': must be a finite number > 0"),
        ("prior.curve[0]=.2", "prior.curve = {'0': 0.2}: must be a list of numbers > 0, or null"),
        (f"prior.noise={'9' * 400}", f"set = 'prior.noise={'9' * 104}...: is too large a number"),
        (
            f"simple_models.x={{kind: optimistic_overhead, baseline_tok_s: 90, draft_overhead: 1{'0' * 299}}}",
            f"simple_models.x.draft_overhead = 1{'0' * 116}...: must be at most 1e+12",
        ),
        ("nothing", "set = 'nothing': must have the form a.b=value"),
        ("verifier=kimi_k2_7", "verifier = 'kimi_k2_7': unknown name; did you mean 'kimi_k2_6'?"),
        ("node=rtx_pro_6000", "node = 'rtx_pro_6000': unknown name; did you mean 'rtx_pro_6000_x8'?"),
        ("verifier=none.yaml", "file = 'none.yaml': No such file or directory"),
        ("..=3", "set = '..=3': must have the form a.b=value"),
        ("prior..noise=1", "set = 'prior..noise=1': must have the form a.b=value"),
        (".notes=1", "set = '.notes=1': must have the form a.b=value"),
        ("points[x].tok_s=1", "set = 'points[x].tok_s=1': must have the form a.b=value"),
        ("points[0]tok_s=1", "set = 'points[0]tok_s=1': must have the form a.b=value"),
        ("name=!!python/name:os.system", "set = 'name=!!python/name:os.system': must have a plain YAML value"),
    ],
)
def test_overrides_that_are_refused(cli, assignment, line):
    assert cli.refusal(*ASK, "--set", assignment) == line


def test_a_verifier_set_by_name_or_file_moves_the_prior(cli, tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("name: mine\ntitle: t\nmoe: false\n")
    plain, by_name, by_file = (
        cli.json(*ASK, *(w for v in words for w in ("--set", f"verifier={v}")))
        for words in ((), ("llama_3_1_8b",), (path,))
    )
    assert by_file["calibrated"] == by_name["calibrated"] != plain["calibrated"]
    assert not any("the general one" in w for w in by_file["warnings"])
    assert cli.json(*ASK, "--set", "verifier=null")["calibrated"] != plain["calibrated"]


@pytest.mark.parametrize("moe", ["true", "false"])
def test_a_verifier_file_given_to_calibrate_decides_the_prior_of_estimate(cli, tmp_path, monkeypatch, moe):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("my", f"name: mine\ntitle: t\nmoe: {moe}\n"), ("p", "points:\n- {depth: 0, tok_s: 90}\n")):
        (tmp_path / f"{name}.yaml").write_text(lines)
    cli.text("calibrate", "p.yaml", "--verifier", "my.yaml", "-o", "c.yaml")
    cli.text("calibrate", "p.yaml", "--verifier", "kimi_k2_5" if moe == "true" else "llama_3_1_8b", "-o", "named.yaml")
    (tmp_path / "my.yaml").unlink()
    by_file, named = (cli.json("estimate", "--full-acc", ".7,.4", "-c", name) for name in ("c.yaml", "named.yaml"))
    assert by_file["calibrated"] == named["calibrated"] and by_file["warnings"] == named["warnings"]


def test_a_verifier_of_unknown_kind_is_a_warning_of_every_answer(cli, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: c\nverifier: llama_3_1_8bb\npoints:\n- {depth: 0, tok_s: 90}\n")
    says = "the verifier 'llama_3_1_8bb' is no shipped configuration (did you mean 'llama_3_1_8b'?)"
    assert any(w.startswith(says) for w in cli.json("estimate", "--full-acc", ".7,.4", "-c", str(path))["warnings"])
    assert any(w.startswith(says) for w in cli.json("calibrate", str(path))["warnings"])
    assert says in " ".join(cli("export", "--full-acc", ".7,.4", "-c", str(path))[2].split())


def test_overrides_do_not_read_the_environment(cli):
    assert "interpolation is not accepted" in cli.refusal(*ASK, "--set", "name=${oc.env:HOME}")


def test_plot(cli, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    assert f"plot written to {path}" in cli.text(*ASK, "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "must end in .png" in cli.refusal(*ASK, "--plot", str(tmp_path / "out.jpeg"))
    assert "No such file" in cli.refusal(*ASK, "--plot", str(tmp_path / "none" / "out.png"))
