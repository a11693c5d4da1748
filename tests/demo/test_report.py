"""Sentences with literal numbers."""

from __future__ import annotations

from typing import Any

from eagle_speedup.demo.comparing import Comparison, DepthRow
from eagle_speedup.demo.report import answer_sentence, illustration_sentence, verdict_lines
from eagle_speedup.estimate import Estimate
from eagle_speedup.projection.speedup import DepthProjection, SpeedupProjection


def projection(ratio=1.2, depth=1, best_depth=1):
    headline = DepthProjection(
        depth=depth,
        accept_length=Estimate(1.52, 1.45, 1.59),
        round_ms=Estimate(9.0, 8.9, 9.1),
        tok_s=Estimate(168.9, 160.0, 177.0),
        ratio=Estimate(ratio, ratio - 0.04, ratio + 0.04),
        breakeven=Estimate(1.27, 1.25, 1.29),
    )
    return SpeedupProjection(headline, (headline,), best_depth, 1, None, "0123456789ab", ())


def comparison(**changes):
    row = DepthRow(1, Estimate(1.52, 1.45, 1.59), 1.52, 30, 30, Estimate(168.9, 160.0, 177.0), 165.0)
    values: dict[str, Any] = {
        "rows": (row,),
        "answers": tuple(range(30)),
        "held_out": 30,
        "plain_tok_s": 140.0,
        "plain_calibrated": Estimate.exact(141.0),
        "different": 0,
        "checked": 30,
    }
    return Comparison(**(values | changes))


def test_the_answer():
    assert answer_sentence(projection(), comparison()) == (
        "What speedup at current perf? 1.20x [1.16, 1.24] on this machine, 167.7 [158.9, 175.7] tok/s at depth 1, "
        "the best one (accept length 1.52, breakeven 1.27; served: 1.18x)."
    )


def test_a_part_of_the_answers_is_told():
    text = answer_sentence(projection(), comparison(answers=(0, 4, 7), held_out=30))
    assert "served on 3 of the 30 answers: 1.18x" in text


def test_no_speedup_is_said():
    text = answer_sentence(projection(ratio=0.9, best_depth=0), comparison())
    assert "none on this machine: at best 0.90x [0.86, 0.94], at depth 1" in text


def test_the_illustration_never_looks_like_a_forecast():
    text = illustration_sentence(projection(), "Kimi")
    assert text.startswith("Illustration only, another node with another verifier (Kimi)")


def test_what_holds_is_told_as_counted():
    assert verdict_lines(comparison()) == [
        "0 answers differ from plain greedy decoding (30 compared).",
        "Rounds projected == rounds served in 30 of 30 answers at every depth.",
        "Mean absolute error of the projected tok/s over the depths: 2.4 %.",
    ]


def test_what_does_not_hold_is_told_too():
    unequal = DepthRow(1, Estimate(1.52, 1.45, 1.59), 1.5, 28, 30, Estimate(168.9, 160.0, 177.0), 165.0)
    lines = verdict_lines(comparison(rows=(unequal,), different=2, plain_calibrated=Estimate.exact(160.0)))
    assert lines[0].startswith("2 answers differ")
    assert "only 28 of 30 at depth 1" in lines[1]
    assert "12% slower than when this machine was calibrated" in lines[-1]
    assert "its error would be 17.0 %" in lines[-1]  # (1 + 2.36 %) * 160 / 140 - 1
