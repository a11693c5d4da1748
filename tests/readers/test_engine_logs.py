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


def decode(tok_s, running=1, length=None, rate=None, *, token=100, comma=".", prefix="[2025-01-02 03:04:05 TP0] "):
    spoken = "" if length is None else f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
    return (
        f"{prefix}Decode batch{comma} #running-req: {running}, #token: {token}, token usage: 0.00, {spoken}"
        f"cuda graph: True, gen throughput (token/s): {tok_s}, #queue-req: 0, "
    )


PREFILL = "[2025-01-02 03:04:05 TP0] Prefill batch. #new-seq: 1, #new-token: 28, #cached-token: 0, #running-req: 0"


def sglang(*lines, hints=None):
    return read_sglang_log([line.encode() for line in lines], hints)


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
            (b"\x1f\x8b" + bytes(60), "is a gzip file that is corrupt before any text"),
            (gzip.compress(b"hello")[:5], "is a gzip file that is cut off before any text"),
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
