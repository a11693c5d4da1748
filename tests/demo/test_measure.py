"""Serving in turn, adding up, and comparing."""

from __future__ import annotations

import gc

import pytest
import torch

from eagle_speedup.acceptance import TTTAcceptance
from eagle_speedup.demo.calibrating import machine_calibration, measured_points, spread_out
from eagle_speedup.demo.comparing import compare, rounds_projected
from eagle_speedup.demo.machine import Machine
from eagle_speedup.demo.measure import Served, serve, total
from eagle_speedup.eagle3.decoder import Answer, DecodeResult, finish, greedy_decode, greedy_rounds
from eagle_speedup.errors import InputError

MACHINE = Machine(
    memory_gb=20.0, threads=2, decode_threads=1, kernels=("float16", "plain"), step_ms=10.0, positions_s=2500.0
)
# Two answers of 5 and 3 tokens after the first; a drafter that is right at its first step every second time.
IDS = {0: (7, 1, 2, 3, 4, 5), 1: (7, 8, 9, 6)}


def served(answer, depth, rounds, seconds, ids=None):
    ids = IDS[answer] if ids is None else ids
    return Served(answer, depth, len(ids) - 1, rounds, seconds, tuple(ids))


def profile():
    # Anchors t = 1.. of the rows (prompt token 0, then the answer): the draft is right at every even anchor.
    longest = max(map(len, IDS.values())) + 1
    target = torch.zeros(2, longest, dtype=torch.long)
    for row, ids in IDS.items():
        target[row, 1 : 1 + len(ids)] = torch.tensor(ids)
    drafts = torch.full((1, 2, longest), -1)
    drafts[0, :, 2:-1:2] = target[:, 3::2]
    metric = TTTAcceptance(1, blocks=4)
    metric.update(drafts, target, torch.tensor([[0, 1, 6], [1, 1, 4]]), sequence_index=torch.arange(2))
    return metric.compute()


def test_all_depths_write_an_answer_side_by_side():
    order, collecting = [], []

    def decode(answer, depth):
        for tokens in range(0, 6, depth + 1):  # a round makes depth + 1 tokens
            order.append((answer, depth, tokens))
            collecting.append(gc.isenabled())
            yield tokens
        return DecodeResult([Answer(3, [1, 2, 3])], depth, 1, seconds=0.1, steps=2)

    result = serve(decode, [4, 2], (0, 1, 2))
    warm_up, counted = order[:11], order[11:]
    assert [depth for _, depth, _ in warm_up] == [0] * 6 + [1] * 3 + [2] * 2
    assert [answer for answer, _, _ in counted] == [4] * 11 + [2] * 11
    # After prefill (0 tokens) always the one that is behind: plain, plain, then depth 1 (at 2), and so on.
    assert [(d, n) for _, d, n in counted[:11]] == [
        (0, 0), (1, 0), (2, 0), (0, 1), (1, 2), (2, 3), (0, 2), (0, 3), (1, 4), (0, 4), (0, 5),
    ]  # fmt: skip
    assert [(s.answer, s.depth) for s in result] == [(4, 0), (4, 1), (4, 2), (2, 0), (2, 1), (2, 2)]
    assert {(s.tokens, s.rounds, s.seconds) for s in result} == {(2, 2, 0.1)}
    assert not any(collecting[11:]) and gc.isenabled()


def test_serving_stops_when_the_time_is_up():
    def decode(answer, depth):
        yield from ()
        return DecodeResult([Answer(3, [1, 2, 3])], depth, 1, seconds=0.1, steps=2)

    served = serve(decode, [4, 2, 9], (0, 1), go_on=lambda answers: answers < 2)
    assert [s.answer for s in served] == [4, 4, 2, 2]


def test_the_pauses_of_a_run_are_not_timed(subject, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("eagle_speedup.eagle3.decoder.time.perf_counter", lambda: clock[0])
    rounds = greedy_rounds(subject.verifier, [[1, 2, 3]], max_new=12)
    assert next(rounds) == 0  # the prefill's token is no decoded one
    clock[0] += 100.0
    result = finish(rounds)
    assert result.seconds == 0.0
    assert result.answers == greedy_decode(subject.verifier, [[1, 2, 3]], max_new=12).answers


def test_totals_are_ratios_of_sums():
    runs = [served(0, 1, 4, 0.040), served(1, 1, 1, 0.020), served(0, 0, 5, 0.05)]
    sums = total(runs, 1)
    assert sums.accept_length == 8 / 5 and sums.accept_length != (5 / 4 + 3) / 2
    assert sums.round_ms == pytest.approx(12.0) and sums.tok_s == pytest.approx(8 / 0.06)
    assert total(runs, 1, [0]).rounds == 4
    with pytest.raises(InputError, match="depth = 3"):
        total(runs, 3)


def test_rounds_of_every_answer():
    assert rounds_projected(profile(), 1) == {0: 3, 1: 2}
    crowded = TTTAcceptance(1, blocks=1)
    crowded.update(torch.full((1, 2, 7), -1), torch.ones(2, 7, dtype=torch.long), torch.tensor([[0, 1, 6], [1, 1, 4]]))
    with pytest.raises(InputError, match="blocks = 1: must be at least the number of answers"):
        rounds_projected(crowded.compute(), 1)


def comparison_of(runs):
    points = measured_points([served(0, 0, 5, 0.05), served(0, 1, 4, 0.052), served(0, 3, 3, 0.042)], (0, 1, 3), [[0]])
    calibration = machine_calibration(points, "tiny", MACHINE)
    return compare(runs, [IDS[0], IDS[1], (3,)], profile(), calibration)


def test_equal_rounds_and_answers():
    runs = [served(0, 0, 5, 0.05), served(1, 0, 3, 0.03), served(0, 1, 3, 0.039), served(1, 1, 2, 0.026)]
    comparison = comparison_of(runs)
    (row,) = comparison.rows
    assert comparison.different == 0 and comparison.checked == 2 and comparison.rounds_all_equal
    assert row.accept_length == row.accept_length_projected.value == 8 / 5
    assert row.tok_s == pytest.approx(8 / 0.065) and comparison.plain_tok_s == pytest.approx(100.0)
    assert comparison.mean_error == abs(row.error) == pytest.approx(abs(row.tok_s_projected.value / row.tok_s - 1))
    assert comparison.speedup == pytest.approx(1.6 / 1.3)
    assert comparison.pace == pytest.approx(1.0, abs=0.01)


def test_a_round_too_many_or_another_token_is_found():
    plain = [served(0, 0, 5, 0.05), served(1, 0, 3, 0.03)]
    comparison = comparison_of([*plain, served(0, 1, 4, 0.04), served(1, 1, 2, 0.03, ids=(7, 8, 9, 5))])
    assert comparison.rows[0].rounds_equal == 1 and not comparison.rounds_all_equal
    assert comparison.different == 1
    # Equal totals do not hide unequal answers.
    swapped = comparison_of([*plain, served(0, 1, 2, 0.04), served(1, 1, 3, 0.03)])
    assert swapped.rows[0].accept_length == 8 / 5 and swapped.rows[0].rounds_equal == 0


def test_only_what_was_served_is_compared():
    (row,) = comparison_of([served(0, 0, 5, 0.05), served(0, 1, 3, 0.039)]).rows
    assert row.accept_length_projected.value == row.accept_length == 5 / 3
    assert row.rounds_equal == row.answers == 1


def test_the_projection_follows_the_machine_s_pace():
    slow = 1.2  # everything takes so much longer than when it was calibrated
    runs = [served(0, 0, 5, slow * 0.05), served(0, 1, 3, slow * 0.039)]
    comparison = comparison_of(runs)
    assert comparison.pace == pytest.approx(1 / slow, rel=0.01)
    assert comparison.mean_error < 0.02
    assert comparison.mean_error_as_calibrated == pytest.approx(slow - 1, abs=0.02)


def test_the_pace_hides_no_error_of_the_speedup():
    # Plain decoding is as fast as when it was calibrated, rounds take a fifth longer.
    comparison = comparison_of([served(0, 0, 5, 0.05), served(0, 1, 3, 1.2 * 0.039)])
    assert comparison.mean_error == pytest.approx(0.2, abs=0.02)


def test_an_answer_of_one_token_takes_no_round():
    runs = [served(0, 0, 5, 0.05), Served(2, 0, 0, 0, 0.0, (3,)), served(0, 1, 3, 0.039), Served(2, 1, 0, 0, 0.0, (3,))]
    assert comparison_of(runs).rows[0].rounds_equal == 2


def test_the_calibration_gives_back_what_was_timed():
    groups = [[0], [1]]
    rounds = {0: {0: 5, 1: 4, 3: 3, 5: 3}, 1: {0: 3, 1: 2, 3: 2, 5: 1}}
    seconds = {0: 0.010, 1: 0.013, 3: 0.015, 5: 0.017}
    runs = [served(a, depth, n, n * seconds[depth]) for a, by_depth in rounds.items() for depth, n in by_depth.items()]
    points = measured_points(runs, (0, 1, 3, 5), groups)
    assert len(points) == 8 and {p.depth for p in points} == {0, 1, 3, 5}
    model = machine_calibration(points, "tiny", MACHINE).model
    assert model.step_ms().value == pytest.approx(10.0, rel=0.02)
    for depth in (1, 2, 3, 4, 5):
        assert model.round_ms(depth).value == pytest.approx(12 + depth, rel=0.02)
    # Nothing but rounds is timed, so tok/s is accept length over round time.
    assert model.tok_s(1.5, 2).value == pytest.approx(1500 / model.round_ms(2).value, rel=1e-3)


def test_calibration_answers_stand_for_all_lengths():
    lengths = [50, 10, 40, 20, 30, 60]
    assert [lengths[i] for i in spread_out(3, lengths)] == [20, 40, 60]
    assert sorted(spread_out(9, lengths)) == [0, 1, 2, 3, 4, 5]
