"""Rejection sampling: acceptance probabilities and expected rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

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
    with pytest.raises(InputError, match=r"temperature = 0.0: must be positive and finite; at 0 use mode"):
        acceptance_probability(draft, verifier, tokens, temperature=0.0)


def views(batch=2, length=1025, vocabulary=512, steps=3):
    """Logits as trainers hold them, all over [K, B, T - 1] anchors or fewer dimensions."""
    generator = torch.Generator().manual_seed(5)
    whole = torch.randn(steps, batch, length, vocabulary, generator=generator)
    return {
        "contiguous": whole,
        "flat": whole.view(-1, vocabulary),
        "one row": whole[0, 0, 0],
        "cut": whole[..., :-1, :],
        "cut vocabulary": whole[0, ..., : vocabulary - 3],
        "expanded": whole[0, :, 1:].expand(steps, -1, -1, -1),
        "time first": whole[0].transpose(0, 1),
        "batch first": whole.transpose(0, 1)[:, :, 1:],
        "bfloat16": whole[0, :, :-1].bfloat16(),
        "with gradients": whole[0, :, :-1].clone().requires_grad_(),
    }


@pytest.mark.parametrize("layout", views(length=2).keys())
def test_no_second_full_size_tensor(layout):
    """Peak extra memory is that of some chunks, not of the logits (which may be tens of gigabytes)."""
    chunk = 32
    logits = views()[layout]
    tokens = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        acceptance_probability(logits, logits, tokens, chunk=chunk)
    held = peak = 0
    for event in profile.profiler.kineto_results.events():  # in order of time; the others are of whole operators
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    per_token = 12 * 8 * tokens.numel()  # a dozen int64 and float64 tensors of one number a token
    assert 0 < peak <= 4 * chunk * logits.shape[-1] * 4 + per_token
    if logits.ndim > 1:
        assert peak < tokens.numel() * logits.shape[-1] * 2  # not even in bfloat16


@pytest.mark.parametrize("layout", views(length=2).keys())
def test_every_layout_gives_the_same(layout):
    verifier = views(length=9, vocabulary=16)[layout].detach()
    draft = verifier.flip(-1).contiguous()
    tokens = torch.randint(0, verifier.shape[-1], verifier.shape[:-1], generator=torch.Generator().manual_seed(2))
    p = verifier.float().softmax(-1).gather(-1, tokens[..., None])[..., 0]
    q = draft.float().softmax(-1).gather(-1, tokens[..., None])[..., 0]
    got = acceptance_probability(draft, verifier, tokens, chunk=5)
    assert got.shape == tokens.shape and got.dtype == torch.float64
    torch.testing.assert_close(got.float(), (q / p).clamp(max=1.0))


def test_what_is_never_drafted_is_never_accepted():
    never = float("-inf")
    # (p, q) of token 1: (0, 0), (1/2, 0), (0, 1/2), (1/2, 1/2).
    verifier = torch.tensor([[0.0, never], [0.0, 0.0], [0.0, never], [0.0, 0.0]])
    draft = torch.tensor([[0.0, never], [0.0, never], [0.0, 0.0], [0.0, 0.0]])
    assert acceptance_probability(draft, verifier, torch.ones(4, dtype=torch.int64)).tolist() == [0.0, 0.0, 1.0, 1.0]
    broken = acceptance_probability(draft * float("nan"), verifier, torch.ones(4, dtype=torch.int64))
    assert broken.isnan().all()  # for the metric to refuse


@pytest.mark.parametrize(
    ("d2t", "message"),
    [
        (
            torch.tensor([0, 0, 3, 3]),
            "d2t = [0, 0, 3, 3]: must be absolute ids, see absolute_d2t: each once, in [0, 9)",
        ),
        (torch.tensor([-1, 0, 3, 4]), "d2t = 'from -1 to 4': must be absolute ids, see absolute_d2t: each once"),
        (torch.tensor([0, 1, 3, 9]), "d2t = 'up to 9': must be absolute ids, see absolute_d2t: each once, in [0, 9)"),
        (torch.tensor([0.0, 1, 3, 8]), "d2t = ((4,), torch.float32): must be a non-empty int64 vector"),
        ([0, 1, 3, 8], "d2t = 'list': must be a non-empty int64 vector, a tensor"),
    ],
)
def test_a_table_that_is_not_absolute_is_refused(d2t, message):
    with pytest.raises(InputError) as error:
        acceptance_probability(torch.randn(2, 4), torch.randn(2, 9), torch.tensor([1, 2]), d2t=d2t)
    assert str(error.value).startswith(message)


def test_a_known_table_is_not_read_again():
    draft, verifier, tokens = torch.randn(2, 4), torch.randn(2, 9), torch.tensor([1, 3])
    for dtype in (torch.int64, torch.int16, torch.uint8):
        table = torch.tensor([0, 1, 3, 8], dtype=dtype)
        expected = acceptance_probability(draft, verifier, tokens, d2t=table)
        reads = CountsReads()
        with reads:
            assert torch.equal(acceptance_probability(draft, verifier, tokens, d2t=table), expected)
        assert reads.count == 1  # the largest token, which is looked at only in host memory


class CountsReads(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "_unique2", "item")
        return func(*args, **(kwargs or {}))


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
    with pytest.raises(InputError, match="chunk = 0: must be a whole number of at least 1"):
        acceptance_probability(verifier, verifier, tokens, chunk=0)
    with pytest.raises(InputError, match=r"token_ids.dtype = torch.float32: must be an integer type"):
        acceptance_probability(verifier, verifier, tokens.float())
    with pytest.raises(InputError, match="verifier_logits = 'list': must be a tensor"):
        acceptance_probability(verifier, verifier.tolist(), tokens)  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"\(draft_logits, verifier_logits, token_ids\).shape = .*: must agree but for"
    ):
        acceptance_probability(verifier, verifier[:1], tokens)
    assert acceptance_probability(verifier[:0], verifier[:0], tokens[:0]).shape == (0,)
    none = verifier.expand(3, 2, 9)[:, :0]
    assert acceptance_probability(none, none, tokens[:0].expand(3, 0)).shape == (3, 0)
