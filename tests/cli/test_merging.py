"""`calibrate` with several files: nothing that one says is lost, nor two that differ mixed."""

from __future__ import annotations

import pytest

from eagle_speedup.throughput import load_calibration

from ..readers.test_engine_logs import decode


def test_logs_of_two_models_are_refused(cli, tmp_path):
    """They may be one model under two paths: then the option says so."""
    paths = [tmp_path / f"{name}.log" for name in ("one", "two")]
    for path in paths:
        header = f"[2025-10-22 10:27:00 TP0] server_args=ServerArgs(model_path='{path.stem}', tp_size=8)"
        tok_s = 90 if path.stem == "one" else 60
        path.write_text("\n".join([header, *[decode(tok_s, 1, prefix="[2025-10-22 10:27:57 TP0] ")] * 4]))
    line = "model = 'two': of two.log differs from 'one' of the files before it; --verifier says which one holds"
    assert cli.refusal("calibrate", *map(str, paths)) == line
    assert len(cli.json("calibrate", *map(str, paths), "--verifier", "kimi_k2_5")["points"]) == 2


def files(tmp_path, **texts):
    """Files of points: one at depth 0 each, of another rate, and the lines given."""
    for rate, (name, lines) in enumerate(texts.items(), 50):
        point = "- {depth: 0, tok_s: " + str(rate) + (", source: s1}" if "sources" in lines else "}")
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\n{lines}\npoints:\n{point}\n")
    return [str(tmp_path / f"{name}.yaml") for name in texts]


def test_what_one_file_gives_another_does_not_take_away(cli, tmp_path):
    rule = "simple_models:\n  {}: {{kind: linear_breakeven, baseline_tok_s: 50, breakeven_accept_length: 2.2}}"
    first = f"verifier: kimi_k2_5\nmoe: true\nnotes: One.\nprior: {{noise: 0.05}}\n{rule.format('a')}"
    given = files(tmp_path, x=first, y=f"notes: Two.\nprior: {{growth: 0.4}}\n{rule.format('b')}", z="")
    for order in (given, given[::-1]):
        out = tmp_path / "out.yaml"
        cli.text("calibrate", *order, "-o", str(out))
        merged = load_calibration(out)
        prior = merged.effective_prior
        assert (prior.noise, prior.growth, prior.elasticity) == (0.05, 0.4, 0.20)
        assert sorted(merged.simple_models) == ["a", "b"] and len(merged.points) == 3
        assert sorted((merged.notes or "").split()) == ["One.", "Two."]


@pytest.mark.parametrize("words", [("--verifier", "llama_3_1_8b"), ()])
def test_a_prior_is_completed_for_the_verifier_that_holds_in_the_end(cli, tmp_path, words):
    given = files(tmp_path, x="prior: {noise: 0.05}", y="verifier: kimi_k2_5" if not words else "")
    cli.text("calibrate", *given, *words, "-o", str(tmp_path / "out.yaml"))
    prior = load_calibration(tmp_path / "out.yaml").effective_prior
    assert (prior.noise, prior.elasticity) == (0.05, 0.08 if words else 0.20)


@pytest.mark.parametrize(
    ("x", "y", "line"),
    [
        (
            "node: h100_x8",
            "node: h200_x8",
            "node = 'h200_x8': of y.yaml differs from 'h100_x8' of the files before it; ",
        ),
        ("verifier: kimi_k2_5", "verifier: kimi_k2_6", "verifier = 'kimi_k2_6': of y.yaml differs from 'kimi_k2_5' of"),
        (
            "engine: vllm",
            "engine: sglang",
            "engine = 'sglang': of y.yaml differs from 'vllm' of the files before it; --e",
        ),
        ("engine_version: a", "engine_version: b", "'a' of the files before it; --engine-version says which one holds"),
        (
            "parallelism: tp8",
            "parallelism: tp4",
            "parallelism = 'tp4': of y.yaml differs from 'tp8' of the files before",
        ),
        (
            "draft_sampling: greedy",
            "draft_sampling: onehot",
            "draft_sampling = 'onehot': of y.yaml differs from 'greedy",
        ),
        ("moe: true", "moe: false", "moe = False: of y.yaml differs from True of the files before it"),
        (
            "prior: {noise: 0.1}",
            "prior: {noise: 0.2}",
            "prior.noise = 0.2: of y.yaml differs from 0.1 of the files bef",
        ),
        (
            "simple_models: {a: {kind: optimistic_overhead, baseline_tok_s: 50, draft_overhead: 0.1}}",
            "simple_models: {a: {kind: optimistic_overhead, baseline_tok_s: 50, draft_overhead: 0.2}}",
            "'draft_overhead': 0.2}: of y.yaml differs from {'kind': 'optimistic_overhead', 'baseline_tok_s'",
        ),
    ],
)
def test_files_of_different_setups_are_not_mixed(cli, tmp_path, x, y, line):
    assert line in cli.refusal("calibrate", *files(tmp_path, x=x, z="", y=y))
    option, value = y.split(": ", 1)
    if option not in ("moe", "prior", "simple_models"):  # what is said on the command line decides
        out = str(tmp_path / "out.yaml")
        cli("calibrate", *files(tmp_path, x=x, y=y), f"--{option.replace('_', '-')}", value, "-o", out)
        assert getattr(load_calibration(out), option) == value


def test_a_file_of_points_and_a_log_of_another_engine(cli, logs, tmp_path):
    (path,) = files(tmp_path, x="engine: sglang")
    said = cli.refusal("calibrate", path, str(logs[0]))
    assert said == (
        "engine = 'vllm': of base.log differs from 'sglang' of the files before it; --engine says which one holds"
    )
    assert "of x.yaml differs from 'vllm'" in cli.refusal("calibrate", str(logs[0]), path)
    assert len(cli.json("calibrate", str(logs[0]), path, "--engine", "vllm")["points"]) == 2


def test_the_kind_of_a_verifier_that_does_not_hold_is_left_out(cli, tmp_path):
    given = files(tmp_path, x="verifier: ours\nmoe: false", y="verifier: theirs\nmoe: true")
    cli.text("calibrate", *given, "--verifier", "kimi_k2_5", "-o", str(tmp_path / "out.yaml"))
    assert load_calibration(tmp_path / "out.yaml").verifier_moe is True


def test_sources_of_the_same_name_stay_apart(cli, logs, tmp_path):
    one, other = (f"sources: [{{id: s1, text: {text}}}, {{id: s1_2, text: both}}]" for text in ("one", "other"))
    given = files(tmp_path, x=one, y=other, z=one, w="sources: [{id: s2, text: log}, {id: s1, text: one}]")
    out = tmp_path / "out.yaml"
    cli.text("calibrate", *given, "-o", str(out))
    merged = load_calibration(out)
    assert [(s.id, s.text) for s in merged.sources] == [
        ("s1", "one"), ("s1_2", "both"), ("s1_3", "other"), ("s2", "log"),
    ]  # fmt: skip
    assert [(p.tok_s, p.source) for p in merged.points] == [(50, "s1"), (51, "s1_3"), (52, "s1"), (53, "s1")]
    cli.text("calibrate", given[3], str(logs[0]), "-o", str(out))
    merged = load_calibration(out)
    assert [s.id for s in merged.sources] == ["s2", "s1", "s3"] and merged.points[-1].source == "s3"
