"""SGLang logs: steady intervals, draft depth, and the sum over data-parallel ranks."""

from __future__ import annotations

import pytest

from eagle_speedup.readers.reading import Hints

from .test_engine_logs import PREFILL, decode, sglang


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
        assert not any("steady" in note for note in reading.notes)  # tokens vary with what is accepted, rounds do not

    def test_changes_of_load_and_ranks(self):
        tp1 = "[2025-01-02 03:04:05 TP1] "
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

    @staticmethod
    def ranks(*lines, tp=""):
        """Lines of data-parallel ranks from (second, rank, tok/s, running, accept length)."""
        prefix = "[2025-01-02 03:04:{:02d} DP{}{}] "
        return [
            decode(tok_s, running, length, (length - 1) / 3, prefix=prefix.format(s, rank, tp))
            for s, rank, tok_s, running, length in lines
        ]

    @pytest.mark.parametrize("tp", ["", " TP0", " TP3 EP3"])
    def test_data_parallel_ranks_are_summed(self, tp):
        lines = self.ranks(*((s, rank, 100.0 + rank, 2 + rank, 2.5) for s in range(6) for rank in (0, 1)), tp=tp)
        reading = sglang(*lines)
        (point,) = reading.points
        assert (point.batch, point.tok_s, point.accept_length) == (5, 201.0, 2.5)  # not 2, 100 and 3, 101
        assert reading.notes[-1] == "2 data-parallel ranks, summed to the node's batch and tok/s"

    def test_the_accept_length_of_ranks_is_tokens_over_rounds(self):
        lines = self.ranks(*((s, r, (100.0, 300.0)[r], 1, (2.0, 3.0)[r]) for s in range(6) for r in (0, 1)))
        (point,) = sglang(*lines).points
        assert point.accept_length == pytest.approx(400 / (100 / 2 + 300 / 3), abs=1e-3)

    def test_tensor_parallel_ranks_of_a_data_parallel_one_are_one_scheduler(self):
        lines = [
            line
            for s in range(6)
            for rank in (0, 1)
            for tp in (0, 1)
            for line in self.ranks((s, rank, 100.0, 2, 2.5), tp=f" TP{2 * rank + tp}")
        ]
        reading = sglang(*lines)
        assert [(p.batch, p.tok_s) for p in reading.points] == [(4, 200.0)]

    def test_a_rank_without_requests_is_idle(self):
        both = [(s, rank, 100.0, 2, 2.5) for s in range(10) for rank in (0, 1)]
        alone = [(s, 0, 120.0, 2, 2.5) for s in range(10, 40)]
        one, two = sglang(*self.ranks(*both, *alone)).points
        assert (one.batch, one.tok_s) == (2, 120.0)
        assert two.batch == 4 and two.tok_s == pytest.approx(200.0, rel=0.03)

    def test_a_slower_rank_is_not_idle(self):
        lines = [(s, 0, 100.0, 2, 2.5) for s in range(20)] + [(s, 1, 30.0, 2, 2.5) for s in range(0, 20, 4)]
        reading = sglang(*self.ranks(*sorted(lines)))
        assert [(p.batch, p.tok_s) for p in reading.points] == [(4, 130.0)]

    def test_a_prefill_on_one_rank_disturbs_the_others(self):
        prefill = "[2025-01-02 03:04:09 DP1] Prefill batch. #new-seq: 1, #new-token: 28, #running-req: 0"
        before, after = ([(s, rank, 100.0, 2, 2.5) for s in span for rank in (0, 1)] for span in ((1, 2, 3), (9, 10)))
        reading = sglang(*self.ranks(*before), prefill, *self.ranks(*after))
        assert [(p.batch, p.tok_s) for p in reading.points] == [(4, 200.0)]
        assert reading.dropped["another data-parallel rank was not steady"] == 3

    def test_a_rank_that_ran_before_its_first_line(self):
        late = [(3, 1, 100.0, 2, 2.5), (4, 0, 100.0, 2, 2.5), (4, 1, 100.0, 2, 2.5)]
        reading = sglang(*self.ranks(*((s, 0, 100.0, 2, 2.5) for s in range(3)), *late))
        assert [(p.batch, p.tok_s) for p in reading.points] == [(4, 200.0)]  # nothing of 100 tok/s at batch 2

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
