"""Rejection sampling: acceptance probabilities and expected rounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_speedup.acceptance import TTTAcceptance
from eagle_speedup.acceptance.rejection import acceptance_probability
from eagle_speedup.errors import InputError
from tests.reference import slow_expected_rounds


def profile_of(accept, spans, max_depth):
    steps, rows, length = accept.shape
    metric = TTTAcceptance(steps, max_depth=max_depth, mode="rejection", blocks=4)
    ids = torch.zeros(steps, rows, length, dtype=torch.int64)
    metric.update(ids, ids[0], torch.tensor(spans).view(-1, 3), accept_prob=accept)
    return metric.compute()


def test_by_hand():
    # Three tokens to make, one draft a round, accepted with probability 1/2 and 1/4 from anchors 0 and 1.
    accept = torch.tensor([[[0.5, 0.25, 0.0, 0.0]]])
    profile = profile_of(accept, [(0, 0, 3)], 1)
    # v0 = 1; v1 = 1/2; v2 = 1/2 (accepted from 0) + 1/2 * 3/4 = 7/8; 19/8 rounds for 3 tokens.
    assert profile.rounds == (19 / 8,)
    assert profile.accept_length(1).value == pytest.approx(24 / 19)
    hard_walk = 3 / 3  # reading "accepted" as probability above 1/2 would reject everything
    assert profile.accept_length(1).value != hard_walk


def test_certain_acceptance_is_the_hard_walk():
    hits = (torch.rand(3, 2, 150, generator=torch.Generator().manual_seed(1)) < 0.6).double()
    spans = [(0, 3, 140), (1, 0, 70), (1, 71, 149)]
    soft = profile_of(hits, spans, 5)
    target = torch.arange(150).repeat(2, 1)
    future = torch.stack([torch.arange(150) + 1 + k for k in range(3)])[:, None].expand(3, 2, 150)
    metric = TTTAcceptance(3, max_depth=5)
    metric.update(torch.where(hits > 0, future, -1), target, torch.tensor(spans))
    assert soft.rounds == tuple(float(r) for r in metric.compute().rounds)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(2, 150), st.integers(1, 6), st.integers(0, 2**31))
def test_against_reference(steps, length, max_depth, seed):
    generator = torch.Generator().manual_seed(seed)
    accept = torch.rand(steps, 2, length, generator=generator, dtype=torch.float64)
    cut = int(torch.randint(1, length, (), generator=generator))
    spans = [(0, 0, length - 1), (1, 0, cut - 1), (1, cut, length - 1)]
    profile = profile_of(accept, spans, max_depth)
    for depth in range(1, max_depth + 1):
        rounds, by_accepted = slow_expected_rounds(accept.tolist(), spans, depth)
        assert profile.rounds[depth - 1] == pytest.approx(rounds, rel=1e-12)
        assert profile.accepted_histogram(depth) == pytest.approx(tuple(by_accepted), rel=1e-11, abs=1e-12)


def test_acceptance_probability_by_hand():
    # p = (1/2, 1/4, 1/4), q over draft vocabulary {2, 0} = (3/4, 1/4): ratios for x = 0, 1, 2 are 1/2, 0 and 1.
    verifier = torch.log(torch.tensor([0.5, 0.25, 0.25])).expand(4, 3)
    draft = torch.log(torch.tensor([0.75, 0.25])).expand(4, 2)
    got = acceptance_probability(draft, verifier, torch.tensor([0, 1, 2, -1]), d2t=torch.tensor([2, 0]), chunk=3)
    assert got.tolist() == pytest.approx([0.5, 0.0, 1.0, 0.0])


def test_acceptance_probability_uses_the_temperature():
    generator = torch.Generator().manual_seed(0)
    verifier, draft = torch.randn(2, 6, 9, generator=generator), torch.randn(2, 6, 9, generator=generator)
    tokens = torch.randint(0, 9, (2, 6), generator=generator)
    for temperature in (0.5, 1.0, 2.0):
        p = (verifier / temperature).softmax(-1).gather(-1, tokens[..., None])[..., 0]
        q = (draft / temperature).softmax(-1).gather(-1, tokens[..., None])[..., 0]
        got = acceptance_probability(draft, verifier, tokens, temperature=temperature, chunk=5)
        torch.testing.assert_close(got.float(), (q / p).clamp(max=1.0))
    with pytest.raises(InputError, match="must be positive; at 0 use mode"):
        acceptance_probability(draft, verifier, tokens, temperature=0.0)


def test_no_second_full_size_tensor():
    """Peak extra memory is that of a chunk, not of the logits (which may be tens of gigabytes)."""
    rows, vocabulary, chunk = 4096, 2048, 64
    verifier = torch.randn(rows, vocabulary)
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        acceptance_probability(verifier, verifier, torch.zeros(rows, dtype=torch.int64), chunk=chunk)
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest <= 4 * chunk * vocabulary * 4 < verifier.numel() * 4


def test_the_mode_and_the_probabilities_go_together():
    ids = torch.zeros(1, 1, 4, dtype=torch.int64)
    with pytest.raises(InputError, match="accept_prob = 'missing'"):
        TTTAcceptance(1, mode="rejection").update(ids, ids[0], torch.tensor([[0, 0, 3]]))
    with pytest.raises(InputError, match="accept_prob = 'given'"):
        TTTAcceptance(1).update(ids, ids[0], torch.tensor([[0, 0, 3]]), accept_prob=torch.zeros(1, 1, 4))


def test_probabilities_need_the_right_vocabularies():
    draft, verifier, tokens = torch.randn(2, 4), torch.randn(2, 9), torch.tensor([1, 2])
    with pytest.raises(InputError, match=r"d2t = None: must map the draft vocabulary where sizes differ: \(4, 9\)"):
        acceptance_probability(draft, verifier, tokens)
    with pytest.raises(InputError, match=r"d2t.shape = \(3,\): must be \(4,\), as draft_logits"):
        acceptance_probability(draft, verifier, tokens, d2t=torch.arange(3))
    with pytest.raises(InputError, match="token_ids = 9: must be below 9, the verifier's vocabulary"):
        acceptance_probability(draft, verifier, tokens + 7, d2t=torch.arange(4))
    with pytest.raises(InputError, match="temperature = nan: must be positive"):
        acceptance_probability(verifier, verifier, tokens, temperature=float("nan"))
    with pytest.raises(InputError, match="chunk = 0: must be at least 1"):
        acceptance_probability(verifier, verifier, tokens, chunk=0)
    assert acceptance_probability(verifier[:0], verifier[:0], tokens[:0]).shape == (0,)
