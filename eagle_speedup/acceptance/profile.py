"""What the counts of one validation say about the drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..estimate import Estimate
from ..intervals import FloatArray, jackknife
from .counts import AcceptanceCounts

__all__ = ["AcceptanceProfile"]

_OFF_POLICY = 0.05  # bfloat16 noise alone makes 1 to 2 %


def _ratio(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> FloatArray:
    """Quotient; NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(numerator, dtype=np.float64) / np.asarray(denominator, dtype=np.float64)


class AcceptanceProfile:
    """Accept length at every depth and the per-step accuracies, with intervals from blocks of answers.

    Immutable. (Not a frozen dataclass, because torchmetrics refuses to hand one out of ``compute``.)

    Args:
        counts: the additive counts.
        mode: how the drafter will be served (``greedy``, ``onehot``, ``rejection``).
        level: level of the intervals.
        coverage_known: whether ``counts.covered`` was counted against a real draft vocabulary.
    """

    counts: AcceptanceCounts
    mode: str
    level: float
    coverage_known: bool

    def __init__(
        self, counts: AcceptanceCounts, mode: str = "greedy", level: float = 0.90, coverage_known: bool = False
    ) -> None:
        vars(self).update(counts=counts, mode=mode, level=level, coverage_known=coverage_known)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"AcceptanceProfile is immutable: can not set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"AcceptanceProfile is immutable: can not delete {name!r}")

    def __repr__(self) -> str:
        return f"AcceptanceProfile(tokens={self.tokens}, answers={self.answers}, ttt_steps={self.ttt_steps})"

    @property
    def ttt_steps(self) -> int:
        """K, TTT steps that were run; depths above it rest on the sliding anchor."""
        return self.counts.ttt_steps

    @property
    def max_depth(self) -> int:
        """D, largest depth that was walked."""
        return self.counts.max_depth

    @cached_property
    def tokens(self) -> int:
        """Tokens that rounds had to produce: sum of E - P."""
        return round(float(self.counts.tokens.sum()))  # a mix of sets holds fractions

    @cached_property
    def answers(self) -> int:
        """Answers with at least one such token."""
        return round(float(self.counts.answers.sum()))

    @cached_property
    def rounds(self) -> tuple[int | float, ...]:
        """Rounds of the walk at depth 1..D (entry d - 1)."""
        return tuple(self.counts.accepted.sum(axis=(0, 2)).tolist())

    @cached_property
    def full_acc(self) -> tuple[float, ...]:
        """Joint: steps 0..k all right, over the anchors valid at step k."""
        return tuple(_ratio(self.counts.prefix_hits.sum(0), self.counts.step_valid.sum(0)).tolist())

    @cached_property
    def cond_acc(self) -> tuple[float, ...]:
        """Step k right, given steps 0..k-1 right, over the anchors valid at step k."""
        return tuple(_ratio(self.counts.prefix_hits.sum(0), self.counts.prefix_valid.sum(0)).tolist())

    @cached_property
    def step_acc(self) -> tuple[float, ...]:
        """Marginal: step k right, over the anchors valid at step k."""
        return tuple(_ratio(self.counts.step_hits.sum(0), self.counts.step_valid.sum(0)).tolist())

    @property
    def draft_vocab_coverage(self) -> float | None:
        """Share of the tokens that the drafter can produce at all; None where its vocabulary was not given."""
        if not self.coverage_known:
            return None
        return float(_ratio(self.counts.covered.sum(), self.counts.tokens.sum()))

    @property
    def off_policy_rate(self) -> float | None:
        """Share of the tokens that the verifier's argmax would not have written; None where it was not given.

        Text by another author understates the accept length (by 28 to 49 % where it was measured).
        """
        compared = self.counts.compared.sum()
        return float(self.counts.disagreed.sum() / compared) if compared else None

    @property
    def is_off_policy(self) -> bool:
        """Whether so much of the text is not the verifier's own that the accept length is understated.

        Only for ``greedy``: sampled text differs from the argmax by nature.
        """
        return self.mode == "greedy" and (self.off_policy_rate or 0.0) > _OFF_POLICY

    def accepted_histogram(self, depth: int) -> tuple[int | float, ...]:
        """Rounds that accept exactly 0, 1, .., depth drafts."""
        return tuple(self.counts.accepted[:, self._index(depth), : depth + 1].sum(axis=0).tolist())

    def per_position(self, depth: int) -> tuple[float, ...]:
        """Accepted at draft position k / rounds, k = 0..depth-1: what an engine prints per position."""
        histogram = np.asarray(self.accepted_histogram(depth))
        at_least = histogram[::-1].cumsum()[::-1]
        return tuple(_ratio(at_least[1:], at_least[0]).tolist())

    def accept_length(self, depth: int) -> Estimate:
        """Tokens per round, with the bonus token and without the prefill's: sum(E - P) / sum(rounds).

        It lies in [1, depth + 1], and so does the interval, however few blocks it rests on.

        Beyond `ttt_steps` the value is too high where the drafter decays past the steps it was trained for, so the
        interval reaches down to that of the deepest exact depth: drafting on never accepts less.
        """
        counted = self._estimate(_block_sums(self, depth), lambda sums: _ratio(sums[..., 0], sums[..., 1]))
        lo, hi = np.clip([counted.lo, counted.hi], 1.0, depth + 1.0).tolist()
        counted = replace(counted, lo=lo, hi=hi)
        if depth <= self.ttt_steps:
            return counted
        return replace(counted, lo=min(counted.lo, self.accept_length(self.ttt_steps).lo))

    def paired_difference(self, other: AcceptanceProfile, depth: int) -> Estimate:
        """accept_length(self) - accept_length(other) on the same validation set, block by block.

        The same answers are hard for both drafters, so this interval is far narrower than two separate ones.
        """
        return self._paired(other, depth, depth, lambda mine, theirs: mine - theirs)

    def paired_ratio(self, other: AcceptanceProfile, depth: int, other_depth: int | None = None) -> Estimate:
        """accept_length(self) / accept_length(other) - 1, paired as :meth:`paired_difference`."""
        other_depth = depth if other_depth is None else other_depth
        return self._paired(other, depth, other_depth, lambda mine, theirs: mine / theirs - 1)

    def _paired(
        self,
        other: AcceptanceProfile,
        depth: int,
        other_depth: int,
        combine: Callable[[FloatArray, FloatArray], FloatArray],
    ) -> Estimate:
        if self.mode != other.mode:
            raise InputError("paired profiles", [self.mode, other.mode], "must be of one sampling mode")
        mine, theirs = _block_sums(self, depth), _block_sums(other, other_depth)
        if not np.array_equal(self.counts.tokens, other.counts.tokens):
            sizes = f"{self.tokens} and {other.tokens} tokens"
            raise InputError("paired profiles", sizes, "must be of the same validation set, block by block")

        def statistic(sums: FloatArray) -> FloatArray:
            return combine(_ratio(sums[..., 0], sums[..., 1]), _ratio(sums[..., 2], sums[..., 3]))

        return self._estimate(np.concatenate([mine, theirs], axis=1), statistic)

    def _estimate(self, block_sums: FloatArray, statistic: Callable[[FloatArray], FloatArray]) -> Estimate:
        return jackknife(block_sums, statistic, used=self.counts.tokens > 0, level=self.level)

    def _index(self, depth: int) -> int:
        if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or not 1 <= depth <= self.max_depth:
            raise InputError(
                "depth", depth, f"must be a whole number in [1, {self.max_depth}], the depths that were walked"
            )
        return int(depth) - 1


def _block_sums(profile: AcceptanceProfile, depth: int) -> FloatArray:
    """[G, 2] tokens and rounds per block at one depth."""
    rounds = profile.counts.accepted[:, profile._index(depth)].sum(axis=-1)
    return np.stack([profile.counts.tokens, rounds], axis=1).astype(np.float64)
