from __future__ import annotations

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.readers.measurements import read_measurements, sniff
from eagle_speedup.readers.prometheus import read_prometheus
from eagle_speedup.readers.reading import Hints, Reading


def vllm(drafts, accepted, *, depth=3, latency=0.02, rounds=None, running=4, engine="0", suffix="_total"):
    labels = f'{{engine="{engine}",model_name="m"}}'
    rounds = drafts if rounds is None else rounds
    positions = [
        f'vllm:spec_decode_num_accepted_tokens_per_pos{suffix}{{engine="{engine}",model_name="m",position="{k}"}} 1.0'
        for k in range(depth)
    ]
    return [
        "# HELP vllm:num_requests_running Number of requests",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{labels} {running}.0",
        f"vllm:spec_decode_num_drafts{suffix}{labels} {drafts}.0",
        f"vllm:spec_decode_num_draft_tokens{suffix}{labels} {drafts * depth}.0",
        f"vllm:spec_decode_num_accepted_tokens{suffix}{labels} {accepted}.0",
        *positions,
        f'vllm:inter_token_latency_seconds_bucket{{engine="{engine}",le="0.1"}} 5.0',
        f"vllm:inter_token_latency_seconds_sum{labels} {rounds * latency}",
        f"vllm:inter_token_latency_seconds_count{labels} {rounds}.0",
    ]


def read(lines, hints=None):
    return read_prometheus([line.encode() for line in lines], hints)


def test_one_scrape_of_vllm():
    reading = read(vllm(1000, 1500))
    (point,) = reading.points
    assert (point.depth, point.batch, point.accept_length, point.step_ms) == (3, 4, 2.5, 20.0)
    assert point.tok_s == 4 * 2.5 / 0.02
    assert "a single scrape" in reading.notes[0]


def test_two_scrapes_count_what_grew_between_them():
    (point,) = read([*vllm(1000, 100, latency=0.5), *vllm(3000, 100 + 4000, latency=(500 + 2000 * 0.02) / 3000)]).points
    assert point.accept_length == 3.0
    assert point.step_ms == pytest.approx(20.0)


def test_engines_are_summed_and_old_names_known():
    lines = [*vllm(1000, 1500, running=2, suffix=""), *vllm(1000, 500, running=2, engine="1", suffix="")]
    (point,) = read(lines).points
    assert (point.batch, point.accept_length) == (4, 2.0)


def test_a_restart_is_seen():
    reading = read([*vllm(5000, 9000), *vllm(1000, 1500)])
    assert reading.dropped["counter went back (restart)"] > 0


def test_the_baseline_of_vllm():
    lines = [line for line in vllm(1000, 0, latency=0.01) if "spec_decode" not in line]
    (point,) = read(lines).points
    assert (point.depth, point.accept_length, point.tok_s) == (0, None, 400.0)


def test_batch_must_be_known():
    reading = read(vllm(1000, 1500, running=0))
    assert reading.points == () and reading.dropped["running requests not known at the scrape; give batch="] == 1
    assert read(vllm(1000, 1500, running=0), Hints(batch=2)).points[0].batch == 2


def test_wandering_draft_length_is_refused():
    lines = [line.replace("draft_tokens_total", "draft_tokens_total") for line in vllm(1000, 1500)]
    lines = [line.replace(" 3000.0", " 2000.0") if "num_draft_tokens" in line else line for line in lines]
    assert read(lines).dropped["number of draft tokens varied between rounds"] == 1


def test_broken_lines_are_counted():
    reading = read([*vllm(1000, 1500), "vllm:num_requests_waiting{a", "vllm:num_requests_swapped twelve", "other 1"])
    assert reading.dropped["not a sample"] == 2
    assert len(reading.points) == 1


SGLANG = [
    "# TYPE sglang:gen_throughput gauge",
    'sglang:gen_throughput{model_name="m"} 500.0',
    'sglang:num_running_reqs{model_name="m"} 5.0',
    'sglang:num_used_tokens{model_name="m"} 5000.0',
    'sglang:spec_accept_length{model_name="m"} 2.5',
]


def test_sglang():
    (point,) = read(SGLANG, Hints(depth=3)).points
    assert (point.tok_s, point.accept_length, point.batch, point.context_tokens) == (500.0, 2.5, 5, 1000)
    unknown = read(SGLANG)
    assert unknown.points[0].depth is None and "give depth=" in unknown.notes[-1]
    (plain,) = read([line for line in SGLANG if "spec" not in line]).points
    assert (plain.depth, plain.accept_length) == (0, None)


def exported(ranks, *, name="sglang:{}", values):
    """Gauges of schedulers, each with its labels."""
    return [
        f"{name.format(gauge)}{{{labels}}} {value}"
        for labels, row in zip(ranks, values, strict=True)
        for gauge, value in row.items()
    ]


def gauges(running, tok_s, length):
    return {"num_running_reqs": running, "gen_throughput": tok_s, "spec_accept_length": length}


def test_schedulers_of_one_server_export_it_once():
    labels = [f'engine_type="unified",model_name="m",moe_ep_rank="{k}",pp_rank="0",tp_rank="{k}"' for k in range(8)]
    reading = read(exported(labels, values=[gauges(3, 250.0, 2.5)] * 8), Hints(depth=3))
    (point,) = reading.points
    assert (point.batch, point.tok_s, point.accept_length) == (3, 250.0, 2.5)  # not 24 and 2000
    assert len(reading.notes) == 1


def test_data_parallel_ranks_are_summed():
    labels = [f'dp_rank="{k // 2}",model_name="m",tp_rank="{k}"' for k in range(4)]
    figures = [gauges(3, 200.0, 2.0), gauges(3, 200.0, 2.0), gauges(1, 100.0, 3.0), gauges(1, 100.0, 3.0)]
    reading = read(exported(labels, values=figures), Hints(depth=3))
    (point,) = reading.points
    assert (point.batch, point.tok_s) == (4, 300.0)
    assert point.accept_length == pytest.approx(300 / (200 / 2 + 100 / 3))  # tokens over rounds
    assert "2 data-parallel ranks, summed to the node's batch and tok/s" in reading.notes


def test_an_idle_rank_has_no_accept_length():
    labels = [f'dp_rank="{k}",tp_rank="{k}"' for k in range(2)]
    (point,) = read(exported(labels, values=[gauges(3, 250.0, 2.5), gauges(0, 0.0, 0.0)]), Hints(depth=3)).points
    assert (point.batch, point.tok_s, point.accept_length) == (3, 250.0, 2.5)


def test_ranks_that_differ_with_nothing_to_tell_them_apart():
    labels = [f'model_name="m",tp_rank="{k}"' for k in range(2)]
    reading = read(exported(labels, values=[gauges(3, 250.0, 2.5), gauges(5, 300.0, 2.5)]), Hints(depth=3))
    assert reading.points == ()
    assert reading.dropped["ranks differ, and no dp_rank label says which of them share their requests"] == 1


def test_engines_are_said_to_be_summed():
    reading = read([*vllm(1000, 1500, running=2), *vllm(1000, 1500, running=2, engine="1")])
    assert reading.points[0].batch == 4 and "2 engines, summed to the node's batch and tok/s" in reading.notes


def test_counters_without_drafts_are_no_missing_counters():
    lines = vllm(0, 0, rounds=1000)
    reading = read(lines)
    assert reading.points == ()
    assert reading.dropped["no drafts counted; give depth=0 if it decoded without speculation"] == 1
    assert read(lines, Hints(depth=3)).points == ()
    plain = read(lines, Hints(depth=0))
    assert (plain.points[0].depth, plain.points[0].step_ms) == (0, 20.0)
    assert "count no drafts" in plain.notes[-1] and not any("no speculation counters" in note for note in plain.notes)


def test_a_depth_that_the_accept_length_denies(tmp_path):
    path = tmp_path / "metrics.txt"
    path.write_text("\n".join(SGLANG))
    with pytest.raises(InputError, match=r"depth = 0: contradicts metrics.txt, which says an accept length of 2.5"):
        read_measurements(path, Hints(depth=0))
    idle = [line.replace("2.5", "0.0") for line in SGLANG]
    assert read(idle, Hints(depth=3)).points == ()
    assert read(idle).points[0].depth == 0


def test_found_by_content(tmp_path):
    path = tmp_path / "metrics"
    path.write_text("# HELP process_cpu x\n" + "\n".join(vllm(1000, 1500)))
    assert sniff(path) == "prometheus"
    assert read_measurements(path).points[0].accept_length == 2.5


def test_more_series_than_any_server_has(monkeypatch):
    monkeypatch.setattr("eagle_speedup.readers.prometheus._MAX_SERIES", 30)
    lines = [f'vllm:num_requests_running{{engine="{i}"}} 1'.encode() for i in range(100)]
    assert read_prometheus(lines).dropped["more series than any server has"] == 70


def test_a_summary_stays_one_readable_line():
    reading = Reading((), 0, {f"reason {i}": i for i in range(1, 21)}, (), "log")
    assert reading.summary().endswith("reason 13: 13 dropped, 12 more reasons: 78 dropped)")


def test_a_count_does_not_run_into_its_reason():
    summary = read(vllm(1000, 1500, running=0)).summary()
    assert summary.endswith("1 dropped (running requests not known at the scrape; give batch=: 1 dropped)")


def test_hints_that_differ_from_the_metrics(tmp_path):
    reading = read(vllm(1000, 1500, running=4), Hints(batch=2))
    assert reading.points[0].batch == 2
    assert "batch 2 taken as given, though 4 requests ran at the scrape" in reading.notes
    assert len(read(vllm(1000, 1500, running=4), Hints(batch=4)).notes) == 1
    path = tmp_path / "metrics.txt"
    for positions in (True, False):
        lines = [line for line in vllm(1000, 1500) if positions or "per_pos" not in line]
        path.write_text("\n".join(lines))
        assert read_measurements(path, Hints(depth=3)).points[0].depth == 3
        with pytest.raises(InputError, match=r"depth = 1: contradicts metrics.txt, which says 3"):
            read_measurements(path, Hints(depth=1))


V0 = [
    'vllm:num_requests_running{model_name="m"} 4.0',
    'vllm:time_per_output_token_seconds_sum{model_name="m"} 20.0',
    'vllm:time_per_output_token_seconds_count{model_name="m"} 1000.0',
]
V0_COUNTERS = [
    'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 1200.0',
    'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 3000.0',
    'vllm:spec_decode_num_emitted_tokens_total{model_name="m"} 2000.0',
]
NO_ROUNDS = "it speculates, but does not count its rounds (vllm:spec_decode_num_drafts): give its log instead"


@pytest.mark.parametrize(
    "counters", [V0_COUNTERS, V0_COUNTERS[:1], V0_COUNTERS[1:2], ['vllm:spec_decode_efficiency{model_name="m"} 0.5']]
)
@pytest.mark.parametrize("depth", [None, 0, 3])
def test_counters_without_rounds_are_no_baseline(counters, depth):
    reading = read([*V0, *counters], Hints(depth=depth))
    assert reading.points == () and dict(reading.dropped) == {NO_ROUNDS: 1}  # not 4 / 20 ms = 200 tok/s at depth 0


def test_counters_without_rounds_that_count_nothing():
    zero = [line.rpartition(" ")[0] + " 0.0" for line in V0_COUNTERS]
    created = 'vllm:spec_decode_num_draft_tokens_created{model_name="m"} 1.7e+09'
    nothing = "no drafts counted; give depth=0 if it decoded without speculation"
    assert dict(read([*V0, *zero, created]).dropped) == {nothing: 1}
    (point,) = read([*V0, *zero, created], Hints(depth=0)).points
    assert (point.depth, point.tok_s) == (0, 200.0)


def test_an_sglang_server_that_exports_its_accept_rate_only_is_no_baseline():
    lines = [line for line in SGLANG if "spec_accept_length" not in line]
    assert read(lines).points[0].depth == 0
    reading = read([*lines, 'sglang:spec_accept_rate{model_name="m"} 0.6'])
    fault = "it speculates, but exports no accept length beside its throughput"
    assert reading.points == () and dict(reading.dropped) == {fault: 1}


def test_a_depth_without_speculation_counters_is_no_round():
    """The tempting answer takes the time of a plain step for that of a round at the depth that was given."""
    reading = read([line for line in vllm(100, 150) if "spec_decode" not in line], Hints(depth=3))
    assert reading.points == ()
    (reason,) = reading.dropped
    assert reason == "no speculation counters (vllm:spec_decode_...), which a server at depth 3 would export"
