"""Logs of several runs: a server that was started again with other settings is another server."""

from __future__ import annotations

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.readers.intervals import Interval, Intervals
from eagle_speedup.readers.reading import Hints

from .test_engine_logs import NEXT, PREFILL, STEADY, decode, sglang, stats, vllm


def arguments(steps, topk, nodes, *, tp=4, algorithm="'EAGLE3'"):
    return (
        f"[2025-01-02 03:04:00] server_args=ServerArgs(tp_size={tp}, speculative_algorithm={algorithm}, "
        f"speculative_num_steps={steps}, speculative_eagle_topk={topk}, speculative_num_draft_tokens={nodes})"
    )


def run(count, tok_s, length=None, rate=None):
    """A prefill, its useless first line, and ``count`` steady ones."""
    return [PREFILL, *[decode(tok_s, 1, length, rate)] * (count + 1)]


THREE = (150.0, 2.20, 0.40)  # (2.20 - 1) / 3; 2.20 / 0.40 = 5.5 is no whole number
FIVE = (200.0, 3.10, 0.42)  # (3.10 - 1) / 5; 3.10 / 0.42 = 7.4 is none


class TestSglangRuns:
    @staticmethod
    def shapes(reading):
        return [(p.depth, p.topk, p.num_draft_tokens, p.tok_s, p.accept_length) for p in reading.points]

    def test_each_run_has_points_of_its_own(self):
        reading = sglang(arguments(3, 1, 4), *run(4, *THREE), arguments(5, 1, 6), *run(4, *FIVE))
        assert self.shapes(reading) == [(3, 1, 4, 150.0, 2.2), (5, 1, 6, 200.0, 3.1)]  # not 3, 1, 4, 175.0, 2.65
        assert reading.notes == ("2 runs in the log: the server was started again; each has its own points",)
        assert reading.used == 8 and dict(reading.dropped) == {"first line after a prefill": 2}

    def test_a_chain_and_then_a_tree(self):
        reading = sglang(arguments(3, 1, 4), *run(2, *THREE), arguments(3, 4, 16), *run(2, 180.0, 2.9, 0.18))
        assert self.shapes(reading) == [(3, 1, 4, 150.0, 2.2), (3, 4, 16, 180.0, 2.9)]

    def test_a_baseline_and_then_speculation(self):
        plain = arguments(None, None, None, algorithm=None)
        reading = sglang(plain, *run(2, 90.0), arguments(5, 1, 6), *run(2, *FIVE))
        assert self.shapes(reading) == [(0, 1, None, 90.0, None), (5, 1, 6, 200.0, 3.1)]

    def test_no_interval_spans_a_restart(self):
        reading = sglang(arguments(3, 1, 4), *run(1, *THREE), arguments(3, 1, 4), decode(*THREE[:1], 1, *THREE[1:]))
        assert reading.used == 1 and dict(reading.dropped) == {"first line after a prefill": 2}

    def test_the_last_arguments_before_the_decode_lines_count(self):
        reading = sglang(arguments(7, 1, 8), arguments(3, 1, 4), *run(2, *THREE))
        assert self.shapes(reading) == [(3, 1, 4, 150.0, 2.2)] and reading.notes == ()

    def test_runs_on_unlike_parts_of_a_node_are_refused(self):
        lines = (arguments(3, 1, 4), *run(2, *THREE), arguments(3, 1, 4, tp=8), *run(2, *THREE))
        with pytest.raises(InputError, match="parallelism = 'tp4, tp8': differs between the runs in the log"):
            sglang(*lines)

    def test_without_arguments_the_accept_rates_tell_runs_apart(self):
        reading = sglang(*run(5, *THREE), *run(5, *FIVE))
        assert self.shapes(reading) == [(3, 1, None, 150.0, 2.2), (5, 1, None, 200.0, 3.1)]
        assert reading.notes == ("runs of several draft depths in the log (3, 5), told apart by their accept rates",)

    def test_a_baseline_beside_runs_that_are_told_apart(self):
        reading = sglang(*run(5, *THREE), *run(5, *FIVE), *run(3, 90.0))
        assert [(p.depth, p.tok_s) for p in reading.points] == [(0, 90.0), (3, 150.0), (5, 200.0)]

    def test_a_few_lines_of_another_depth_are_left_out(self):
        reading = sglang(*run(30, *THREE), *run(4, *FIVE))
        assert self.shapes(reading) == [(3, 1, None, 150.0, 2.2)]  # 200 tok/s at 3.1 would be another drafter's
        fault = "its accept rate does not fit the draft depth of the other lines: another run in the log?"
        assert dict(reading.dropped) == {"first line after a prefill": 2, fault: 4}

    def test_lines_that_fit_several_of_the_runs_are_left_out(self):
        either = (170.0, 1.03, 0.01)  # 0.03 / 3 = 0.010 and 0.03 / 5 = 0.006
        reading = sglang(*run(5, *THREE), *run(5, *FIVE), *run(1, *either))
        assert self.shapes(reading) == [(3, 1, None, 150.0, 2.2), (5, 1, None, 200.0, 3.1)]
        assert reading.dropped["which of the log's draft depths it is of is not known"] == 1

    def test_a_hinted_depth_does_not_cover_another_run(self):
        reading = sglang(*run(5, *THREE), *run(5, *FIVE), hints=Hints(depth=3))
        assert [p.depth for p in reading.points] == [3, 5]  # which the hint then contradicts

    def test_a_rate_that_fits_both_meanings_is_said_to(self):
        reading = sglang(*run(3, 150.0, 2.5, 0.5))  # 2.5 / 5 and (2.5 - 1) / 3
        assert [p.depth for p in reading.points] == [None]
        fits = "draft depth not known: accept rate fits several of its meanings (depth 3 or 4); give depth="
        assert reading.notes == (fits,)

    @pytest.mark.parametrize("shape", [(3, 1, 4), (None, None, 12)])
    def test_a_speculating_server_without_accept_lengths_is_no_baseline(self, shape):
        reading = sglang(arguments(*shape), *run(3, 150.0))
        assert reading.points == ()
        fault = "no accept length printed, though the server arguments say that it speculates"
        assert dict(reading.dropped) == {"first line after a prefill": 1, fault: 3}


SPECULATES = "{'method': 'eagle3', 'num_speculative_tokens': 3}"
NO_COUNTERS = "no speculation counters, though the log's header says that it speculates"


def started(config=None, *, tp=4, version="0.11.0", pid="(APIServer pid=7) ", core="(EngineCore_DP0 pid=9) "):
    """The header of a vLLM server."""
    given = "" if config is None else f", 'speculative_config': {config}"
    made = "None" if config is None else "SpeculativeConfig(method='eagle3', num_spec_tokens=3)"
    return [
        f"{pid}INFO 03-01 09:59:00 [api_server.py:1] vLLM API server version {version}",
        f"{pid}INFO 03-01 09:59:00 [utils.py:1] non-default args: {{'tensor_parallel_size': {tp}{given}}}",
        f"{core}INFO 03-01 09:59:01 [core.py:7] Initializing a V1 LLM engine (v{version}) with config: model='m', "
        f"speculative_config={made}, tensor_parallel_size={tp}",
    ]


class TestVllmStarts:
    BASELINE = tuple(stats(s, 50.0, 1) for s in (0, 10, 20))
    LATER = tuple(line.replace("10:00:", "11:00:") for line in (*STEADY, *NEXT))

    @staticmethod
    def shapes(reading):
        return [(p.depth, p.tok_s) for p in reading.points]

    @pytest.mark.parametrize("lines", [slice(0, 1), slice(1, 2), slice(2, 3), slice(0, 3)])
    def test_a_server_that_says_it_speculates_is_no_baseline(self, lines):
        header = started(SPECULATES)[lines]
        reading = vllm(*header, *self.BASELINE)
        if lines == slice(0, 1):  # names no settings
            assert self.shapes(reading) == [(0, 50.0)]
        else:
            assert reading.points == () and dict(reading.dropped) == {"start not seen": 1, NO_COUNTERS: 2}

    def test_a_server_that_says_it_does_not_is_one(self):
        assert self.shapes(vllm(*started(), *self.BASELINE)) == [(0, 50.0)]

    @pytest.mark.parametrize("names", [{}, {"pid": "", "core": ""}, {"core": "(EngineCore_DP0 pid=77) "}])
    def test_the_runs_of_one_process_are_kept_apart(self, names):
        lines = [*started(**names), *self.BASELINE, *started(SPECULATES, **names), *self.LATER]
        if names.get("pid") == "":
            lines = [line.replace("(APIServer pid=7) ", "") for line in lines]
        reading = vllm(*lines)
        assert self.shapes(reading) == [(0, 50.0), (3, 80.0)]
        assert dict(reading.dropped) == {"start not seen": 2}
        assert reading.notes[0].startswith("2 servers in the log")
        assert reading.setup == {"engine": "vllm", "engine_version": "0.11.0", "parallelism": "tp4", "model": "m"}

    def test_a_baseline_after_speculation(self):
        later = [line.replace("10:00:", "11:00:") for line in self.BASELINE]
        reading = vllm(*started(SPECULATES), *STEADY, *NEXT, *started(), *later)
        assert self.shapes(reading) == [(3, 80.0), (0, 50.0)]

    def test_the_header_of_another_server_says_nothing_of_a_running_one(self):
        other = started(SPECULATES, pid="(APIServer pid=8) ", core="(EngineCore_DP0 pid=19) ")
        lines = [*started(), *self.BASELINE[:1], other[0], self.BASELINE[1], *other[1:], self.BASELINE[2]]
        reading = vllm(*lines)
        assert self.shapes(reading) == [(0, 50.0)] and reading.used == 2

    def test_containers_have_headers_of_their_own(self):
        here, there = "vllm-a-1  | ", "vllm-b-1  | "
        lines = [here + line for line in started(SPECULATES)] + [there + line for line in started()]
        lines += [there + line for line in self.BASELINE] + [here + line for line in self.BASELINE]
        reading = vllm(*lines)
        assert self.shapes(reading) == [(0, 50.0)] and reading.dropped[NO_COUNTERS] == 2

    def test_a_new_rank_does_not_join_a_server_that_is_gone(self):
        second = [stats(s, 40.0, 1, engine=e).replace("pid=7", f"pid={8 + int(e)}") for s in (0, 10) for e in "01"]
        second = [line.replace("10:00:", "11:00:") for line in second]
        reading = vllm(*started(), *self.BASELINE, *started(pid="(APIServer pid=8) "), *second)
        assert [(p.batch, p.tok_s) for p in reading.points] == [(1, 50.0), (2, 80.0)]

    @pytest.mark.parametrize(("key", "change"), [("parallelism", {"tp": 8}), ("engine_version", {"version": "0.12.0"})])
    def test_runs_of_unlike_servers_are_refused(self, key, change):
        lines = [*started(), *self.BASELINE, *started(SPECULATES, **change), *self.LATER]
        with pytest.raises(InputError, match=rf"{key} = '[\w.]+': differs from the [\w.]+ of a server before it"):
            vllm(*lines)
        assert vllm(*lines[:-4]).points != ()  # the second gave no point


def test_sums_that_are_merged_are_those_of_all():
    steps = [Interval(None, 1, tokens, 2.0, 1.0 + index) for index, tokens in enumerate((3.0, 5.0, 8.0))]
    first, second, at_once = Intervals(), Intervals(), Intervals()
    for index, step in enumerate(steps):
        (first if index < 2 else second).add(step)
        at_once.add(step)
    first.merge(second, None)
    (merged,), (whole,) = first.sums.values(), at_once.sums.values()
    assert (merged.count, merged.tokens, merged.seconds, merged.rounds) == (3, 16.0, 6.0, 6.0)
    assert merged.mean_pace == pytest.approx(1.0)  # of 0.5, 1.0 and 1.5
    assert merged.variation == pytest.approx(whole.variation) == pytest.approx(0.5)


class TestModels:
    """Logs of two models are of two nodes. The drafter is a model too, but not the one that is served."""

    VLLM = "INFO 03-01 09:59:00 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: "

    def test_the_served_one_is_named(self):
        drafter = "speculative_config=SpeculativeConfig(method='eagle3', model='drafter/one', num_spec_tokens=3)"
        for config in (f"model='served/one', {drafter}", f"{drafter}, model='served/one'"):
            assert vllm(self.VLLM + config, *STEADY, *NEXT).setup["model"] == "served/one"
        args = "INFO 03-01 09:59:00 non-default args: {'speculative_config': {'model': 'd'}, 'model': 'served/one'}"
        assert vllm(args, *STEADY, *NEXT).setup["model"] == "served/one"
        line = (
            "[2025-01-02 03:04:00] server_args=ServerArgs(speculative_draft_model_path='d', model_path='m', tp_size=4)"
        )
        assert sglang(line, *run(2, 90.0)).setup == {"engine": "sglang", "parallelism": "tp4", "model": "m"}

    def test_two_in_one_log_are_refused(self):
        runs = [f"[2025-01-02 03:04:00] server_args=ServerArgs(model_path='{m}', tp_size=4)" for m in ("one", "two")]
        with pytest.raises(InputError, match="model = 'one, two': differs between the runs in the log"):
            sglang(runs[0], *run(2, 90.0), runs[1], *run(2, 50.0))
