from __future__ import annotations

import json
import re

import pytest

from .conftest import ORIGIN

ASK = ("estimate", "--full-acc", ORIGIN, "--calibration", "kimi_k2_5_origin")


def test_origin_case(cli):
    data = cli.json(*ASK)
    assert data["accept_length"]["value"] == pytest.approx(2.749)
    assert [round(c, 3) for c in data["conditionals"]] == [0.742, 0.633, 0.617, 0.517, 0.647]
    assert data["optimistic"]["ratio"] == pytest.approx(2.390, abs=5e-4)
    assert data["optimistic"]["tok_s"] == pytest.approx(215.1, abs=0.05)
    stated = data["linear"]["stated"]
    assert (stated["breakeven"], stated["ratio"]) == (2.2, pytest.approx(2.749 / 2.2))
    assert stated["tok_s"] == pytest.approx(112.5, abs=0.05)
    assert data["linear"]["inferred"]["breakeven"] == pytest.approx(2.1 * 90 / 82.3)
    assert data["linear"]["inferred"]["tok_s"] == pytest.approx(107.7, abs=0.05)


def test_one_interval_holds_both_linear_answers_and_not_the_optimistic_one(cli):
    data = cli.json(*ASK)
    tok_s = data["calibrated"]["tok_s"]
    assert tok_s["lo"] < data["linear"]["inferred"]["tok_s"] < data["linear"]["stated"]["tok_s"] < tok_s["hi"]
    assert tok_s["hi"] < data["optimistic"]["tok_s"]


def test_more_depth_can_not_give_three(cli):
    data = cli.json(*ASK)
    by_depth = {row["depth"]: row for row in data["by_depth"]}
    assert 2.749 < by_depth[10]["accept_length"]["value"] < by_depth[16]["accept_length"]["value"] < 2.95
    assert by_depth[16]["accept_length"]["value"] < data["limit"]["accept_length"] < 2.95
    assert [by_depth[d]["measured"] for d in (1, 5, 6, 16)] == [True, True, False, False]
    assert "3.1 would take a conditional of 0.78" in data["limit"]["reason"]


def test_keys_are_the_documented_ones(cli):
    data = cli.json(*ASK)
    assert set(data) == {
        "schema", "depth", "batch", "context_tokens", "workload", "calibration", "fingerprint", "given",
        "full_acc", "conditionals", "accept_length", "bracket", "optimistic", "linear", "calibrated", "verdict",
        "by_depth", "best_depth", "best_depth_bracket", "best_beyond", "by_batch", "limit", "worth_of_a_point", "wish",
        "served", "what_would_change_it", "warnings",
    }  # fmt: skip
    assert set(data["calibrated"]) == {
        "tok_s", "tok_s_per_user", "ratio", "round_ms", "breakeven", "baseline_tok_s", "baseline", "is_bracket",
        "is_measured",
    }  # fmt: skip
    assert set(data["optimistic"]) == {"overhead", "ratio", "tok_s", "accept_length", "note"}
    assert set(data["linear"]["stated"]) == {"breakeven", "ratio", "tok_s", "ratio_range", "tok_s_range"}
    assert set(data["limit"]) == {"accept_length", "tail_conditional", "reason", "hi"}
    assert set(data["by_depth"][0]) == {
        "depth", "accept_length", "round_ms", "tok_s", "ratio", "breakeven", "measured"
    }  # fmt: skip
    help_text = cli.text("estimate", "--help")
    assert all(key in help_text for key in data if key != "schema")


def test_a_workload_of_the_calibration(cli):
    ask = ("estimate", "--full-acc", ".7,.45,.3", "-c", "qwen3_235b_a22b_h200", "-b", "8")
    for name, baseline in (("gsm8k", 469.13), ("humaneval", 553.05)):  # as published
        data = cli.json(*ask, "--workload", name)
        assert data["workload"] == name and data["calibrated"]["baseline"]["measured"]
        assert data["calibrated"]["baseline_tok_s"] == pytest.approx(baseline, rel=0.03)
    assert "workload humaneval" in cli.text(*ask, "--workload", "humaneval")
    assert cli.json(*ask)["workload"] is None
    assert any("workload 'chat' was not measured" in w for w in cli.json(*ask, "--workload", "chat")["warnings"])


def test_the_bound_takes_the_upper_end_of_an_extrapolated_accept_length(cli):
    for depth in ("10", "16"):
        data = cli.json(*ASK, "--depth", depth)
        length, bound = data["accept_length"], data["optimistic"]
        assert length["value"] < length["hi"] == bound["accept_length"]
        assert bound["ratio"] == pytest.approx(length["hi"] / 1.15) and bound["note"] is None
        assert data["calibrated"]["tok_s"]["hi"] < bound["tok_s"] == pytest.approx(90 * bound["ratio"])
    assert cli.json(*ASK)["optimistic"]["accept_length"] == pytest.approx(2.749)


@pytest.mark.parametrize("full_acc", [ORIGIN, ".05,.01", "0,0", ".99,.98"])
@pytest.mark.parametrize("words", [("-b", "1"), ("-b", "64"), ("-b", "8", "--context", "131072", "--depth", "1")])
def test_the_calibrated_interval_stays_below_the_bound_or_the_answer_says_why_not(cli, full_acc, words):
    ask = ("estimate", "--full-acc", full_acc, "-c", "kimi_k2_5_origin", *words)
    data = cli.json(*ask)
    bound, calibrated = data["optimistic"], data["calibrated"]
    above = calibrated["tok_s"]["hi"] > bound["tok_s"] or calibrated["ratio"]["hi"] > bound["ratio"]
    assert (bound["note"] is not None) is above
    assert ("interval reaches beyond that" in " ".join(cli.text(*ask).split())) is above
    baseline = calibrated["baseline"]
    if not baseline["measured"]:  # a bound on a baseline nobody measured takes the upper end of that
        assert bound["tok_s"] == pytest.approx(bound["ratio"] * baseline["tok_s"]["hi"])


def test_an_overhead_above_the_calibrated_round_bounds_nothing(cli):
    words = (*ASK, "--depth", "1", "--set", "simple_models.optimistic.draft_overhead=0.7")
    data = cli.json(*words)
    assert data["calibrated"]["breakeven"]["value"] < 1.7
    assert data["optimistic"]["overhead"] == 0 and data["optimistic"]["ratio"] == pytest.approx(1.742)
    said = "the rule optimistic is left out: no upper bound with its overhead of 0.7, since a round of depth 1 is"
    assert any(w.startswith(said) for w in data["warnings"])


def test_what_depth_can_add_agrees_with_the_interval(cli):
    data = cli.json(*ASK, "--depth", "60")
    deepest, limit = data["by_depth"][-1]["accept_length"], data["limit"]
    assert deepest["value"] == pytest.approx(limit["accept_length"]) and deepest["hi"] == pytest.approx(limit["hi"])
    assert max(row["accept_length"]["hi"] for row in data["by_depth"]) <= limit["hi"] + 1e-9 < 2.95
    assert "add 0.14 to 2.75; the interval ends at 2.93" in limit["reason"] and "at most" not in limit["reason"]


def test_the_end_of_an_interval_is_not_called_certain(cli):
    data = cli.json(*ASK)
    assert "certain" not in " ".join(data["what_would_change_it"])
    breakeven = data["calibrated"]["breakeven"]
    needed = next(line for line in data["what_would_change_it"] if line.startswith("accept length"))
    assert f"{breakeven['hi']:.2f} is the upper end of that figure's 90 % interval" in needed


def test_a_simulation_is_not_called_calibrated_and_decides_nothing(cli, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: c\npoints: []\nprior: {curve: [0.3, 0.3], step_ms: 12.0}\n")
    words = ("estimate", "--full-acc", ".98,.96,.94", "-c", str(path))
    data = cli.json(*words)
    assert data["calibrated"]["ratio"]["lo"] > 1  # which would be a go
    assert data["calibrated"]["is_measured"] is False and data["verdict"]["decision"] == "unclear"
    assert data["verdict"]["reason"].startswith("nothing was measured; the simulation alone says")
    out = cli.text(*words)
    assert "simulated, nothing was measured, 90 % interval" in out[out.index("╭") : out.index("\n", out.index("╭"))]
    assert "UNCLEAR: nothing was measured" in out and "GO\n" not in out
    assert "alibrated (use" not in out and "Simulated (nothing was measured" in out
    assert any(line.startswith("measurement: serve") for line in data["what_would_change_it"])
    assert "nothing was measured" in cli("export", *words[1:])[2]


def test_a_calibration_that_contradicts_itself_decides_nothing(cli, tmp_path):
    path = tmp_path / "c.yaml"
    rates = "[{depth: 0, batch: 8, tok_s: 45, per_user: true}, {depth: 3, batch: 8, tok_s: 990, accept_length: 2.278}]"
    path.write_text(f"name: c\npoints: {rates}\n")
    data = cli.json("estimate", "--full-acc", ".9,.8,.7", "-c", str(path), "--batch", "8")
    assert data["calibrated"]["ratio"]["lo"] > 1  # which would be a go
    assert data["verdict"]["decision"] == "unclear"
    assert data["verdict"]["reason"].startswith("the calibration is inconsistent (a round takes 0.83 of a plain step")


def test_headline_is_the_calibrated_figure(cli):
    out = cli.text(*ASK)
    panel = out[out.index("╭") : out.index("╰")]
    assert "tok/s" in panel and "215" not in panel
    bound = out.index("Upper bound, NOT a forecast")
    assert bound < out.index("215.1") < out.index("5. Calibrated (use this one)")
    for expected in ("2.390x", "112.5 tok/s", "107.7 tok/s", "UNCLEAR", "limit 2.89"):
        assert expected in out


@pytest.mark.parametrize(
    ("full_acc", "decision"), [(".999,.998,.997,.996,.995", "go"), (".1,.01", "no-go"), (ORIGIN, "unclear")]
)
def test_verdict(cli, full_acc, decision):
    data = cli.json("estimate", "--full-acc", full_acc, "-c", "kimi_k2_5_origin")
    assert data["verdict"]["decision"] == decision
    ratio = data["calibrated"]["ratio"]
    assert {"go": ratio["lo"] > 1, "no-go": ratio["hi"] < 1, "unclear": ratio["lo"] <= 1 <= ratio["hi"]}[decision]


def test_do_not_speculate(cli):
    words = ("estimate", "--full-acc", ".05,.001", "-c", "kimi_k2_5_origin")
    assert cli.json(*words)["best_depth"] == 0
    assert "do not speculate" in cli.text(*words)


def test_depth_moves_the_headline(cli):
    data = cli.json(*ASK, "--depth", "2")
    assert data["depth"] == 2
    assert data["accept_length"]["value"] == pytest.approx(1 + 0.742 + 0.47)
    assert data["calibrated"]["tok_s"] == data["by_depth"][1]["tok_s"]
    beyond = cli.json(*ASK, "--depth", "20")
    assert len(beyond["by_depth"]) == 20
    assert any("beyond the 5 TTT steps" in w for w in beyond["warnings"])


def test_simple_rules_are_silent_at_another_batch(cli):
    data = cli.json(*ASK, "--batch", "8")
    assert data["linear"] == {}
    assert data["optimistic"]["overhead"] == 0
    assert data["calibrated"]["tok_s_per_user"]["value"] == pytest.approx(data["calibrated"]["tok_s"]["value"] / 8)


def test_a_drafter_that_never_misses(cli):
    data = cli.json("estimate", "--full-acc", "1,1,1", "-c", "kimi_k2_5_origin")
    assert data["limit"]["accept_length"] is None  # unlimited; JSON has no infinity
    assert data["accept_length"]["value"] == 4


def test_a_drafter_that_never_hits(cli):
    data = cli.json("estimate", "--full-acc", "0,0", "-c", "kimi_k2_5_origin")
    assert data["accept_length"] == {"value": 1, "lo": 1, "hi": 1}
    assert data["verdict"]["decision"] == "no-go"


def test_the_program_itself(program):
    result = program(*ASK, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["accept_length"]["value"] == pytest.approx(2.749)


def test_calibrations_are_listed(cli):
    rows = {row["name"]: row for row in cli.json("calibrations")["calibrations"]}
    assert rows["kimi_k2_5_origin"]["node"] == "rtx_pro_6000_x8"
    assert rows["kimi_k2_5_origin"]["fingerprint"] == cli.json(*ASK)["fingerprint"]
    assert "kimi_k2_5_origin" in cli.text("calibrations")


def test_a_measured_baseline_has_an_interval(cli):
    calibrated = cli.json(*ASK)["calibrated"]
    tok_s = calibrated["baseline"]["tok_s"]
    assert calibrated["baseline"]["measured"] is True
    assert tok_s["lo"] < calibrated["baseline_tok_s"] == tok_s["value"] < tok_s["hi"]
    assert calibrated["tok_s"]["value"] == pytest.approx(calibrated["ratio"]["value"] * tok_s["value"])
    assert "not measured at batch" not in cli.text(*ASK)


def test_an_invented_baseline_says_so(cli, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: c\npoints:\n- {depth: 3, tok_s: 120, accept_length: 2.3}\n")
    for words in (("-c", "kimi_k2_5_origin", "--batch", "8"), ("-c", str(path))):
        asked = ("estimate", "--full-acc", ".8,.6", *words)
        baseline = cli.json(*asked)["calibrated"]["baseline"]
        assert baseline["measured"] is False
        assert baseline["tok_s"]["hi"] > 1.2 * baseline["tok_s"]["lo"]
        out = " ".join(cli.text(*asked).replace("│", " ").split())
        shown = f"{baseline['tok_s']['value']:.1f} [{baseline['tok_s']['lo']:.1f}, {baseline['tok_s']['hi']:.1f}]"
        assert f"{shown} tok/s without speculation, which is estimated: not measured at batch" in out
        assert "rest on a baseline that is estimated" in out


def test_baselines_over_batch_sizes_say_whether_they_were_measured(cli):
    rows = cli.json(*ASK, "--batches", "1,8")["by_batch"]
    assert [row["baseline"]["measured"] for row in rows] == [True, False]
    assert all(row["baseline"]["tok_s"]["value"] == pytest.approx(row["baseline_tok_s"]) for row in rows)
    assert ", not measured" in cli.text(*ASK, "--batches", "1,8")


KIMI = ("estimate", "--full-acc", ".74,.47,.29", "-c", "kimi_k2_6_rtx_pro_6000_dcp1")


@pytest.mark.parametrize(
    ("batch", "context", "measured"),
    [(128, None, True), (2, 131072, True), (128, 131072, False), (128, 0, True), (1, 5000, False), (3, None, False)],
)
def test_a_baseline_is_measured_at_its_batch_and_context(cli, batch, context, measured):
    words = (*KIMI, "-b", str(batch), *(() if context is None else ("--context", str(context))))
    assert cli.json(*words)["calibrated"]["baseline"]["measured"] is measured
    out = " ".join(cli.text(*words).replace("│", " ").split())
    where = f"estimated: not measured at batch {batch}" + ("" if context is None else f", context {context} tokens")
    assert (where in out) is not measured


def test_baselines_over_batch_sizes_are_measured_at_the_context_asked_about(cli):
    rows = cli.json(*KIMI, "--context", "16384", "--batches", "16,64")["by_batch"]
    assert [row["baseline"]["measured"] for row in rows] == [True, False]


def test_a_baseline_without_a_recorded_context_is_not_measured_at_a_stated_one(cli):
    data = cli.json(*ASK, "--context", "8000")
    assert data["calibrated"]["baseline"]["measured"] is False and data["linear"] == {}
    assert "context 8000 tokens" in cli.text(*ASK, "--context", "8000")


def test_a_baseline_is_measured_with_its_workload(cli, tmp_path):
    path = tmp_path / "c.yaml"
    lines = ("{depth: 0, tok_s: 90, workload: chat}", "{depth: 0, tok_s: 300, batch: 4, workload: code}")
    path.write_text("name: c\npoints:\n" + "".join(f"- {line}\n" for line in lines))
    ask = ("estimate", "--full-acc", ".7,.4", "-c", str(path), "--batches", "1,4")
    # Without a name the figures are those of the workload of the fastest step, here the one of batch 1.
    for words, measured in ((("chat",), [True, False]), (("code",), [False, True]), ((), [True, False])):
        rows = cli.json(*ask, *(word for name in words for word in ("--workload", name)))["by_batch"]
        assert [row["baseline"]["measured"] for row in rows] == measured


def test_one_accuracy_recommends_no_depth_it_does_not_cover(cli):
    words = ("estimate", "--full-acc", ".8713", "-c", "kimi_k2_5_origin")
    data = cli.json(*words)
    assert data["depth"] == data["best_depth"] == 1
    beyond = data["best_beyond"]
    assert beyond["depth"] > 1 and beyond["measured"] is False
    assert beyond["tok_s"]["hi"] / beyond["tok_s"]["lo"] > 2  # its interval says how little is known
    out = cli.text(*words)
    assert "best at depth" not in out and "best, headline" in out
    assert f"extrapolated beyond the 1 step given, not measured: depth {beyond['depth']}" in out
    asked = cli.text(*words, "--depth", "7")
    assert "at depth 7 (extrapolated beyond the 1 step given)" in asked and "best at depth 1" in asked


def test_layers_are_numbered_without_gaps(cli):
    for words in (ASK, (*ASK, "--batch", "8")):
        numbers = [int(m) for m in re.findall(r"^(\d)\. ", cli.text(*words), re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1))
    assert "4. Calibrated (use this one)" in cli.text(*ASK, "--batch", "8")
