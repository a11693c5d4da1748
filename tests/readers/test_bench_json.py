from __future__ import annotations

import gzip
import json
import pickle
import random
import tracemalloc

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.readers.bench_json import read_bench_json
from eagle_speedup.readers.measurements import read_measurements
from eagle_speedup.readers.reading import Hints

VLLM = {
    "date": "20250301-100000",
    "backend": "vllm",
    "model_id": "m",
    "max_concurrency": 4,
    "duration": 100.0,
    "completed": 50,
    "total_input_tokens": 50_000,
    "total_output_tokens": 20_000,
    "output_throughput": 200.0,
    "mean_tpot_ms": 16.0,
    "mean_itl_ms": 40.0,
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_num_drafts": 8000,
    "spec_decode_draft_tokens": 24_000,
    "spec_decode_accepted_tokens": 12_000,
}
SGLANG = {
    "backend": "sglang",
    "max_concurrency": 2,
    "mean_tpot_ms": 10.0,
    "output_throughput": 150,
    "accept_length": 3.0,
}
ONE_BATCH = {"run_name": "x", "batch_size": 4, "input_len": 1000, "output_len": 100, "median_decode_latency": 0.02}
ONE_BATCH_SERVER = {
    "run_name": "x", "batch_size": 2, "input_len": 1000, "output_len": 101, "latency": 3.0, "last_ttft": 1.0,
    "last_gen_throughput": 999.0, "acc_length": 2.0,
}  # fmt: skip
GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                "request_concurrency": {"successful": {"mean": 7.8}},
                "inter_token_latency_ms": {"successful": {"mean": 12.5}},
                "output_tokens_per_second": {"successful": {"mean": 600.0}},
                "prompt_token_count": {"successful": {"mean": 500.0}},
                "output_token_count": {"successful": {"mean": 100.0}},
            }
        }
    ]
}


@pytest.fixture
def read(tmp_path):
    def run(content, hints=None):
        path = tmp_path / "result.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return read_bench_json(path, hints)

    return run


def test_vllm_bench_serve(read):
    reading = read(VLLM)
    (point,) = reading.points
    assert (point.depth, point.batch, point.accept_length, point.context_tokens) == (3, 4, 2.5, 1200)
    assert (point.tok_s, point.per_user, point.total_tok_s) == (
        62.5,
        True,
        250.0,
    )  # decode only, not the 200 of the wall
    assert reading.setup == {"engine": "vllm"} and reading.format == "vllm bench serve"


def test_wall_clock_throughput_is_the_fallback(read):
    reading = read({k: v for k, v in VLLM.items() if k != "mean_tpot_ms"})
    assert reading.points[0].total_tok_s == 200.0
    assert "prefill included" in reading.notes[0]


def test_depth_is_asked_for_where_nothing_tells_it(read):
    plain = {k: v for k, v in VLLM.items() if not k.startswith("spec")}
    reading = read(plain)
    assert reading.points == () and "give depth=" in next(iter(reading.dropped))
    assert read(plain, Hints(depth=0)).points[0].depth == 0


def test_sglang_results(read):
    assert read(SGLANG, Hints(depth=4)).points[0].total_tok_s == 200.0
    (plain,) = read(ONE_BATCH).points
    assert (plain.depth, plain.tok_s, plain.context_tokens) == (0, 200.0, 1050)
    (server,) = read(ONE_BATCH_SERVER, Hints(depth=3)).points
    assert (server.tok_s, server.accept_length) == (2 * 101 / 2.0, 2.0)
    unmeasured = {**ONE_BATCH_SERVER, "acc_length": -1}
    assert read(unmeasured, Hints(depth=0)).points[0].accept_length is None


def test_guidellm(read):
    (point,) = read(GUIDELLM, Hints(depth=0)).points
    assert (point.batch, point.tok_s, point.per_user, point.context_tokens) == (8, 80.0, True, 550)


@pytest.mark.parametrize("joint", ["\n", "", ",\n"])
def test_several_results_in_a_file(read, joint):
    text = joint.join(json.dumps({**ONE_BATCH, "batch_size": b}, indent=2) for b in (1, 2, 4))
    assert [p.batch for p in read(text).points] == [1, 2, 4]


def test_a_list_of_results(read):
    assert len(read([ONE_BATCH, ONE_BATCH, "other"]).points) == 2


def test_the_readable_part_of_json_lines_is_used(read):
    lines = [json.dumps({**ONE_BATCH, "batch_size": b}) for b in (1, 2, 4)]
    lines[1] = lines[1][:30]
    reading = read("\n".join(lines))
    assert [p.batch for p in reading.points] == [1, 4]
    assert reading.dropped["broken JSON"] == 1


def test_a_result_that_breaks_off_is_scanned(read):
    text = json.dumps({**VLLM, "itls": [0.01] * 1000})
    reading = read(text[:-200])
    assert reading.points == read(VLLM).points
    assert "broken off" in reading.notes[0]


def test_every_document_of_a_huge_file_is_scanned(tmp_path, monkeypatch):
    monkeypatch.setattr("eagle_speedup.readers.bench_json._MAX_WHOLE", 1000)
    monkeypatch.setattr("eagle_speedup.readers.bench_json.TextPieces", lambda path: chunks_of(path, 97))
    path = tmp_path / "huge.jsonl"
    runs = [loaded(n, itls=[0.0123456789] * 50) for n in (1, 2, 4, 8)]
    path.write_text("\n".join(map(json.dumps, runs)))
    reading = read_bench_json(path)
    assert [p.batch for p in reading.points] == [1, 2, 4, 8]
    path.write_text(json.dumps(GUIDELLM) + " " * 1000)
    reading = read_bench_json(path)
    assert reading.points == ()
    assert reading.dropped["GuideLLM results that can not be parsed as a whole"] == 1


def loaded(batch, **more):
    """A run at ``batch``, whose figures fit it."""
    return {**VLLM, "max_concurrency": batch, "output_throughput": 50.0 * batch, "duration": 400.0 / batch, **more}


def chunks_of(path, size):
    data = path.read_bytes()
    return iter([data[i : i + size] for i in range(0, len(data), size)])


def test_a_huge_result_is_scanned_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("eagle_speedup.readers.bench_json._MAX_WHOLE", 1_000_000)
    path = tmp_path / "huge.json"
    with path.open("w") as out:
        out.write('{"itls": [' + ", ".join(["0.0123"] * 100))
        for _ in range(100):
            out.write(", 0.0123456789" * 5000)
        out.write("], " + json.dumps(VLLM)[1:])
    assert path.stat().st_size > 6_000_000
    tracemalloc.start()
    reading = read_measurements(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reading.points[0].total_tok_s == 250.0
    assert "scanned for its scalars" in reading.notes[0]
    assert peak < 4_000_000


def test_text_in_answers_is_not_taken_for_figures(read):
    text = json.dumps({**VLLM, "generated_texts": ['"output_throughput": 1, "mean_tpot_ms": 2']})
    assert read(text[:-40]).points == read(VLLM).points


@pytest.mark.parametrize("content", ["[]", "{}", "[1, 2]", '{"benchmarks": []}', '{"a": {"b": 1}}', "[[[[["])
def test_results_without_figures(read, content):
    assert read(content).points == ()


def test_absurd_figures_are_not_believed(read):
    assert read({**VLLM, "mean_tpot_ms": 1e400, "output_throughput": -3}).points == ()
    assert read({**VLLM, "mean_tpot_ms": "fast", "output_throughput": True}).points == ()
    alone = {k: v for k, v in VLLM.items() if k != "spec_decode_accepted_tokens"}
    too_long = read({**alone, "spec_decode_acceptance_length": 9.0})
    assert "must be at most depth + 1" in next(iter(too_long.dropped))


@pytest.mark.parametrize(
    ("printed", "accepted", "taken", "says"),
    [
        (1.5, 12_000, 2.5, ", as if without the bonus token; the counts are taken"),
        (2.5, 4000, 1.5, "of the same result; the counts are taken"),
        (2.5, 0, 1.0, "of the same result; the counts are taken"),
        (2.54, 12_000, 2.54, None),  # within 2 %
        (None, 12_000, 2.5, None),
    ],
)
def test_an_accept_length_that_its_counts_deny(read, printed, accepted, taken, says):
    run = {**VLLM, "spec_decode_acceptance_length": printed, "spec_decode_accepted_tokens": accepted}
    reading = read(run)
    assert reading.points[0].accept_length == taken
    if says is None:
        assert reading.notes == ()
    else:
        counts = f"1 + {accepted} / 8000 = {taken:g}"
        field = f"spec_decode_acceptance_length = {printed}: differs from 1 + accepted / drafts = {counts}"
        assert reading.notes[0].startswith(field) and reading.notes[0].endswith(says)


def test_a_time_per_token_in_seconds(read):
    reading = read({**VLLM, "mean_tpot_ms": 0.016})
    rule = "would be 62,500 tok/s at batch 1, more than 10 times the output_throughput of 200: is it in milliseconds"
    assert reading.points == () and reading.notes == ()
    assert next(iter(reading.dropped)).startswith(f"mean_tpot_ms = 0.016: {rule}")
    metrics = {**GUIDELLM["benchmarks"][0]["metrics"], "inter_token_latency_ms": {"successful": {"mean": 0.0125}}}
    reading = read({"benchmarks": [{"metrics": metrics}]}, Hints(depth=0))
    assert reading.points == () and next(iter(reading.dropped)).startswith("inter_token_latency_ms = 0.0125: would be")


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_bench_json(tmp_path / "none")


BESIDE = (
    "write the run into a .yaml file as points: [{depth: .., batch: .., tok_s: .., accept_length: ..}], with the "
    "accept length from the server's log or metrics of the same run"
)


def test_a_speculating_run_without_an_accept_length_says_where_to_put_it(read):
    reading = read(GUIDELLM)
    (reason,) = reading.dropped
    known = "not known, and no accept length in the result; give depth= (0 = no speculation)"
    assert reading.points == () and reason == f"depth = None: {known}; if it did, {BESIDE}"
    reading = read(GUIDELLM, Hints(depth=3))
    (reason,) = reading.dropped
    why = "not in the result, and without it nothing says how long a round at depth 3 takes"
    assert reading.points == () and reason == f"accept_length = None: {why}; {BESIDE}"
    assert [p.depth for p in read(GUIDELLM, Hints(depth=0)).points] == [0]


def test_the_day_and_a_batch_that_differs(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"date": "20251022-102756", "mean_tpot_ms": 10.0, "max_concurrency": 8}))
    reading = read_bench_json(path, Hints(depth=0, batch=8))
    assert reading.date == "2025-10-22" and reading.points[0].batch == 8 and reading.notes == ()
    for batch in (4, 99):
        with pytest.raises(InputError, match=rf"batch = {batch}: contradicts r.json, which says 8: leave the hint out"):
            read_bench_json(path, Hints(depth=0, batch=batch))


@pytest.mark.parametrize(
    ("content", "hints", "says"),
    [
        (ONE_BATCH, Hints(batch=8), "batch = 8: contradicts result.json, which says 4"),
        (ONE_BATCH_SERVER, Hints(depth=3, batch=8), "batch = 8: contradicts result.json, which says 2"),
        (GUIDELLM, Hints(depth=0, batch=99), "batch = 99: contradicts result.json, which says about 8"),
        (SGLANG, Hints(depth=0), "depth = 0: contradicts result.json, which says an accept length of 3"),
        ({**VLLM, "spec_decode_num_drafts": 0}, Hints(depth=3), "depth = 3: contradicts .*, which says that no drafts"),
    ],
)
def test_hints_that_a_result_denies(read, content, hints, says):
    with pytest.raises(InputError, match=says) as error:
        read(content, hints)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_a_batch_near_a_measured_concurrency_is_taken(read):
    assert read(GUIDELLM, Hints(depth=0, batch=10)).points[0].batch == 10


class TestHowManyRanTogether:
    """The client's limit is no measurement."""

    def test_no_more_than_completed(self, read):
        result = {"max_concurrency": 256, "completed": 10, "output_throughput": 500, "mean_tpot_ms": 18}
        reading = read(result, Hints(depth=0))
        assert [(p.batch, p.total_tok_s) for p in reading.points] == [(10, pytest.approx(10 / 0.018, rel=1e-4))]
        assert reading.notes == ("max_concurrency 256, but 10 requests completed: no more ran together",)

    def test_a_limit_that_was_never_reached(self, read):
        result = {"max_concurrency": 256, "completed": 1000, "output_throughput": 400, "mean_tpot_ms": 18}
        reading = read(result, Hints(depth=0))
        assert reading.points[0].batch == 7  # 400 tok/s at 18 ms a token
        assert "256 requests could run together, but did not" in reading.notes[0]
        assert read(result, Hints(depth=0, batch=8)).points[0].batch == 8  # known better, and near
        with pytest.raises(InputError, match=r"batch = 256: contradicts result.json, which says about 7"):
            read(result, Hints(depth=0, batch=256))

    @pytest.mark.parametrize(
        ("total", "batch"),
        [
            (300.0, 6),  # 300 tok/s at 20 ms a token: 6 of 10 decoded
            (390.0, 8),  # 7.8
            (400.0, 10),  # 8 of 10: ramps and first tokens
            (500.0, 10),
        ],
    )
    def test_a_time_per_token_is_that_of_the_requests_that_decoded(self, read, total, batch):
        reading = read({"max_concurrency": 10, "output_throughput": total, "mean_tpot_ms": 20}, Hints(depth=0))
        (point,) = reading.points
        assert (point.batch, point.tok_s, point.per_user) == (batch, 50.0, True)
        note = f"batch {batch}, from throughput times time per token: 10 requests could run together, but did not"
        assert reading.notes == (() if batch == 10 else (note,))

    def test_a_given_batch_that_is_off_the_average_is_said(self, read):
        result = {"max_concurrency": 10, "output_throughput": 300.0, "mean_tpot_ms": 20}
        given = read(result, Hints(depth=0, batch=10))
        assert given.points[0].batch == 10
        assert given.notes == ("batch 10 taken as given, though 6 requests decoded on average",)
        assert read(result, Hints(depth=0, batch=6)).notes == ()

    def test_the_concurrency_that_the_client_measured(self, read):
        result = {"max_concurrency": 64, "concurrency": 5.2, "mean_tpot_ms": 10.0, "backend": "sglang"}
        assert read(result, Hints(depth=0)).points[0].batch == 5
        assert read({**result, "concurrency": 60.1}, Hints(depth=0)).points[0].batch == 64

    def test_more_than_the_limit_can_give(self, read):
        reading = read({"max_concurrency": 2, "output_throughput": 900, "mean_tpot_ms": 10}, Hints(depth=0))
        assert reading.points == ()
        rule = "contradicts 2 requests at 10 ms a token, which give 200 tok/s at most"
        assert dict(reading.dropped) == {f"output_throughput = 900.0: {rule}": 1}

    def test_a_throughput_that_its_tokens_deny(self, read):
        reading = read({**VLLM, "output_throughput": 900.0})
        assert "contradicts its 20000 output tokens in 100 s, which are 200 tok/s" in next(iter(reading.dropped))

    def test_without_a_limit(self, read):
        result = {"output_throughput": 400, "mean_tpot_ms": 18}
        reading = read(result, Hints(depth=0))
        assert reading.points == () and "throughput times time per token: 7" in next(iter(reading.dropped))
        assert read(result, Hints(depth=0, batch=6)).points[0].batch == 6
        with pytest.raises(InputError, match=r"batch = 64: contradicts result.json, which says about 7"):
            read(result, Hints(depth=0, batch=64))


def test_documents_that_break_by_the_million_are_given_up(read):
    reading = read('\n{"a":' * 100_000)  # each is nested to the parser's limit before it breaks
    assert reading.points == () and reading.dropped["broken JSON"] == 1000


def test_gzip(tmp_path):
    path = tmp_path / "r.json.gz"
    path.write_bytes(gzip.compress(json.dumps(VLLM).encode()))
    reading = read_measurements(path)
    assert reading.points[0].total_tok_s == 250.0 and reading.notes == ()
    text = json.dumps({**VLLM, "itls": [random.Random(1).random() for _ in range(500)]})
    path.write_bytes(gzip.compress(text.encode())[:-50])
    reading = read_measurements(path)
    assert reading.points[0].total_tok_s == 250.0
    assert any("the gzip file is cut off" in note for note in reading.notes)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_other_encodings(tmp_path, encoding):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(VLLM), encoding=encoding)
    assert read_measurements(path).points[0].total_tok_s == 250.0


def test_seconds_taken_for_milliseconds_show_in_the_tokens_and_the_duration(read):
    run = {**VLLM, "mean_tpot_ms": 0.018, "total_output_tokens": 40_000, "duration": 100.0}
    run.pop("output_throughput", None)
    (reason,) = read(run).dropped
    assert reason.startswith("mean_tpot_ms = 0.018: would be 55,556 tok/s at batch 1, more than 10 times")


def test_a_depth_that_varied_is_no_depth(read):
    run = {**VLLM, "spec_decode_num_drafts": 16_000, "spec_decode_draft_tokens": 40_000}
    (reason,) = read(run).dropped
    assert reason == "spec_decode_draft_tokens = 40000.0: are 2.5 for each of 16000 rounds: the depth varied"
