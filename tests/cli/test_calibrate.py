from __future__ import annotations

import datetime
import gzip
import json
import os
import random

import pytest

from eagle_speedup.cli.calibrating import parse_source
from eagle_speedup.throughput import load_calibration
from eagle_speedup.throughput.simulated import prior_from_steps

from ..readers.test_engine_logs import PREFILL, decode, stats


def test_from_logs_to_an_estimate(cli, logs, tmp_path):
    out = tmp_path / "node.yaml"
    words = ("calibrate", *map(str, logs), "--name", "mine", "--node", "rtx_pro_6000_x8", "--out", str(out))
    text = cli.text(*words)
    assert "base.log: vllm log: 4 used, 1 dropped (start not seen: 1 dropped)" in text
    assert f"written to {out}" in text
    calibration = load_calibration(out)
    assert (calibration.name, calibration.engine, calibration.node) == ("mine", "vllm", "rtx_pro_6000_x8")
    assert [(p.depth, p.tok_s) for p in calibration.points] == [(0, 50.0), (3, 80.0)]
    assert [s.text.split(":")[0] for s in calibration.sources] == ["base.log", "spec.log"]
    assert calibration.fingerprint in text
    data = cli.json("estimate", "--full-acc", ".8,.5,.367", "-c", str(out))
    assert data["fingerprint"] == calibration.fingerprint
    assert data["calibrated"]["tok_s"]["value"] == pytest.approx(80, rel=0.1)


def test_json_report(cli, logs):
    data = cli.json("calibrate", *map(str, logs))
    assert data["files"][1]["used"] == 4
    assert data["files"][1]["dropped"] == {"start not seen": 1}
    assert data["written"] is None
    assert data["points"][1]["round_ms"] == pytest.approx(1000 * (1 + 500 / 300) / 80, rel=1e-3)
    assert abs(data["points"][1]["off_fit"]) < 0.2


def test_hints_and_mixed_sources(cli, tmp_path):
    sglang, result, points = tmp_path / "s.log", tmp_path / "r.json", tmp_path / "p.yaml"
    sglang.write_text("\n".join([PREFILL, *[decode(100, 1, 2.4, 0.84)] * 4]))
    result.write_text(json.dumps({"backend": "sglang", "mean_tpot_ms": 15.0, "max_concurrency": 1}))
    points.write_text("points:\n- {depth: 5, tok_s: 120, accept_length: 2.9}\n")
    data = cli.json("calibrate", f"{sglang}@depth=3,workload=chat", f"{result}@depth=0", str(points))
    assert [(p["depth"], p.get("workload")) for p in data["points"]] == [(3, "chat"), (0, None), (5, None)]


def test_points_from_yaml_keep_their_sources_and_setup(cli, tmp_path):
    path, out = tmp_path / "p.yaml", tmp_path / "c.yaml"
    path.write_text(
        "name: n\nengine: vllm\nsources:\n- {id: a, text: page}\npoints:\n- {depth: 0, tok_s: 9, source: a}\n"
    )
    cli.text("calibrate", str(path), "--engine-version", "0.11", "-o", str(out))
    calibration = load_calibration(out)
    assert (calibration.name, calibration.engine, calibration.engine_version) == ("n", "vllm", "0.11")
    assert calibration.sources[0].text == "page"


def test_the_result_is_a_calibration_of_the_same_fingerprint(cli, tmp_path, logs):
    out = tmp_path / "c.yaml"
    data = cli.json("calibrate", *map(str, logs), "-o", str(out))
    again = cli.json("calibrate", str(out))
    assert data["fingerprint"] == again["fingerprint"] == load_calibration(out).fingerprint


@pytest.mark.parametrize(
    ("hints", "line"),
    [
        ("dpth=3", "has no hint 'dpth'; did you mean 'depth'?"),
        ("depth", "has no hint 'depth'"),
        ("depth=three", "depth = 'three': must be a whole number"),
        ("depth=-1", "depth = -1: must be a whole number >= 0"),
        ("format=csv", "format = 'csv': must be one of vllm-log, sglang-log, prometheus, bench-json"),
    ],
)
def test_hints_that_are_none(cli, logs, hints, line):
    assert line in cli.refusal("calibrate", f"{logs[1]}@{hints}")


def test_sources_that_give_nothing(cli, tmp_path, logs):
    empty, odd = tmp_path / "empty", tmp_path / "odd"
    empty.write_text("")
    odd.write_bytes(bytes(range(256)) * 9)
    assert "is empty" in cli.refusal("calibrate", str(empty))
    assert "is not text" in cli.refusal("calibrate", str(odd))
    assert "No such file" in cli.refusal("calibrate", str(tmp_path / "none.log"))
    short = tmp_path / "short.log"
    short.write_text(stats(0, 50.0, 1))
    refusal = cli.refusal("calibrate", str(short))
    assert "gave no point" in refusal and "(start not seen: 1 dropped)" in refusal
    assert "out" in cli.refusal("calibrate", str(logs[0]), "-o", str(tmp_path / "none" / "c.yaml"))
    assert "must end in .yaml" in cli.refusal("calibrate", str(logs[0]), "-o", str(tmp_path / "c.txt"))


def test_a_simulated_prior_alone_and_corrected_by_points(cli, logs, tmp_path, monkeypatch):
    asked = []

    def simulated(node, verifier, *, engine, gpus, base):
        asked.append((node, verifier, engine, gpus, base.elasticity))
        return prior_from_steps({1: 12.0, 2: 15.0, 4: 20.0}, base=base), "a simulator"

    monkeypatch.setattr("eagle_speedup.cli.calibrating.simulated_prior", simulated)
    setup = ("--simulate", "--node", "rtx_pro_6000_x8", "--verifier", "kimi_k2_5")
    out = tmp_path / "c.yaml"
    alone = cli.json("calibrate", *setup, "--parallelism", "tp4", "-o", str(out))
    assert alone["points"] == [] and alone["warnings"][0].startswith("nothing was measured")
    assert asked == [("rtx_pro_6000_x8", "kimi_k2_5", "sglang", 4, 0.20)]
    answer = cli.json("estimate", "--full-acc", ".8,.5,.367", "-c", str(out))
    assert answer["calibrated"]["baseline_tok_s"] == pytest.approx(1000 / 12, rel=0.02)
    assert answer["warnings"][0].startswith("nothing was measured") and answer["verdict"]["decision"] == "unclear"
    corrected = cli.json("calibrate", *map(str, logs), *setup, "-o", str(out))
    assert len(corrected["points"]) == 2 and asked[-1][2:4] == ("vllm", 8)
    answer = cli.json("estimate", "--full-acc", ".8,.5,.367", "-c", str(out))
    assert answer["calibrated"]["baseline_tok_s"] == pytest.approx(50.0, rel=0.05)
    assert load_calibration(out).sources[-1].text == "prior simulated by a simulator"


@pytest.mark.parametrize("text", ["tp" + " " * 200_000 + "x", "tp" * 100_000, "tp =  4"])
def test_the_parallelism_is_read_in_time(cli, tmp_path, monkeypatch, text):
    asked = []

    def simulated(node, verifier, *, engine, gpus, base):
        asked.append(gpus)
        return prior_from_steps({1: 12.0, 2: 15.0}, base=base), "a simulator"

    monkeypatch.setattr("eagle_speedup.cli.calibrating.simulated_prior", simulated)
    setup = ("--simulate", "--node", "rtx_pro_6000_x8", "--verifier", "kimi_k2_5")
    cli.json("calibrate", *setup, "--parallelism", text)
    assert asked == [4 if "4" in text else 8]


def test_nothing_to_calibrate_with(cli):
    assert "must name at least one file: serve without speculation" in cli.refusal("calibrate")
    assert (
        cli.refusal("calibrate", "--simulate", "--node", "h100_x8") == "verifier = None: must be given with --simulate"
    )
    said = cli.refusal("calibrate", "--simulate", "--node", "h100", "--verifier", "kimi_k2_5")
    assert said == "node = 'h100': unknown name; did you mean 'h100_x8'?"


def test_files_of_two_engines_are_not_mixed(cli, logs, tmp_path):
    sglang = tmp_path / "s.log"
    sglang.write_text("\n".join([PREFILL, *[decode(90, 1)] * 4]))
    assert "differs from 'vllm'" in cli.refusal("calibrate", str(logs[0]), str(sglang))


def test_a_name_that_holds_an_at_sign(tmp_path):
    path = tmp_path / "a@b.log"
    path.write_text("x")
    assert parse_source(str(path))[0] == path
    assert parse_source(f"{path}@depth=2")[0] == path


def test_off_fit_is_the_residual_of_the_model(cli, tmp_path):
    path = tmp_path / "c.yaml"
    lines = ["name: c", "points:"]
    lines += [  # wall clock: every token takes 2 ms outside decoding
        f"- {{depth: {d}, tok_s: {1000 / (ms / al + 2)}, accept_length: {al}}}"
        for d, ms, al in ((0, 20, 1), (1, 24, 1.7), (3, 31, 2.4), (5, 39, 2.9))
    ]
    path.write_text("\n".join(lines))
    data = cli.json("calibrate", str(path))
    model = load_calibration(path).model
    assert sorted(p["off_fit"] for p in data["points"]) == sorted(model.residuals)
    assert data["points"][0]["off_fit"] != pytest.approx(
        data["points"][0]["round_ms"] / model.round_ms(0).value - 1, abs=1e-9
    )


def test_points_that_are_not_used_have_no_residual(cli, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: c\npoints:\n- {depth: 3, tok_s: 99}\n- {depth: 0, tok_s: 50}\n")
    data = cli.json("calibrate", str(path))
    assert data["points"][0]["off_fit"] is None and data["points"][1]["off_fit"] is not None


@pytest.mark.parametrize(
    ("hints", "line"),
    [
        ("depth=1", "depth = 1: contradicts spec.log, which says 3: leave the hint out"),
        ("depth=0", "depth = 0: contradicts spec.log, which says 3: leave the hint out"),
        ("batch=2", "batch = 2: contradicts spec.log, which says 1: leave the hint out"),
    ],
)
def test_hints_that_contradict_the_log(cli, logs, hints, line):
    assert cli.refusal("calibrate", f"{logs[1]}@{hints}") == line
    assert cli.json("calibrate", f"{logs[1]}@depth=3,batch=1")["points"][0]["depth"] == 3


def test_hints_that_contradict_a_benchmark(cli, tmp_path):
    path = tmp_path / "v_spec.json"
    path.write_text(json.dumps({"mean_tpot_ms": 18.0, "max_concurrency": 8, "spec_decode_acceptance_length": 2.4}))
    said = cli.refusal("calibrate", f"{path}@batch=99,depth=3")
    assert said == "batch = 99: contradicts v_spec.json, which says 8: leave the hint out"


def test_a_file_that_breaks_off_is_named_as_such(cli, logs, tmp_path):
    data = gzip.compress(logs[1].read_bytes() + random.Random(1).randbytes(20_000))
    broken, empty = tmp_path / "spec.log.gz", tmp_path / "empty.log.gz"
    broken.write_bytes(data[:-8000])
    assert "the gzip file is cut off after" in cli.text("calibrate", str(broken))
    empty.write_bytes(data[:12])
    assert cli.refusal("calibrate", str(empty)).endswith("is a gzip file that is cut off before any text")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--node", "nope"), "node = 'nope': unknown name; choose from b200_x8"),
        (("--node", "h100"), "node = 'h100': unknown name; did you mean 'h100_x8'?"),
        (("--verifier", "kimi_k2_7"), "verifier = 'kimi_k2_7': unknown name; did you mean 'kimi_k2_"),
        (("--draft-sampling", "foo"), "draft_sampling = 'foo': must be one of greedy, onehot, rejection"),
        (("--draft-sampling", "greedi"), "one of greedy, onehot, rejection; did you mean 'greedy'?"),
    ],
)
def test_a_setup_that_does_not_exist(cli, logs, words, line):
    assert line in cli.refusal("calibrate", str(logs[0]), *words)


def test_a_setup_in_a_file_that_does_not_exist(cli, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: c\ndraft_sampling: foo\npoints:\n- {depth: 0, tok_s: 50}\n")
    for words in (("calibrate", str(path)), ("estimate", "--full-acc", ".5", "-c", str(path))):
        assert cli.refusal(*words) == "draft_sampling = 'foo': must be one of greedy, onehot, rejection"


def test_hints_on_a_file_of_points_are_refused(cli, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("points:\n- {depth: 0, tok_s: 50}\n")
    line = f"source = '{path}@...': takes no hints: its points say themselves what they are of"
    assert cli.refusal("calibrate", f"{path}@depth=5,batch=16") == line


def test_the_same_log_twice(cli, logs, tmp_path):
    refusal = cli.refusal("calibrate", str(logs[0]), str(logs[1]), f"{logs[0]}@workload=other")
    assert refusal == f"source = {str(logs[0])!r}: is given twice: its points would count twice"
    copy = tmp_path / "copy.log"
    copy.write_bytes(logs[0].read_bytes())
    refusal = cli.refusal("calibrate", str(logs[0]), str(copy))
    assert refusal == f"source = {str(copy)!r}: holds the same as {logs[0]}: its points would count twice"


def test_a_source_has_the_date_of_its_log(cli, logs, tmp_path):
    sglang, undated, out = tmp_path / "s.log", tmp_path / "u.log", tmp_path / "c.yaml"
    os.utime(logs[0], (0, datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC).timestamp()))
    cli.text("calibrate", str(logs[0]), "-o", str(out))  # says 03-01, which in February was last year's
    (source,) = load_calibration(out).sources
    assert source.date == "2025-03-01" and "prints no year" in source.text
    sglang.write_text("\n".join([decode(90, 1, prefix="[2025-10-22 10:27:57 TP0] ")] * 4))
    cli.text("calibrate", str(sglang), "-o", str(out))
    (source,) = load_calibration(out).sources
    assert source.date == "2025-10-22" and "dated" not in source.text
    undated.write_text("\n".join([decode(90, 1, prefix="")] * 4))
    os.utime(undated, (0, datetime.datetime(2026, 2, 1, 12, tzinfo=datetime.UTC).timestamp()))
    cli.text("calibrate", str(undated), "-o", str(out))
    (source,) = load_calibration(out).sources
    assert source.date == "2026-02-01" and "undated, day of the file" in source.text


def test_a_verifier_file_beside_the_points_decides_the_prior_for_good(cli, tmp_path):
    folder = tmp_path / "points"
    folder.mkdir()
    (folder / "my.yaml").write_text("name: my\ntitle: My dense model\nmoe: false\n")
    points = folder / "points.yaml"
    points.write_text(
        "verifier: my.yaml\npoints:\n- {depth: 0, tok_s: 90}\n- {depth: 3, tok_s: 110, accept_length: 2.3}\n"
    )
    first, second = str(tmp_path / "first.yaml"), str(tmp_path / "second.yaml")
    cli("calibrate", str(points), "-o", first)
    (folder / "my.yaml").unlink()
    cli("calibrate", first, "-o", second)  # read again where the verifier's file is gone
    by_name = load_calibration("llama_3_1_8b_h200").effective_prior
    assert load_calibration(first).effective_prior == load_calibration(second).effective_prior == by_name
