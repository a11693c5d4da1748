"""vLLM logs: steady intervals, speculation counters, and who printed them."""

from __future__ import annotations

import pytest

from eagle_speedup.readers.reading import Hints

from .test_engine_logs import NEXT, STEADY, spec, stats, vllm


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

    def test_intervals_of_one_load_that_differ_wildly_are_said(self):
        lines = [stats(10 * i, 122.0 if i % 2 else 70.0, 1) for i in range(6)]
        reading = vllm(*lines)
        note = "rounds per second of the 5 intervals at batch 1 vary by 28 % (standard deviation over mean)"
        assert reading.notes[-1] == f"{note}: is it steady?" and reading.points[0].tok_s == 101.2
        calm = vllm(*[stats(10 * i, 104.0 if i % 2 else 96.0, 1) for i in range(6)])
        assert not any("steady" in n for n in calm.notes)

    def test_only_the_least_steady_load_is_told_in_full(self):
        lines = [stats(10 * i, (80.0 if i % 2 else 70.0) * (1 if i < 3 else 1 + i % 2), i // 3 + 1) for i in range(6)]
        assert not any("steady" in n for n in vllm(*lines[:3]).notes)
        lines[1] = stats(10, 120.0, 1)
        assert vllm(*lines).notes[-1].endswith("is it steady?; 1 more vary by 15 % or more")

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

    @staticmethod
    def printed_by(prefix, *lines):
        return [line.replace("(APIServer pid=7) ", prefix) for line in lines]

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("(APIServer pid=7) ", "(APIServer pid=8) "),
            ("vllm-a-1  | (APIServer pid=1) ", "vllm-b-1  | (APIServer pid=1) "),
            ("[pod/vllm-0/vllm] (APIServer pid=1) ", "[pod/vllm-1/vllm] (APIServer pid=1) "),
        ],
    )
    @pytest.mark.parametrize("offset", [0, 4])
    def test_two_servers_in_one_log_are_kept_apart(self, one, other, offset):
        lines = []
        for s in (0, 10, 20):
            counters = [0.8, 0.5, 0.367]
            lines += self.printed_by(one, stats(s, 80.0, 1), spec(s, 500, 900, counters))
            lines += self.printed_by(other, stats(s + offset, 160.0, 1), spec(s + offset, 1000, 1800, counters))
        reading = vllm(*lines)
        assert [(p.batch, p.tok_s) for p in reading.points] == [(1, 80.0), (1, 160.0)]  # not 120 once
        (note,) = reading.notes
        assert note.startswith("2 servers in the log (1 = ") and one.split()[0].strip("(") in note

    def test_a_server_that_was_started_again_with_speculation(self):
        baseline = self.printed_by("(APIServer pid=3) ", *(stats(s, 50.0, 1) for s in (0, 10, 20)))
        later = [line.replace("10:00:", "11:00:") for line in (*STEADY, *NEXT)]
        reading = vllm(*baseline, *later)
        assert [(p.depth, p.tok_s) for p in reading.points] == [(0, 50.0), (3, 80.0)]

    def test_ranks_with_processes_of_their_own_are_one_server(self):
        lines = []
        for s in (0, 10):
            counters = spec(s, 500, 900, [0.8, 0.5, 0.367])
            lines += [stats(s, 80.0, 1), counters]
            lines += self.printed_by("(APIServer pid=8) ", stats(s, 80.0, 1, engine="001"), counters)
        reading = vllm(*lines)
        assert [(p.batch, p.tok_s) for p in reading.points] == [(2, 160.0)]
        assert reading.notes == ("2 engines, summed to the node's batch and tok/s",)

    def test_more_processes_than_a_log_has(self, monkeypatch):
        monkeypatch.setattr("eagle_speedup.readers.vllm_servers._MAX_PROCESSES", 3)
        lines = [self.printed_by(f"(APIServer pid={n}) ", stats(0, 80.0, 1))[0] for n in range(50)]
        assert vllm(*lines).dropped == {"start not seen": 3}

    def test_two_servers_that_nothing_tells_apart_are_not_used(self):
        lines = [
            line for s in (0, 10, 20) for tok_s in (80.0, 160.0) for line in self.printed_by("", stats(s, tok_s, 1))
        ]
        reading = vllm(*lines)
        assert reading.points == ()
        assert reading.dropped["an engine printed twice in one second: two servers in one log?"] == 6

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
