"""The back-test: folds, the simple rule, and the goals on the shipped series."""

import importlib.util
import math
from pathlib import Path

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.throughput import load_calibration
from eagle_speedup.throughput.backtest import (
    backtest,
    covered_series,
    flagged_series,
    folds,
    load_series,
    series_of,
    summarise,
)

SERIES = """
schema_version: 1
series:
- id: s-one
  kind: throughput
  engine: e
  target_model: m
  dataset: one
  drafter: d
  baseline: [{batch: 1, output_tok_s: 100.0}]
  points:
  - {batch: 1, k: 2, topk: 1, al: 2.0, output_tok_s: 160.0}
  - {batch: 1, k: 4, topk: 1, al: 2.4, output_tok_s: 160.0}
  - {batch: 1, k: 6, topk: 1, al: 2.6, output_tok_s: 148.5714}
  - {batch: 1, k: 8, topk: 1, al: null, output_tok_s: 120.0}
- id: s-two
  kind: throughput
  engine: e
  target_model: m
  dataset: two
  baseline: [{batch: 1, output_tok_s: 90.0}]
  points:
  - {batch: 1, k: 2, topk: 1, al: 1.8, output_tok_s: 129.6}
- id: s-three
  kind: al_vs_depth
  target_model: m
  points: [{k: 3, topk: 1, al: 2.6}]
"""


@pytest.fixture
def series(tmp_path):
    path = tmp_path / "series.yaml"
    path.write_text(SERIES)
    return load_series(path)


def test_series_without_baseline_or_accept_length_are_left_out(series):
    assert [s.id for s in series] == ["s-one", "s-two"]
    assert [len(s.rows) for s in series] == [3, 1]
    assert series[0].node == series[1].node


def test_folds_of_each_protocol(series):
    found = [(p, len(known), len(wanted)) for p, known, wanted in folds(series)]
    assert found.count(("A", 3, 1)) == 1 and found.count(("A", 1, 1)) == 1
    assert found.count(("B", 2, 1)) == 3
    assert found.count(("one", 1, 2)) == 3
    assert not [f for f in found if f[0] in "CD"]


def test_another_drafter_on_the_same_data_set_is_a_fold_each_way(tmp_path):
    path = tmp_path / "drafters.yaml"
    other = "  - {batch: 1, k: 4, topk: 1, al: 2.8, drafter: strong, output_tok_s: 185.0}\n- id: s-two"
    path.write_text(SERIES.replace("- id: s-two", other, 1))
    (weak, strong) = [f for f in folds(load_series(path)) if f[0] == "D"]
    assert [row.point.depth for row in weak[1]] == [2, 4, 6]
    assert [row.drafter for _, row in weak[2]] == ["strong"]  # depth 4 alone is shared
    assert [row.drafter for row in strong[1]] == ["strong"]
    assert [(row.point.depth, row.drafter) for _, row in strong[2]] == [(4, "d")]


def test_simple_rule_by_hand(series):
    predictions = {(p.protocol, p.row.point.workload, p.row.point.depth): p for p in backtest(series)}
    # c at depth 2 is 2.0 * 100 / 160 = 1.25 on one, so two gets 1.8 * 90 / 1.25
    assert predictions["A", "two", 2].rule == pytest.approx(129.6)
    # c = 1.25, 1.5, 1.75 at depths 2, 4, 6: affine, so interpolation is exact
    assert predictions["B", "one", 4].rule == pytest.approx(160.0, rel=1e-6)
    assert predictions["B", "one", 6].rule == pytest.approx(148.5714, rel=1e-6)
    assert predictions["A", "two", 2].value == pytest.approx(129.6, rel=0.06)


def test_summary_by_hand(series):
    (prediction,) = [p for p in backtest(series, ("A",)) if p.row.point.workload == "two"]
    summary = summarise([prediction])
    assert summary.n == 1
    assert summary.median == pytest.approx(abs(prediction.value / 129.6 - 1))
    assert math.isnan(summary.regret)  # one configuration is no choice


def test_regret_counts_real_choices_only(series):
    chosen = [p for p in backtest(series, ("one",)) if p.row.point.workload == "one" and p.row.point.depth != 2]
    groups = {p.fold for p in chosen if sum(q.fold == p.fold for q in chosen) > 1}
    alone = [p for p in chosen if p.fold not in groups]
    assert groups and alone  # the fold that knows depth 2 predicts both others; the rest predict one of these each
    assert summarise(chosen).regret == summarise([p for p in chosen if p.fold in groups]).regret
    assert math.isnan(summarise(alone).regret)


def test_series_that_one_point_covers(series):
    found = backtest(series, ("one",))
    good, count = covered_series(found)
    assert count == 1 and good == int(sum(p.lo <= p.truth <= p.hi for p in found) / len(found) >= 0.85)


def test_a_contradiction_flags_every_series_of_the_node(series, tmp_path):
    assert flagged_series(series) == {}
    path = tmp_path / "bad.yaml"
    path.write_text(SERIES.replace("al: 1.8, output_tok_s: 129.6", "al: 1.8, output_tok_s: 260.0"))
    assert set(flagged_series(load_series(path))) == {"s-one", "s-two"}


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("- 1", "must hold a mapping at the top"),
        ("series: 1", "series = 1: must be a list of series"),
        ("series: [1]", r"series\[0\] = 1: must be a mapping"),
        ("series: [{kind: throughput, hardware: 8}]", r"series\[0\].hardware = 8: must be a mapping or null"),
        ("series: [{kind: throughput, points: [{k: 2, topk: 1, output_tok_s: fast}]}]",
         r"series\[0\].points\[0\].output_tok_s = 'fast': must be a finite number"),
        ("series: [{kind: throughput, points: [{k: 2, topk: 1, al: 9, output_tok_s: 10}]}]",
         r"series\[0\].points\[0\].accept_length = 9: must be at most depth \+ 1 = 3"),
        ("series: [{id: '${oc.env:HOME}'}]", "interpolation is not accepted"),
        ("series: [!!python/object/apply:os.system [true]]", "is not plain YAML"),
    ],
)  # fmt: skip
def test_not_a_series_file(text, refusal, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=refusal):
        load_series(path)


@pytest.mark.parametrize(
    ("name", "protocol", "median", "p90"),
    [
        ("llama_3_1_8b_h200", "A", 0.025, 0.05),
        ("llama_3_1_8b_h200", "B", 0.02, 0.04),
        ("qwen3_235b_a22b_h200", "B", 0.06, 0.12),
        ("kimi_k2_6_rtx_pro_6000_dcp1", "C", 0.05, 0.12),
        ("kimi_k2_6_rtx_pro_6000_dcp2", "C", 0.05, 0.12),
    ],
)
def test_goals_on_shipped_series(name, protocol, median, p90):
    summary = summarise(backtest(series_of(load_calibration(name)), (protocol,)))
    assert summary.median <= median
    assert summary.p90 <= p90
    assert summary.coverage >= 0.75  # of one model; over all of them the goals hold
    assert math.isnan(summary.regret) or summary.regret <= 0.02


def test_the_benchmark_prints_a_table(series, tmp_path, capsys):
    path = Path(__file__).parents[2] / "benchmarks" / "backtest.py"
    spec = importlib.util.spec_from_file_location("benchmark_backtest", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main([str(tmp_path / "series.yaml")])
    out = capsys.readouterr().out
    assert "(flagged: 0.0% of these, 0.0% of all 3 in the file)" in out
    assert "One point only, series by series: " in out
    assert "2 series with baseline and accept length, 0 of them flagged" in out
    assert "| A: another data set or drafter | 2 |" in out
    assert module.main([str(tmp_path / "missing.yaml")]) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("topk: [1]", "series[0].points[0].topk = [1]: must be a whole number >= 1"),
        ("topk: '4'", "series[0].points[0].topk = '4': must be a whole number >= 1"),
        ("topk: 2.5", "series[0].points[0].topk = 2.5: must be a whole number >= 1"),
    ],
)
def test_a_tree_width_that_is_no_whole_number(tmp_path, change, message):
    path = tmp_path / "series.yaml"
    path.write_text(SERIES.replace("topk: 1", change, 1))
    with pytest.raises(InputError) as error:
        load_series(path)
    assert str(error.value) == message
