"""The 90 % interval holds the truth nine times in ten, and the paired difference sees what separate ones can not."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch

from eagle_speedup.acceptance import AcceptanceCounts, AcceptanceProfile, TTTAcceptance
from eagle_speedup.errors import InputError
from eagle_speedup.estimate import Estimate
from eagle_speedup.intervals import jackknife, student_quantile

POPULATION, STEPS, LENGTH = 3000, 3, 90


@pytest.fixture(scope="module")
def population():
    """Counts per answer of an early and a late drafter on the same 3000 answers, of uneven length and difficulty."""
    generator = torch.Generator().manual_seed(7)
    ends = torch.randint(8, LENGTH, (POPULATION,), generator=generator)
    spans = torch.stack([torch.arange(POPULATION), torch.zeros_like(ends), ends], dim=-1)
    target = torch.arange(LENGTH).repeat(POPULATION, 1)
    difficulty = torch.randn(POPULATION, 1, generator=generator) + 0.8 * torch.randn(
        POPULATION, LENGTH, generator=generator
    )
    luck = torch.randn(STEPS, POPULATION, LENGTH, generator=generator)
    position = torch.arange(LENGTH) + 1 + torch.arange(STEPS)[:, None, None]
    per_answer = []
    for skill in (0.1, 0.25):  # the late drafter is right wherever the early one is, and a little more often
        right = luck * 0.7 < skill - difficulty
        metric = TTTAcceptance(STEPS, blocks=POPULATION)
        metric.update(torch.where(right, position, -1), target, spans)
        per_answer.append(metric.counts())
    return per_answer


def profile_of(counts: AcceptanceCounts, chosen: np.ndarray, blocks: int = 64) -> AcceptanceProfile:
    flat = np.zeros((blocks, counts.flat().shape[1]), dtype=np.int64)
    np.add.at(flat, np.arange(len(chosen)) % blocks, counts.flat()[chosen])
    return AcceptanceProfile(AcceptanceCounts.from_flat(flat, counts.ttt_steps, counts.max_depth))


@pytest.mark.parametrize("answers", [40, 300])
def test_coverage_over_200_resampled_sets(population, answers):
    early, _ = population
    truth = early.tokens.sum() / early.accepted[:, 2].sum()
    mean_of_ratios = float(np.mean(early.tokens / early.accepted[:, 2].sum(axis=1)))
    generator = np.random.default_rng(11)
    estimates = [profile_of(early, generator.integers(0, POPULATION, answers)).accept_length(3) for _ in range(200)]
    covered = np.mean([e.lo <= truth <= e.hi for e in estimates])
    assert 0.85 <= covered <= 0.95
    if answers == 300:  # the tempting mean of per-answer ratios lies outside most of the intervals
        assert np.mean([e.lo <= mean_of_ratios <= e.hi for e in estimates]) < 0.5


def test_paired_difference_is_three_times_narrower(population):
    early, late = population
    chosen = np.random.default_rng(3).integers(0, POPULATION, 300)
    before, after = profile_of(early, chosen), profile_of(late, chosen)
    paired = after.paired_difference(before, 3)
    apart = math.hypot(before.accept_length(3).half_width, after.accept_length(3).half_width)
    assert paired.lo > 0  # a gain that two separate intervals could not tell from noise
    assert apart > paired.value
    assert apart / paired.half_width >= 3
    ratio = after.paired_ratio(before, 3)
    assert ratio.value == pytest.approx(after.accept_length(3).value / before.accept_length(3).value - 1)


def test_profiles_of_other_sets_are_not_paired(population):
    early, late = population
    first, second = np.arange(100), np.arange(100, 200)
    with pytest.raises(InputError, match="must be of the same validation set"):
        profile_of(early, first).paired_difference(profile_of(late, second), 3)


def test_beyond_the_steps_that_were_run_the_interval_reaches_down_to_the_last_exact_depth():
    # Step 0 hits everywhere, so sliding it says that every draft is right; a drafter that decays serves 2 to 11.
    target = torch.arange(41).repeat(8, 1)
    spans = torch.tensor([(row, 0, 40) for row in range(8)])
    metric = TTTAcceptance(1, max_depth=10)
    metric.update(target[None] + 1, target, spans)
    profile = metric.compute()
    assert profile.accept_length(1).lo == profile.accept_length(1).hi == 2.0
    slid = profile.accept_length(10)
    assert (slid.lo, slid.value, slid.hi) == (2.0, 10.0, 10.0)  # 40 tokens in 3 rounds of 11 and one of 7


def test_jackknife_by_hand():
    # Blocks (tokens, rounds) = (4, 2), (2, 2): 6/4; left out: 2/2 and 4/2; spread (1/2) * (1/4 + 1/4) = 1/4.
    sums = np.array([[4.0, 2.0], [2.0, 2.0]])
    estimate = jackknife(sums, lambda s: s[..., 0] / s[..., 1], used=np.array([True, True]), level=0.90)
    assert estimate.value == 1.5
    assert student_quantile(0.95, 1) == pytest.approx(6.3138, abs=1e-4)
    assert estimate.half_width == pytest.approx(6.3138 / 2, abs=1e-4)


def test_one_block_has_no_interval_and_none_no_value():
    sums = np.array([[4.0, 2.0], [0.0, 0.0]])
    one = jackknife(sums, lambda s: s[..., 0] / s[..., 1], used=np.array([True, False]), level=0.90)
    assert one.value == 2.0
    assert math.isnan(one.lo)
    none = jackknife(sums, lambda s: s[..., 0] / s[..., 1], used=np.array([False, False]), level=0.90)
    assert math.isnan(none.value)


def test_bounds_stay_within_what_is_possible():
    target = torch.arange(30).repeat(3, 1)
    drafts = torch.stack([target + 1 + k for k in range(3)])
    drafts[:, 0] = -1  # one answer of misses beside two perfect ones: the jackknife alone says -2.07 .. 5.94
    metric = TTTAcceptance(3)
    metric.update(drafts, target, torch.tensor([(row, 0, 29) for row in range(3)]))
    profile = metric.compute()
    assert profile.accept_length(3) == Estimate(87 / 45, 1.0, 4.0)
    assert profile.accept_length(1).hi <= 2.0


def test_a_profile_can_not_be_changed(population):
    profile = pickle.loads(pickle.dumps(AcceptanceProfile(population[0])))
    with pytest.raises(AttributeError, match="immutable"):
        profile.mode = "onehot"
    with pytest.raises(AttributeError, match="immutable"):
        del profile.counts
    with pytest.raises(ValueError, match="read-only"):
        profile.counts.accepted[0, 0, 0] = 1


def test_profiles_of_two_sampling_modes_are_not_paired(population):
    with pytest.raises(InputError, match="must be of one sampling mode"):
        AcceptanceProfile(population[0]).paired_difference(AcceptanceProfile(population[1], "onehot"), 1)
