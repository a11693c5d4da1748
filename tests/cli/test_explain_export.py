from __future__ import annotations

import json
import shlex

import pytest

from eagle_speedup.cli.exports import _schedule
from eagle_speedup.throughput import load_node, load_verifier
from eagle_speedup.throughput.backtest import PROTOCOLS
from eagle_speedup.throughput.budget import all_reduce_us, distinct_experts, round_budget, weight_gb
from eagle_speedup.throughput.specs import config_names, config_path

from .conftest import ORIGIN

ON_ORIGIN = ("--full-acc", ORIGIN, "-c", "kimi_k2_5_origin")


class TestExplain:
    @pytest.mark.parametrize(
        ("tokens", "experts", "gb"), [(1, 8.0, 33), (2, 15.8, 45), (4, 31.0, 67), (6, 45.6, 89), (8, 59.5, 110)]
    )
    def test_weights_that_a_step_reads(self, tokens, experts, gb):
        verifier = load_verifier("kimi_k2_5")
        assert distinct_experts(verifier, tokens) == pytest.approx(experts, abs=0.05)
        assert weight_gb(verifier, tokens) == pytest.approx(gb, abs=0.6)

    def test_all_reduce_latency_is_interpolated(self):
        custom = [a for a in load_node("rtx_pro_6000_x8").all_reduce if a.variant == "custom, PCIe switches"]
        assert all_reduce_us(custom, 8192) == 9.2
        assert 9.2 < all_reduce_us(custom, 14336) < 16.5
        assert all_reduce_us(custom, 10) == 7.5

    def test_only_the_bytes_of_an_all_reduce_above_the_sizes_take_longer(self):
        node = load_node("rtx_pro_6000_x8")
        nccl = [a for a in node.all_reduce if a.variant == "NCCL, switches"]
        extra = 3 * 262144
        assert all_reduce_us(nccl, 4 * 262144, 20.0) == pytest.approx(28.0 + extra / 20_000)
        slope = (28.0 - 24.1) / (262144 - 65536)
        assert all_reduce_us(nccl, 4 * 262144) == pytest.approx(28.0 + extra * slope)
        assert all_reduce_us(nccl[-1:], 4 * 262144) == 28.0
        assert all_reduce_us(nccl, 262144, 20.0) == 28.0

    @pytest.mark.parametrize("batch", ["32", "64", "128"])
    def test_the_floor_of_a_large_batch_is_a_floor(self, cli, batch):
        data = cli.json("explain", "-c", "kimi_k2_6_rtx_pro_6000_dcp1", "--batch", batch)
        for name in ("step", "round"):
            assert 0 < data[name]["floor_ms"] < data[name]["measured_ms"]
            assert data[name]["all_reduce_ms"] < data[name]["all_reduce_slow_ms"]
        assert not any("exceeds" in w for w in data["warnings"])
        size = data["step"]["all_reduce_bytes"]
        each_us = 28.0 + (size - 262144) * 2 * 7 / 8 / 37_600  # a bus figure counts 2 * 7 / 8 of the message
        assert data["step"]["all_reduce_ms"] == pytest.approx(120 * each_us / 1000)

    def test_a_floor_above_the_measured_time_gives_no_lever(self, cli):
        words = ("explain", "-c", "kimi_k2_6_rtx_pro_6000_dcp1", "--gpus", "1")
        data = cli.json(*words)
        assert data["step"]["rest_ms"] < 0 and data["round"]["rest_ms"] < 0
        assert data["levers"] == []
        for name, part in (("plain step", "step"), ("round", "round")):
            floor, time = data[part]["floor_ms"], data[part]["measured_ms"]
            says = f"the floor of the {name}, {floor:.2f} ms, exceeds its measured time, {time:.2f} ms"
            assert any(w.startswith(says) for w in data["warnings"])
        out = " ".join(cli.text(*words).split())
        assert "so no lever is computed from its times" in out and "What each lever would buy" not in out
        levers = cli.json(*words, "--full-acc", ORIGIN)["levers"]
        assert levers and all(lever["saves_ms"] is None for lever in levers)

    def test_another_node_or_verifier_than_the_calibrations(self, cli, tmp_path):
        words = ("explain", "-c", "kimi_k2_5_origin")
        for field, other, recorded in (
            ("node", "b200_x8", "rtx_pro_6000_x8"),
            ("verifier", "kimi_k2_6", "kimi_k2_5"),
        ):
            says = f"{field} = '{other}': the calibration 'kimi_k2_5_origin' was measured with '{recorded}'"
            assert cli.json(*words, f"--{field}", other)["warnings"][0].startswith(says)
            copy = tmp_path / f"{field}.yaml"
            copy.write_bytes(config_path(field, recorded).read_bytes())
            for same in (recorded, str(copy)):
                assert not any("was measured with" in w for w in cli.json(*words, f"--{field}", same)["warnings"])
        path = tmp_path / "c.yaml"
        path.write_text("name: c\nnode: two boxes\npoints:\n- {depth: 0, tok_s: 90}\n")
        told = cli.json("explain", "-c", str(path), "--node", "b200_x8", "--verifier", "kimi_k2_5")["warnings"]
        assert told[0].startswith("node = 'b200_x8': the calibration 'c' was measured with 'two boxes'")
        assert not any(w.startswith("verifier") for w in told)  # the calibration records none

    def test_parts_add_up(self, cli):
        data = cli.json("explain", "-c", "kimi_k2_5_origin", "--depth", "3")
        for name, tokens in (("step", 1), ("round", 4)):
            part = data[name]
            floors = part["weights_ms"] + part["all_reduce_ms"] + part["draft_ms"]
            assert part["tokens"] == tokens
            assert part["floor_ms"] == pytest.approx(floors)
            assert part["floor_ms"] + part["rest_ms"] == pytest.approx(part["measured_ms"])
        assert data["step"]["weights_ms"] == pytest.approx(2.3, abs=0.05)
        assert data["round"]["weights_ms"] == pytest.approx(4.7, abs=0.05)
        assert data["round"]["draft_ms"] / 3 == pytest.approx(0.28, abs=0.01)
        assert data["step"]["draft_ms"] == 0

    def test_levers(self, cli):
        data = cli.json("explain", *ON_ORIGIN)
        gains = [lever["gain"] for lever in data["levers"]]
        assert gains == sorted(gains, reverse=True) and min(gains) > 0
        names = " ".join(lever["name"] for lever in data["levers"])
        for expected in ("accuracy: one more point of step 1", "drafter cost", "all-reduce", "launches"):
            assert expected in names
        assert "What each lever would buy" in cli.text("explain", *ON_ORIGIN)

    def test_context_adds_its_keys_and_values(self, cli):
        near, far = (
            cli.json("explain", "-c", "kimi_k2_5_origin", "--context", c)["round"]["cache_ms"]
            for c in ("1000", "100000")
        )
        assert far == pytest.approx(100 * near)
        assert cli.json("explain", "-c", "kimi_k2_5_origin")["round"]["cache_ms"] is None

    def test_node_and_verifier_must_be_known(self, cli, tmp_path):
        path = tmp_path / "c.yaml"
        path.write_text("name: c\npoints:\n- {depth: 0, tok_s: 90}\n")
        assert cli.refusal("explain", "-c", str(path)).startswith("node = None: must be given")
        assert "verifier = None" in cli.refusal("explain", "-c", str(path), "--node", "rtx_pro_6000_x8")
        assert "unknown name" in cli.refusal("explain", "-c", str(path), "--node", "nope", "--verifier", "kimi_k2_5")
        assert "depth = 0" in cli.refusal("explain", "-c", "kimi_k2_5_origin", "--depth", "0")

    def test_a_node_and_verifier_given_as_files(self, cli, tmp_path):
        for group, name in (("node", "rtx_pro_6000_x8"), ("verifier", "kimi_k2_5")):
            (tmp_path / f"{group}.yaml").write_bytes(config_path(group, name).read_bytes())
        path = tmp_path / "c.yaml"
        setup = "node: node.yaml\nverifier: verifier.yaml\n"  # beside the calibration, not where the command runs
        path.write_text(f"name: c\n{setup}points:\n- {{depth: 0, tok_s: 90}}\n")
        assert cli.json("explain", "-c", str(path))["verifier"].startswith("Kimi-K2.5")

    def test_a_missing_constant_is_named(self, cli, tmp_path):
        path = tmp_path / "v.yaml"
        path.write_text("name: v\ntitle: t\nmoe: false\n")
        refusal = cli.refusal("explain", "-c", "kimi_k2_5_origin", "--verifier", str(path))
        assert refusal == "v.constants.hidden_size = None: is needed to explain a round"

    @pytest.mark.parametrize("verifier", config_names("verifier"))
    @pytest.mark.parametrize("node", config_names("node"))
    def test_every_shipped_node_and_verifier(self, node, verifier):
        one, all_of_them = (
            round_budget(
                load_node(node),
                load_verifier(verifier),
                depth=3,
                batch=2,
                measured_ms=50.0,
                context_tokens=1000,
                gpus=g,
            )
            for g in (1, None)
        )
        assert one.all_reduces == 0 < all_of_them.all_reduces
        assert one.weights_ms > all_of_them.weights_ms > 0
        assert (one.cache_ms or 0) > 0 and one.floor_ms + one.rest_ms == pytest.approx(50.0)

    def test_one_accelerator_has_nothing_to_reduce(self, cli):
        words = ("explain", "-c", "llama_3_1_8b_h200", "--node", "h200_x8", "--gpus", "1")
        assert "all-reduce" not in cli.text(*words)
        assert cli.json(*words)["round"]["all_reduce_note"] is None

    def test_beyond_what_was_measured_it_warns_and_shows_intervals(self, cli):
        words = ("explain", "-c", "kimi_k2_5_origin", "--batch", "64", "--depth", "20")
        data = cli.json(*words)
        out = " ".join(cli.text(*words).split())
        for warning in ("batch 64 is outside the calibrated range 1..1", "how a round grows with depth is a prior"):
            assert any(warning in w for w in data["warnings"]) and warning in out
        assert data["step_ms"]["lo"] < data["step_ms"]["value"] < data["step_ms"]["hi"]
        assert f"{data['round_ms']['value']:.2f} [{data['round_ms']['lo']:.2f}, {data['round_ms']['hi']:.2f}]" in out

    def test_fewer_accelerators(self, cli):
        data = cli.json("explain", "-c", "kimi_k2_5_origin", "--gpus", "4")
        assert data["round"]["all_reduce_ms"] is None  # measured over 8 only
        note = "were measured for 8 accelerators and are not known for 4, so the floor leaves their time out"
        assert note in data["round"]["all_reduce_note"] and any(note in w for w in data["warnings"])
        out = " ".join(cli.text("explain", "-c", "kimi_k2_5_origin", "--gpus", "4").split())
        assert note in out and "floor without all-reduces" in out and "not known" in out
        assert cli.json("explain", "-c", "kimi_k2_5_origin")["round"]["all_reduce_note"] is None
        bare = cli.json("explain", "-c", "kimi_k2_5_origin", "--node", "b200_x8")
        assert "no all-reduce of b200_x8 was measured" in bare["round"]["all_reduce_note"]
        assert cli.refusal("explain", "-c", "kimi_k2_5_origin", "--gpus", "9") == (
            "gpus = 9: must be a whole number in [1, 8]"
        )


class TestExport:
    def test_vllm(self, cli):
        out = cli.output("export", *ON_ORIGIN, "--depth", "3", "--drafter", "my drafter")
        flag, value = shlex.split(out)
        assert flag == "--speculative-config"
        assert json.loads(value) == {"method": "eagle3", "model": "my drafter", "num_speculative_tokens": 3}

    def test_the_best_depth_is_the_default(self, cli):
        best = cli.json("estimate", *ON_ORIGIN)["best_depth"]
        data = json.loads(cli.output("export", *ON_ORIGIN, "--format", "json"))
        assert data["depth"] == data["vllm"]["speculative_config"]["num_speculative_tokens"] == best

    def test_sglang(self, cli):
        out = cli.output("export", *ON_ORIGIN, "--depth", "3", "--format", "sglang")
        assert "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4" in out

    def test_table(self, cli):
        rows = [line.split(",") for line in cli.output("export", *ON_ORIGIN, "--format", "table").splitlines()]
        assert rows[0] == ["depth", "accept_length", "lo", "hi", "accepted_at_last_position", "extrapolated"]
        assert [float(row[1]) for row in rows[1:6]] == pytest.approx([1.742, 2.212, 2.502, 2.652, 2.749])
        assert [float(row[4]) for row in rows[1:6]] == pytest.approx([0.742, 0.47, 0.29, 0.15, 0.097], abs=1e-4)
        assert [row[5] for row in rows[1:]] == ["0"] * 5 + ["1"] * 11

    def test_a_drafter_that_does_not_gain(self, cli):
        for name in ("vllm", "sglang"):
            out = cli.output("export", "--full-acc", ".05,.01", "-c", "kimi_k2_5_origin", "--format", name)
            assert out.startswith("# do not speculate")

    def test_a_depth_beyond_the_steps_is_named_an_extrapolation(self, cli):
        words = ("export", "--full-acc", ".8713", "-c", "kimi_k2_5_origin")
        assert json.loads(cli.output(*words, "--format", "json"))["depth"] == 1
        _, _, err = cli(*words, "--depth", "7")
        assert "depth 7 is extrapolated: beyond the 1 TTT steps that were given" in err

    def test_schedule(self):
        assert _schedule([(1, 3), (4, 3), (16, 2), (64, 0)]) == ((1, 10, 3), (11, 40, 2), (41, 64, 0))
        assert _schedule([]) == ()
        assert _schedule([(1, 3), (2, 1)]) == ((1, 1, 3), (2, 2, 1))

    def test_schedule_in_the_flag(self, cli):
        data = json.loads(cli.output("export", *ON_ORIGIN, "--batches", "1,64", "--format", "json"))
        rows = data["schedule"]
        assert rows[0][0] == 1 and rows[-1][1] == 64
        config = data["vllm"]["speculative_config"]
        assert ("num_speculative_tokens_per_batch_size" in config) == (len(rows) > 1)

    def test_refusals(self, cli):
        assert "must be one of vllm" in cli.refusal("export", *ON_ORIGIN, "--format", "yaml")
        assert "depth = 99" in cli.refusal("export", *ON_ORIGIN, "--depth", "99")


class TestBacktest:
    SERIES = """
series:
- id: a
  kind: throughput
  engine: vllm
  target_model: m
  method: eagle3
  drafter: d
  hardware: {gpu: g, count: 1}
  dataset: x
  al_convention: includes_bonus
  tok_s_meaning: total_output
  baseline:
  - {concurrency: 1, output_tok_s: 50}
  points:
  - {concurrency: 1, k: 1, topk: 1, output_tok_s: 70, al: 1.7}
  - {concurrency: 1, k: 3, topk: 1, output_tok_s: 85, al: 2.5}
  - {concurrency: 1, k: 5, topk: 1, output_tok_s: 88, al: 2.9}
"""

    def test_figures(self, cli, tmp_path):
        path = tmp_path / "series.yaml"
        path.write_text(self.SERIES)
        rows = cli.json("backtest", str(path), "--protocols", "B,one")["protocols"]
        assert [row["protocol"] for row in rows][:2] == ["B", "one"]
        assert rows[0]["n"] == 3
        everything = cli.json("backtest", str(path))["protocols"]
        assert [row["protocol"] for row in everything] == ["B", "one", "all"]  # A, C and D have nothing to predict
        out = cli.text("backtest", str(path), "--protocols", "B")
        assert "median error" in out and "nan" not in out

    @pytest.mark.parametrize("content", ["", "series: 3", "series: [1]", "a: [", "series:\n- {kind: throughput}"])
    def test_files_that_are_none(self, cli, tmp_path, content):
        path = tmp_path / "x.yaml"
        path.write_text(content)
        cli.refusal("backtest", str(path))

    def test_every_protocol_is_explained(self, cli):
        told = cli.text("backtest", "--help")
        assert all(f"\n  {name} " in told for name in PROTOCOLS)

    def test_refusals(self, cli, tmp_path):
        assert "protocols = 'E'" in cli.refusal("backtest", "x", "--protocols", "A,E")
        assert "No such file" in cli.refusal("backtest", str(tmp_path / "none"))
