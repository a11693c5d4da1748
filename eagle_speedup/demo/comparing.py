"""Projected beside served: accept length, rounds of every answer, tok/s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..acceptance import AcceptanceCounts, AcceptanceProfile
from ..errors import InputError
from ..estimate import Estimate
from ..projection import SpeedupProjection, project
from ..throughput import Calibration
from .measure import Served, total

__all__ = ["Comparison", "DepthRow", "compare", "only", "rounds_projected"]


def rounds_projected(profile: AcceptanceProfile, depth: int) -> dict[int, int]:
    """Rounds of every answer as the walk counted them, by index; needs a profile with one answer a block."""
    counts = profile.counts
    if counts.answers.max() > 1:
        raise InputError("blocks", counts.blocks, "must be at least the number of answers")
    rounds = counts.accepted[:, depth - 1].sum(-1)
    return {int(i): int(rounds[i]) for i in counts.answers.nonzero()[0]}


@dataclass(frozen=True)
class DepthRow:
    """One depth of the final table."""

    depth: int
    accept_length_projected: Estimate
    accept_length: float
    """Served."""
    rounds_equal: int
    """Answers whose number of rounds is the projected one."""
    answers: int
    """Answers that were decoded, those of one token (no round) included."""
    tok_s_projected: Estimate
    """At the machine's pace of now, see `Comparison.pace`."""
    tok_s: float
    """Served."""

    @property
    def error(self) -> float:
        """Projected over served tok/s, minus 1."""
        return self.tok_s_projected.value / self.tok_s - 1


@dataclass(frozen=True)
class Comparison:
    """Projected against served."""

    rows: tuple[DepthRow, ...]
    answers: tuple[int, ...]
    """Indices of the answers that were served: all that were held out, unless the time ran out."""
    held_out: int
    """How many were held out."""
    plain_tok_s: float
    """Plain decoding, served beside the others."""
    plain_calibrated: Estimate
    """Plain decoding, when the machine was calibrated."""
    different: int
    """Answers of speculative decoding that are not plain decoding's, over all depths."""
    checked: int
    """Answers of speculative decoding that were compared."""

    @property
    def mean_error(self) -> float:
        """Mean of the absolute tok/s errors over the depths."""
        return sum(abs(row.error) for row in self.rows) / len(self.rows)

    @property
    def pace(self) -> float:
        """Speed of the machine over that of its calibration, by plain decoding, which was timed both times.

        The projection is a speedup over plain decoding; where that was measured again, its tok/s follow.
        """
        return self.plain_tok_s / self.plain_calibrated.value

    @property
    def mean_error_as_calibrated(self) -> float:
        """The same with the tok/s of the calibration's own hour: `pace` not taken into account."""
        return sum(abs((1 + row.error) / self.pace - 1) for row in self.rows) / len(self.rows)

    @property
    def best(self) -> DepthRow:
        """The fastest depth served."""
        return max(self.rows, key=lambda row: row.tok_s)

    @property
    def speedup(self) -> float:
        """Served tok/s of the fastest depth over plain decoding."""
        return self.best.tok_s / self.plain_tok_s

    @property
    def rounds_all_equal(self) -> bool:
        """Whether every answer took the projected number of rounds at every depth."""
        return all(row.rounds_equal == row.answers for row in self.rows)


def compare(
    served: Sequence[Served],
    written: Sequence[tuple[int, ...]],
    profile: AcceptanceProfile,
    calibration: Calibration,
) -> Comparison:
    """Put projected beside served at every depth.

    Args:
        served: of `serve`, depth 0 among the depths.
        written: every answer by plain greedy decoding.
        profile: of the same drafter on all answers, one answer a block.
        calibration: of this machine.
    """
    speculative = [s for s in served if s.depth > 0]
    depths = sorted({s.depth for s in speculative})
    # The same answers on both sides: where time ran out, those left are no error of the projection.
    answers = tuple(sorted({s.answer for s in served}))
    part = only(profile, answers)
    projection = project(part, calibration, max_depth=depths[-1])
    plain_tok_s, plain_calibrated = total(served, 0).tok_s, calibration.model.tok_s(1.0, 0)
    pace = plain_tok_s / plain_calibrated.value
    return Comparison(
        rows=tuple(_depth_row(depth, speculative, part, projection, pace) for depth in depths),
        answers=answers,
        held_out=len(written),
        plain_tok_s=plain_tok_s,
        plain_calibrated=plain_calibrated,
        different=sum(s.ids != written[s.answer] for s in speculative),
        checked=len(speculative),
    )


def only(profile: AcceptanceProfile, answers: Sequence[int]) -> AcceptanceProfile:
    """The profile of some answers, one answer a block."""
    counts = profile.counts
    kept = np.zeros((counts.blocks, 1), dtype=counts.tokens.dtype)
    kept[list(answers)] = 1
    part = AcceptanceCounts.from_flat(counts.flat() * kept, counts.ttt_steps, counts.max_depth)
    return AcceptanceProfile(part, profile.mode, profile.level, profile.coverage_known)


def _depth_row(
    depth: int, speculative: Sequence[Served], profile: AcceptanceProfile, projection: SpeedupProjection, pace: float
) -> DepthRow:
    expected: Mapping[int, int] = rounds_projected(profile, depth)
    here = [s for s in speculative if s.depth == depth]
    sums = total(here, depth)
    return DepthRow(
        depth=depth,
        accept_length_projected=profile.accept_length(depth),
        accept_length=sums.accept_length,
        rounds_equal=sum(s.rounds == expected.get(s.answer, 0) for s in here),
        answers=len(here),
        tok_s_projected=projection.by_depth[depth - 1].tok_s.scaled(pace),
        tok_s=sums.tok_s,
    )
