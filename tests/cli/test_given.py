"""What can be known of a drafter: kinds of accuracy, logs, counts."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from eagle_speedup.acceptance import AcceptanceCounts
from eagle_speedup.projection.bracket import OVERSTATEMENT, conditional_curve, joint_curve, marginal_curve

from .conftest import ORIGIN

PUBLISHED = (0.7011205932523408, 0.3695069132237691, 0.20591324651566492, 0.12545586495531533, 0.08118215044928648)
ON_ORIGIN = ("-c", "kimi_k2_5_origin")


def text(values):
    return ",".join(map(repr, values))


def test_published_joint_values_read_both_ways(cli):
    joint = cli.json("estimate", "--acc", text(PUBLISHED), "--kind", "joint", *ON_ORIGIN)
    assert joint["accept_length"]["value"] == pytest.approx(2.4832, abs=5e-5)
    assert [round(c, 3) for c in joint["conditionals"]] == [0.701, 0.527, 0.557, 0.609, 0.647]
    assert joint["bracket"] is None
    mistaken = cli.json("estimate", "--step-acc", text(PUBLISHED), *ON_ORIGIN)
    assert mistaken["bracket"]["independence"] == pytest.approx(2.0208, abs=5e-5)
    assert mistaken["bracket"]["frechet"] == pytest.approx(2.4832, abs=5e-5)  # falling values: the rarest is the last


def test_marginals_give_a_bracket_and_say_so(cli):
    words = ("estimate", "--step-acc", ".8,.7,.75", *ON_ORIGIN)
    data = cli.json(*words)
    length, bracket = data["accept_length"], data["bracket"]
    assert bracket == pytest.approx({"independence": 1 + 0.8 + 0.56 + 0.42, "frechet": 1 + 0.8 + 0.7 + 0.7})
    assert length["lo"] < bracket["independence"] == length["value"] < bracket["frechet"] == length["hi"]
    out = " ".join(cli.text(*words).split())
    assert "between 2.780 (independent) and 3.200 (Frechet)" in out
    assert "A bracket, not a point" in out


MARGINALS = ("--step-acc", ".8,.75,.7,.65")


def test_the_bound_of_marginals_takes_the_frechet_end(cli):
    data = cli.json("estimate", *MARGINALS, "-c", "llama_3_1_8b_h200")
    bound = data["optimistic"]
    assert bound["accept_length"] == bound["ratio"] == pytest.approx(data["bracket"]["frechet"]) == pytest.approx(3.9)
    assert data["calibrated"]["ratio"]["hi"] < bound["ratio"] and data["calibrated"]["tok_s"]["hi"] < bound["tok_s"]
    out = " ".join(cli.text("estimate", *MARGINALS, "-c", "llama_3_1_8b_h200").split())
    assert "at most 3.900x" in out and "3.093x" not in out


def test_marginals_are_shown_by_the_ends_of_their_bracket(cli):
    words = ("estimate", *MARGINALS, *ON_ORIGIN, "--batches", "1")
    data, out = cli.json(*words), cli.text(*words)
    tok_s, ratio = data["calibrated"]["tok_s"], data["calibrated"]["ratio"]
    panel = " ".join(out[out.index("╭") : out.index("╰")].split())
    assert data["calibrated"]["is_bracket"] is True and "calibrated; a bracket" in panel
    assert f"{tok_s['lo']:.1f} to {tok_s['hi']:.1f} tok/s at depth 4: {ratio['lo']:.2f}x to {ratio['hi']:.2f}x" in panel
    flat = " ".join(out.split())
    assert f"{tok_s['value']:.1f} tok/s" not in flat and f"{tok_s['value']:.1f} [" not in flat
    for rule in data["linear"].values():
        lo, hi = rule["tok_s_range"]
        ends = (data["accept_length"][end] / rule["breakeven"] * 90 for end in ("lo", "hi"))
        assert (lo, hi) == pytest.approx(tuple(ends)) and f"{lo:.1f} to {hi:.1f} tok/s from the" in flat
        assert f"{rule['tok_s']:.1f} tok/s" not in flat


def test_the_ends_of_a_bracket_hold_the_calibration_s_own_spread(cli):
    """The tempting answer takes the bracket for scatter and adds it in quadrature, so that its ends hold less."""
    wide = cli.json("estimate", *MARGINALS, *ON_ORIGIN)
    ends = [
        cli.json("estimate", "--full-acc", text(values), *ON_ORIGIN)
        for values in ((0.8, 0.6, 0.42, 0.273), (0.8, 0.75, 0.7, 0.65))
    ]
    assert wide["calibrated"]["tok_s"]["hi"] >= 0.99 * ends[1]["calibrated"]["tok_s"]["hi"]
    assert wide["calibrated"]["tok_s"]["lo"] < 1.01 * ends[0]["calibrated"]["tok_s"]["value"]
    assert wide["calibrated"]["tok_s"]["value"] == ends[0]["calibrated"]["tok_s"]["value"]


def test_the_best_depth_of_marginals_says_of_which_end_it_is(cli):
    marginals = ("--step-acc", ".8,.75,.66,.65")
    words = ("estimate", *marginals, *ON_ORIGIN, "--batches", "1,8")
    data = cli.json(*words)
    assert data["best_depth"] == 3 and data["best_depth_bracket"] == {"independence": 3, "frechet": 4}
    independent, together = (
        cli.json("estimate", "--full-acc", values, *ON_ORIGIN)["best_depth"]
        for values in (".8,.6,.396,.2574", ".8,.75,.66,.65")
    )
    assert (independent, together) == (3, 4)
    assert [row["best_depth_bracket"] for row in data["by_batch"]] == [
        {"independence": 3, "frechet": 4}, {"independence": 2, "frechet": 4}
    ]  # fmt: skip
    says = "3 is best if the steps are independent, 4 is best if they go together as much as they can"
    out = " ".join(cli.text(*words).replace("│", " ").split())
    assert f"GO; depth {says}" in out and "3 if independent, 4 at Frechet" in out
    assert f"depth: {says}; full_acc would tell" in data["what_would_change_it"]
    assert any("best depths those of independent steps" in w for w in data["warnings"])
    assert f"warning: depth {says}" in cli("export", *marginals, *ON_ORIGIN)[2]
    joint = cli.json("estimate", "--full-acc", ORIGIN, *ON_ORIGIN)
    assert joint["best_depth_bracket"] is None and joint["calibrated"]["is_bracket"] is False


def test_the_limit_of_marginals_has_both_ends(cli):
    limit = cli.json("estimate", *MARGINALS, *ON_ORIGIN)["limit"]
    deep = cli.json("estimate", *MARGINALS, *ON_ORIGIN, "--depth", "64")["accept_length"]
    assert limit["accept_length"] == pytest.approx(deep["value"]) and deep["hi"] <= limit["hi"]
    assert "if the steps are independent, each further draft" in limit["reason"]


def test_conditionals_are_multiplied(cli):
    data = cli.json("estimate", "--acc", ".742,.633,.617", "--kind", "conditional", *ON_ORIGIN)
    assert data["full_acc"] == pytest.approx([0.742, 0.742 * 0.633, 0.742 * 0.633 * 0.617])
    assert data["conditionals"] == pytest.approx([0.742, 0.633, 0.617])


def test_a_kind_that_repeats_the_option_is_accepted(cli):
    joint = cli.json("estimate", "--full-acc", ORIGIN, "--kind", "joint", *ON_ORIGIN)
    assert joint["given"]["kind"] == "joint"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--acc", ".5"), "kind = None: must be given with --acc: joint, marginal or conditional"),
        (("--acc", ".5", "--kind", "mean"), "kind = 'mean': must be one of joint, marginal, conditional"),
        (
            ("--step-acc", ".5", "--kind", "joint"),
            "kind = 'joint': must be left out with --step-acc, whose values are marginal; give them to --acc instead",
        ),
        (
            ("--full-acc", ".5", "--kind", "marginal"),
            "kind = 'marginal': must be left out with --full-acc, whose values are joint; give them to --acc instead",
        ),
        (("--step-acc", ".5,1.5"), "step_acc[1] = 1.5: must lie in [0, 1]"),
        (("--acc", ".5,nan", "--kind", "conditional"), "cond_acc[1] = nan: must lie in [0, 1]"),
        (("--step-acc", ""), "step_acc = []: must hold at least one accuracy"),
        (("--log", "/none"), "file = '/none': No such file or directory"),
        (("--counts", "/none"), "counts = '/none': No such file or directory"),
    ],
)
def test_refusals(cli, words, line):
    assert cli.refusal("estimate", *words, *ON_ORIGIN) == line


def test_a_drafter_is_described_once(cli):
    assert "not allowed with" in cli.refusal("estimate", "--acc", ".5", "--full-acc", ".5", *ON_ORIGIN)


def test_intervals_reach_down_by_what_such_figures_overstate():
    assert joint_curve([0.5]).accept_length(1).lo == pytest.approx(1.5 / 1.096)
    assert joint_curve([0.5], "invisible").accept_length(1).lo == pytest.approx(1.5 / 1.27)
    assert marginal_curve([0.5]).accept_length(1).lo == pytest.approx(1.5 / 1.035)
    assert marginal_curve([0.5], "left out").accept_length(1).lo == pytest.approx(1.5 / 1.38)
    assert conditional_curve([0.5]).accept_length(1) == joint_curve([0.5]).accept_length(1)
    assert all(0 < value < 0.4 for value in OVERSTATEMENT.values())


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 10, 16])
def test_the_middle_lies_in_its_interval_at_every_depth(depth):
    for curve in (joint_curve([0.7, 0.5, 0.4]), marginal_curve([0.7, 0.9, 0.2]), marginal_curve([1.0, 0.0])):
        length = curve.accept_length(depth)
        assert 1 <= length.lo <= length.value <= length.hi <= depth + 1


def test_a_trainer_log(cli, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("\n".join(f"val/full_acc_{k}_epoch: {v}" for k, v in enumerate((0.742, 0.47, 0.29))))
    data = cli.json("estimate", "--log", str(log), *ON_ORIGIN)
    assert data["given"]["kind"] == "joint" and data["given"]["values"] == [0.742, 0.47, 0.29]
    assert "speculators log train.log" in data["given"]["source"]
    assert any("invisible" in w for w in data["warnings"])
    refusal = cli.refusal("estimate", "--log", str(log), "--kind", "joint", *ON_ORIGIN)
    assert refusal.startswith("kind = 'joint': must be left out")


def counts(blocks=8):
    """Every block: one answer of 100 tokens, 60 or 61 rounds at depth 1 and 50 or 51 at depth 2."""
    accepted = np.zeros((blocks, 2, 3), dtype=int)
    for block in range(blocks):
        for d in (1, 2):
            rounds = 70 - 10 * d + block % 2
            full = (100 - rounds) // d
            accepted[block, d - 1, [0, d]] = rounds - full, full
    per_step = {
        "step_valid": [99, 98], "step_hits": [60, 50], "prefix_hits": [60, 40], "prefix_valid": [99, 60]
    }  # fmt: skip
    given = {"tokens": 100, "answers": 1, "covered": 95, **per_step, "accepted": accepted}
    values = {
        f.name: np.broadcast_to(np.asarray(given.get(f.name, 0)), (blocks, *SHAPES.get(f.name, ()))).copy()
        for f in fields(AcceptanceCounts)
    }
    return AcceptanceCounts(**values).to_dict()


SHAPES = {"step_valid": (2,), "step_hits": (2,), "prefix_hits": (2,), "prefix_valid": (2,), "accepted": (2, 3)}


@pytest.mark.parametrize("wrap", [lambda c: c, lambda c: {"counts": c, "mode": "greedy"}])
def test_counts_are_exact(cli, tmp_path, wrap):
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(wrap(counts())))
    data = cli.json("estimate", "--counts", str(path), *ON_ORIGIN)
    assert data["given"]["kind"] == "counts"
    assert data["accept_length"]["value"] == pytest.approx(800 / (8 * 50 + 4))
    assert data["accept_length"]["lo"] > 0.95 * data["accept_length"]["value"]
    assert len(data["by_depth"]) == 2 and data["limit"]["tail_conditional"] is None
    assert "Counted" in cli.text("estimate", "--counts", str(path), *ON_ORIGIN)
    assert "depth = 3" in cli.refusal("estimate", "--counts", str(path), *ON_ORIGIN, "--depth", "3")


@pytest.mark.parametrize(
    "content", ["", "[1]", "{}", '{"flat": 3, "ttt_steps": 1, "max_depth": 1}', "[" * 100_000, "\0"]
)
def test_counts_that_are_none(cli, tmp_path, content):
    path = tmp_path / "counts.json"
    path.write_text(content)
    assert cli.refusal("estimate", "--counts", str(path), *ON_ORIGIN).startswith("counts")


def test_counts_without_answers(cli, tmp_path):
    path = tmp_path / "counts.json"
    state = counts()
    path.write_text(json.dumps({**state, "flat": [[0] * len(row) for row in state["flat"]]}))
    assert "hold no answer" in cli.refusal("estimate", "--counts", str(path), *ON_ORIGIN)


def test_one_block_of_answers_has_no_spread(cli, tmp_path):
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(counts(blocks=1)))
    data = cli.json("estimate", "--counts", str(path), *ON_ORIGIN, "--batches", "1,2")
    assert (data["accept_length"]["lo"], data["accept_length"]["hi"]) == (1, 3)
