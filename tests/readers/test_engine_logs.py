from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.readers.lines import MAX_LINE, stream_lines
from eagle_speedup.readers.measurements import read_measurements, sniff
from eagle_speedup.readers.reading import Hints
from eagle_speedup.readers.sglang_logs import read_sglang_log
from eagle_speedup.readers.vllm_logs import read_vllm_log

PREFIX = "(APIServer pid=7) INFO 03-01 10:00:{:02d} "


def stats(second, tok_s, running, *, prompt=0.0, waiting=0, engine="000"):
    fields = (
        f"[loggers.py:271] Engine {engine}: Avg prompt throughput: {prompt} tokens/s",
        f"Avg generation throughput: {tok_s} tokens/s",
        f"Running: {running} reqs",
        f"Waiting: {waiting} reqs",
        "GPU KV cache usage: 1.0%",
    )
    return PREFIX.format(second) + ", ".join(fields)


def spec(second, accepted, drafted, rates, *, seconds=10.0):
    length = 1 + accepted / (drafted / len(rates))
    fields = (
        f"[metrics.py:101] SpecDecoding metrics: Mean acceptance length: {length:.2f}",
        f"Accepted throughput: {accepted / seconds:.2f} tokens/s",
        f"Drafted throughput: {drafted / seconds:.2f} tokens/s",
        f"Accepted: {accepted} tokens",
        f"Drafted: {drafted} tokens",
        f"Per-position acceptance rate: {', '.join(map(str, rates))}",
        f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%",
    )
    return PREFIX.format(second) + ", ".join(fields)


def vllm(*lines, hints=None):
    return read_vllm_log([line.encode() for line in lines], hints)


# 300 rounds in 10 s at depth 3, 500 drafts accepted: accept length 2.667, 80 tok/s
STEADY = (stats(0, 80.0, 1), spec(0, 500, 900, [0.8, 0.5, 0.367]))
NEXT = (stats(10, 80.0, 1), spec(10, 500, 900, [0.8, 0.5, 0.367]))


class TestVllm:
    def test_a_steady_interval_gives_a_point(self):
        reading = vllm(*STEADY, *NEXT)
        (point,) = reading.points
        assert (point.depth, point.batch, point.tok_s) == (3, 1, 80.0)
        assert point.accept_length == pytest.approx(1 + 500 / 300, abs=1e-4)
        assert (reading.used, dict(reading.dropped)) == (1, {"start not seen": 1})
        assert reading.setup == {"engine": "vllm"}

    def test_accept_length_is_a_ratio_of_sums(self):
        slow = (stats(20, 16.0, 1), spec(20, 60, 300, [0.3, 0.2, 0.1]))  # 100 rounds
        (point,) = vllm(*STEADY, *NEXT, *slow).points
        assert point.tok_s == 48.0
        assert point.accept_length == pytest.approx(1 + (500 + 60) / (300 + 100), abs=1e-3)
        assert point.accept_length != pytest.approx((1 + 500 / 300 + 1.6) / 2, abs=0.1)  # the mean of ratios

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (stats(10, 80.0, 2), "number of running requests changed"),
            (stats(10, 80.0, 1, prompt=3.2), "prompts processed in it"),
            (stats(10, 80.0, 1, waiting=1), "requests were waiting"),
            (stats(10, 0.0, 0), "idle at its end"),
        ],
    )
    def test_unsteady_intervals_are_dropped_with_a_reason(self, line, reason):
        second = int(line.split("10:00:")[1][:2])
        reading = vllm(*STEADY, line, spec(second, 500, 900, [0.8, 0.5, 0.367]))
        assert reading.points == ()
        assert reading.dropped[reason] == 1

    def test_a_gap_in_the_log_hides_the_start(self):
        reading = vllm(*STEADY, stats(59, 80.0, 1), spec(59, 500, 900, [0.8, 0.5, 0.367]))
        assert dict(reading.dropped) == {"start not seen": 2}

    def test_lines_of_two_seconds_are_not_paired(self):
        reading = vllm(*STEADY, stats(10, 80.0, 1), spec(15, 500, 900, [0.8, 0.5, 0.367]))
        assert reading.points == ()
        assert reading.dropped["no speculation line in the same second"] == 1
        assert reading.dropped["speculation line without a throughput line in the same second"] == 1

    def test_lines_that_contradict_each_other_are_dropped(self):
        reading = vllm(*STEADY, stats(10, 50.0, 1), NEXT[1])
        assert reading.points == ()
        assert reading.dropped["throughput and speculation lines disagree"] == 1

    def test_wandering_draft_length_is_dropped(self):
        line = NEXT[1].replace("Mean acceptance length: 2.67", "Mean acceptance length: 3.40")
        reading = vllm(*STEADY, NEXT[0], line)
        assert reading.dropped["number of draft tokens varied within the interval"] == 1

    def test_the_baseline_is_a_log_without_speculation_lines(self):
        reading = vllm(stats(0, 57.0, 1), stats(10, 57.0, 1), stats(20, 56.0, 1))
        (point,) = reading.points
        assert (point.depth, point.tok_s, point.accept_length) == (0, 56.5, None)
        assert "depth 0" in reading.notes[0]
        other = vllm(stats(0, 57.0, 1), stats(10, 57.0, 1), hints=Hints(depth=3))
        assert other.points == () and other.dropped["no speculation counters at the given depth"] == 1

    def test_batch_sizes_are_told_apart(self):
        more = (stats(20, 640.0, 16), spec(20, 4000, 7200, [0.8, 0.5, 0.367]))
        again = (stats(30, 640.0, 16), spec(30, 4000, 7200, [0.8, 0.5, 0.367]))
        reading = vllm(*STEADY, *NEXT, *more, *again)
        assert [(p.batch, p.tok_s) for p in reading.points] == [(1, 80.0), (16, 640.0)]

    def test_engines_of_one_server_are_summed(self):
        def second(s):
            counters = spec(s, 500, 900, [0.8, 0.5, 0.367])
            return stats(s, 80.0, 1), counters, stats(s, 80.0, 1, engine="001"), counters

        reading = vllm(*second(0), *second(10))
        assert [(p.batch, p.tok_s) for p in reading.points] == [(2, 160.0)]

    def test_fields_are_read_by_name_in_any_order(self):
        text = "Running: 1 reqs, New field: 7, Waiting: 0 reqs, Avg generation throughput: 80.0 tokens/s, Engine 000"
        line = "[2025-03-01 10:00:10 worker] " + text
        reading = vllm(*STEADY, NEXT[1], line)
        assert [p.tok_s for p in reading.points] == [80.0]

    @pytest.mark.parametrize("width", range(60, 130))
    def test_records_wrapped_by_a_paste_are_joined(self, width):
        lines = [line[i : i + width] for line in (*STEADY, *NEXT) for i in range(0, len(line), width)]
        assert vllm(*lines).points == vllm(*STEADY, *NEXT).points

    def test_other_lines_and_colours_do_not_disturb(self):
        noise = ('INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK', "", "\x1b[32mINFO\x1b[0m 03-01 x")
        coloured = "\x1b[36m" + NEXT[0] + "\x1b[0m"
        assert vllm(*STEADY, *noise, coloured, *noise, NEXT[1]).points == vllm(*STEADY, *NEXT).points

    def test_version_and_parallelism_are_noted(self):
        reading = vllm(
            "INFO 03-01 09:59:00 [api_server.py:1] vLLM API server version 0.11.0",
            "INFO 03-01 09:59:01 non-default args: {'tensor_parallel_size': 8, 'speculative_config': {'x': 1}}",
            *STEADY,
            *NEXT,
        )
        assert reading.setup == {"engine": "vllm", "engine_version": "0.11.0", "parallelism": "tp8"}

    def test_v0_counters(self):
        head = "INFO 03-01 10:00:{:02d} metrics.py:{}] "
        engine = "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 50.0 tokens/s, Running: 1 reqs"
        counters = "Speculative metrics: " + ", ".join(
            (
                "Draft acceptance rate: 0.642",
                "System efficiency: 0.600",
                "Number of speculative tokens: 3",
                "Number of accepted tokens: 800",
                "Number of draft tokens: 1500",
                "Number of emitted tokens: 1200.",
            )
        )
        lines = [head.format(s, 1) + text for s in (0, 5) for text in (engine, counters)]
        (point,) = vllm(*lines).points
        assert (point.depth, point.accept_length) == (3, 2.4)  # efficiency * (depth + 1)


def decode(tok_s, running=1, length=None, rate=None, *, token=100, comma=".", prefix="[2025-01-02 03:04:05 TP0] "):
    spoken = "" if length is None else f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
    return (
        f"{prefix}Decode batch{comma} #running-req: {running}, #token: {token}, token usage: 0.00, {spoken}"
        f"cuda graph: True, gen throughput (token/s): {tok_s}, #queue-req: 0, "
    )


PREFILL = "[2025-01-02 03:04:05 TP0] Prefill batch. #new-seq: 1, #new-token: 28, #cached-token: 0, #running-req: 0"


def sglang(*lines, hints=None):
    return read_sglang_log([line.encode() for line in lines], hints)


class TestSglang:
    def test_the_first_line_after_a_prefill_is_useless(self):
        reading = sglang(PREFILL, decode(0.39, 1, 2.17, 0.54), decode(180.0, 1, 2.00, 0.50), decode(180.0, 1, 2.0, 0.5))
        (point,) = reading.points
        assert (point.tok_s, point.accept_length, point.depth) == (180.0, 2.0, 3)
        assert dict(reading.dropped) == {"first line after a prefill": 1}

    def test_both_meanings_of_accept_rate(self):
        of_tokens = sglang(PREFILL, *[decode(100, 1, n, n / 4) for n in (2.17, 1.95, 1.80, 2.05)])
        assert [p.depth for p in of_tokens.points] == [3]
        of_steps = sglang(PREFILL, *[decode(100, 1, n, (n - 1) / 3) for n in (3.40, 2.95, 3.10, 2.80)])
        assert [p.depth for p in of_steps.points] == [3]
        assert of_tokens.notes != of_steps.notes

    def test_depth_stays_unknown_where_the_rate_fits_neither(self):
        reading = sglang(PREFILL, *[decode(100, 1, 2.40, 0.84)] * 3)
        assert [p.depth for p in reading.points] == [None]
        assert "give depth=" in reading.notes[0]
        assert [p.depth for p in sglang(PREFILL, *[decode(100, 1, 2.4, 0.84)] * 3, hints=Hints(depth=2)).points] == [2]

    def test_server_arguments_say_the_shape(self):
        arguments = "[2025-01-02 03:04:05] server_args=ServerArgs(tp_size=4, speculative_num_steps=5, speculative_eagle_topk=4, speculative_num_draft_tokens=16)"  # noqa: E501
        reading = sglang(arguments, PREFILL, *[decode(100, 1, 3.1, 0.19)] * 3)
        (point,) = reading.points
        assert (point.depth, point.topk, point.num_draft_tokens) == (5, 4, 16)
        assert reading.setup["parallelism"] == "tp4"

    def test_the_baseline_and_drifting_punctuation(self):
        reading = sglang(PREFILL, *[decode(90.0, 2, comma=",", token=800)] * 3)
        (point,) = reading.points
        assert (point.depth, point.batch, point.tok_s, point.context_tokens) == (0, 2, 90.0, 400)

    def test_throughput_is_tokens_over_time(self):
        reading = sglang(PREFILL, decode(1, 1, 2, 0.5), decode(100.0, 1, 2.0, 0.5), decode(150.0, 1, 3.0, 0.75))
        (point,) = reading.points
        assert point.accept_length == 2.5  # as many rounds in either
        assert point.tok_s == pytest.approx(5 / (2 / 100 + 3 / 150), abs=1e-3)

    def test_changes_of_load_and_ranks(self):
        tp1 = "[2025-01-02 03:04:05 DP1 TP1] "
        lines = (
            PREFILL,
            decode(90, 1),
            decode(95, 2),
            decode(95, 2),
            decode(1, 2, prefix=tp1),
            decode(50, 2, prefix=tp1),
        )
        reading = sglang(*lines)
        assert reading.dropped == {"first line after a prefill": 2, "number of running requests changed": 1}
        assert reading.used == 2

    def test_long_contexts_make_their_own_points(self):
        lines = [decode(90, 1, token=t) for t in (100, 200, 300, 40_000, 41_000)]
        assert [p.context_tokens for p in sglang(PREFILL, *lines).points] == [250, 40_500]

    def test_a_depth_that_can_not_be_is_said(self):
        reading = sglang(PREFILL, *[decode(100, 1, 2.4, 0.84)] * 4, hints=Hints(depth=1))
        assert reading.points == () and reading.used == 0
        assert reading.dropped["accept_length = 2.4: must be at most depth + 1 = 2"] == 3

    def test_a_speculating_server_is_no_baseline(self):
        reading = sglang(PREFILL, *[decode(100, 1, 2.4, 0.84)] * 4, hints=Hints(depth=0))
        assert reading.points == () and reading.dropped["accept length printed, but depth 0 given"] == 3

    def test_new_fields_and_no_prefix(self):
        line = "Decode batch. #running-req: 3, #full token: 900, new: 1, gen throughput (token/s): 70.5"
        (point,) = sglang(line, line).points
        assert (point.batch, point.tok_s, point.context_tokens) == (3, 70.5, 300)


class TestAnyFile:
    def write(self, path, lines):
        path.write_text("\n".join(lines))
        return path

    def test_formats_are_told_apart(self, tmp_path):
        assert sniff(self.write(tmp_path / "a", ["hello", *STEADY])) == "vllm-log"
        assert sniff(self.write(tmp_path / "b", ["hello", PREFILL])) == "sglang-log"
        assert sniff(self.write(tmp_path / "c", ['{"log": "' + STEADY[0] + '"}'])) == "vllm-log"

    @pytest.mark.parametrize(
        ("content", "rule"),
        [(b"", "is empty"), (b"\0\1\2" * 999, "is not text"), (b"hello\n" * 9, "holds no line of a known format")],
    )
    def test_what_is_of_no_known_format(self, tmp_path, content, rule):
        path = tmp_path / "x"
        path.write_bytes(content)
        with pytest.raises(InputError, match=rule):
            read_measurements(path)

    def test_missing_file_and_folder(self, tmp_path):
        with pytest.raises(InputError, match="No such file"):
            read_measurements(tmp_path / "none")
        with pytest.raises(InputError, match="Is a directory"):
            read_measurements(tmp_path)

    def test_gzip_and_one_that_breaks_off(self, tmp_path):
        noise = random.Random(1).randbytes(20_000).hex()
        text = "\n".join([*STEADY, *NEXT, noise, STEADY[0][:60]]).encode()
        path = tmp_path / "log.gz"
        path.write_bytes(gzip.compress(text))
        whole = read_measurements(path)
        assert whole.points == vllm(*STEADY, *NEXT).points and whole.notes == ()
        path.write_bytes(gzip.compress(text)[:-8000])
        cut = read_measurements(path)
        assert cut.points == whole.points
        (note,) = cut.notes
        assert note.startswith("the gzip file is cut off after ") and note.endswith("only what comes before was read")
        damaged = bytearray(gzip.compress(text))
        damaged[-1] ^= 1  # its checksums
        path.write_bytes(damaged)
        assert "the gzip file is corrupt after" in read_measurements(path).notes[0]

    @pytest.mark.parametrize(
        ("content", "rule"),
        [
            (b"\x1f\x8b" + bytes(60), "is a corrupt gzip file: nothing of it can be read"),
            (gzip.compress(b"hello")[:5], "is a cut off gzip file: nothing of it can be read"),
            (gzip.compress(b""), "is empty"),
        ],
    )
    def test_gzip_files_that_hold_nothing(self, tmp_path, content, rule):
        path = tmp_path / "log.gz"
        path.write_bytes(content)
        with pytest.raises(InputError, match=rule):
            read_measurements(path)

    def test_the_line_that_a_gzip_file_breaks_off_in_is_not_read(self, tmp_path):
        path = tmp_path / "log.gz"
        path.write_bytes(gzip.compress(b"one\ntwo\nthr", mtime=0)[:-8])
        lines = stream_lines(path)
        assert list(lines) == [b"one", b"two"] and lines.fault is not None

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
    def test_other_encodings(self, tmp_path, encoding):
        path = tmp_path / "log"
        path.write_text("\n".join([*STEADY, *NEXT]), encoding=encoding)
        assert read_measurements(path).points == vllm(*STEADY, *NEXT).points

    @pytest.mark.parametrize("size", [2, 3, 5, 64, 1000])
    def test_line_ends_of_every_kind(self, tmp_path, monkeypatch, size):
        path = tmp_path / "log"
        path.write_bytes(b"a\r\n\r\nb\rc\n\nd\r\re\r\n")
        monkeypatch.setattr("eagle_speedup.readers.lines.MAX_LINE", size)
        assert list(stream_lines(path)) == [b"a", b"", b"b", b"c", b"", b"d", b"", b"e"]

    def test_progress_bars_before_a_record_do_not_hide_it(self, tmp_path):
        path = tmp_path / "log"
        bar = "\r".join(f"loading {n}%" for n in range(10_000))
        path.write_text("\n".join([*STEADY, f"{bar}\r{NEXT[0]}", NEXT[1]]), newline="")
        assert path.stat().st_size > MAX_LINE
        assert read_measurements(path).points == vllm(*STEADY, *NEXT).points

    def test_binary_noise_between_good_lines(self, tmp_path):
        noise = random.Random(1).randbytes(5000)
        path = tmp_path / "log"
        path.write_bytes(b"\n".join([b"\n".join(map(str.encode, STEADY)), noise, *map(str.encode, NEXT)]))
        assert read_measurements(path).points == vllm(*STEADY, *NEXT).points

    @pytest.mark.parametrize("running", ["1e999", "9" * 30, "-1", "", "one"])
    def test_absurd_fields_are_not_believed(self, running):
        lines = [line.replace("Running: 1 ", f"Running: {running} ") for line in (*STEADY, *NEXT)]
        assert vllm(*lines).points == ()

    def test_a_broken_off_record_is_not_used(self):
        assert vllm(*STEADY, NEXT[0][:120], NEXT[1]).points == ()

    def test_memory_does_not_grow_with_the_file(self, tmp_path):
        path = tmp_path / "log"
        block = "\n".join([*STEADY, *NEXT, "y" * 300] * 20).encode() + b"\n"
        with path.open("wb") as out:
            for _ in range(100):
                out.write(block)
            out.write(b"z" * (40 * MAX_LINE))  # one endless line
        assert path.stat().st_size > 4_000_000
        tracemalloc.start()
        reading = read_measurements(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert reading.used > 1000
        assert peak < 1_000_000

    def test_endless_lines_are_cut(self, tmp_path):
        path = tmp_path / "log"
        path.write_bytes(b"a" * (3 * MAX_LINE) + b"\nb\n")
        assert [len(line) for line in stream_lines(path)] == [MAX_LINE, 1]


class TestHints:
    ARGUMENTS = "server_args=ServerArgs(speculative_num_steps=3, speculative_eagle_topk=1, tp_size=8)"

    def test_a_depth_that_the_server_arguments_deny(self):
        lines = (self.ARGUMENTS, decode(90, 1, 2.4, 0.6), decode(90, 1, 2.4, 0.6))
        assert sglang(*lines, hints=Hints(depth=3)).points[0].depth == 3
        with pytest.raises(InputError, match=r"depth = 2: contradicts the log's server arguments, which say .* = 3"):
            sglang(*lines, hints=Hints(depth=2))

    def test_a_depth_that_the_rates_deny_is_taken_with_a_note(self):
        lines = [decode(90, 1, length, round(length / 4, 2)) for length in (2.4, 2.5, 2.7, 2.9, 3.1)]
        reading = sglang(*lines, hints=Hints(depth=5))
        assert reading.points[0].depth == 5
        assert "depth 5 taken as given, though the log's own figures fit another: depth 3" in reading.notes[0]
        assert sglang(*lines, hints=Hints(depth=3)).notes == ()

    def test_hints_are_held_against_the_points(self, tmp_path):
        path = tmp_path / "spec.log"
        path.write_text("\n".join((*STEADY, *NEXT)))
        with pytest.raises(InputError, match=r"depth = 1: contradicts spec.log, which says 3"):
            read_measurements(path, Hints(depth=1))
        with pytest.raises(InputError, match=r"batch = 2: contradicts spec.log, which says 1"):
            read_measurements(path, Hints(batch=2))

    def test_a_context_of_another_order(self, tmp_path):
        path = tmp_path / "s.log"
        path.write_text("\n".join([decode(90, 1, token=300)] * 4))
        assert read_measurements(path, Hints(depth=0, context_tokens=400)).points[0].context_tokens == 300
        with pytest.raises(InputError, match=r"context = 5000: contradicts s.log, which says 300 tokens"):
            read_measurements(path, Hints(depth=0, context_tokens=5000))


class TestDates:
    def test_vllm_prints_no_year(self):
        assert vllm(*STEADY, *NEXT).date == "03-01"

    def test_sglang_does(self):
        assert sglang(decode(90, 1), decode(90, 1)).date == "2025-01-02"
        assert sglang(decode(90, 1, prefix="")).date is None
