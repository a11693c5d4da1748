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
    """Of the answers that were timed."""
    tok_s: float
    """Of the same answers, served."""

    @property
    def error(self) -> float:
        """Projected over served tok/s, minus 1."""
        return self.tok_s_projected.value / self.tok_s - 1


@dataclass(frozen=True)
class Comparison:
    """Projected against served."""

    rows: tuple[DepthRow, ...]
    timed: int
    """Answers that were timed, one at a time; the others were decoded in batches, which gives the same rounds."""
    plain_tok_s: float
    """Plain decoding, served."""
    plain_projected: Estimate
    """Plain decoding, as calibrated."""
    different: int
    """Answers of speculative decoding that are not plain decoding's, over all depths."""
    checked: int
    """Answers of speculative decoding that were compared."""

    @property
    def mean_error(self) -> float:
        """Mean of the absolute tok/s errors over the depths."""
        return sum(abs(row.error) for row in self.rows) / len(self.rows)

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

    @property
    def drift(self) -> float:
        """How much faster the machine decodes plainly now than when it was calibrated."""
        return self.plain_tok_s / self.plain_projected.value - 1


def compare(
    timed: Sequence[Served],
    others: Sequence[Served],
    written: Sequence[tuple[int, ...]],
    profile: AcceptanceProfile,
    calibration: Calibration,
) -> Comparison:
    """Put projected beside served at every depth.

    Args:
        timed: of `serve`, depth 0 among the depths.
        others: of `check`, the other answers.
        written: every answer by plain greedy decoding.
        profile: of the same drafter on all answers, one answer a block.
        calibration: of this machine.
    """
    speculative = [s for s in (*timed, *others) if s.depth > 0]
    depths = sorted({s.depth for s in speculative})
    part = only(profile, sorted({s.answer for s in timed}))
    # The same answers on both sides: another choice of answers is no error of the projection.
    projection = project(part, calibration, max_depth=depths[-1])
    return Comparison(
        rows=tuple(_depth_row(depth, timed, speculative, profile, projection) for depth in depths),
        timed=len({s.answer for s in timed}),
        plain_tok_s=total(timed, 0).tok_s,
        plain_projected=calibration.model.tok_s(1.0, 0),
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
    depth: int,
    timed: Sequence[Served],
    speculative: Sequence[Served],
    profile: AcceptanceProfile,
    projection: SpeedupProjection,
) -> DepthRow:
    expected: Mapping[int, int] = rounds_projected(profile, depth)
    here = [s for s in speculative if s.depth == depth]
    return DepthRow(
        depth=depth,
        accept_length_projected=only(profile, [s.answer for s in here]).accept_length(depth),
        accept_length=total(here, depth).accept_length,
        rounds_equal=sum(s.rounds == expected.get(s.answer, 0) for s in here),
        answers=len(here),
        tok_s_projected=projection.by_depth[depth - 1].tok_s,
        tok_s=total(timed, depth).tok_s,
    )
