"""Depths beyond the TTT steps, and the estimators that tempt, beside real decoding with chains that run long."""

from __future__ import annotations

import pytest
import torch

from eagle_speedup.acceptance import TTTAcceptance
from eagle_speedup.eagle3.data import Conversation, make_loader, prepare_features, ttt_inputs
from eagle_speedup.eagle3.decoder import greedy_decode, speculative_decode
from eagle_speedup.eagle3.drafter import draft_vocabulary
from eagle_speedup.eagle3.engine import DraftEngine
from eagle_speedup.eagle3.ttt import ttt_draft_ids

from .conftest import EOS, TAPS, VOCAB, prompts_of, train_drafter
from .layouts import validated

MAX_NEW = 48


@pytest.fixture(scope="module")
def fluent(verifier):
    """(drafter, batches): accepted chains are long on the answers it was trained on, short on the others."""
    prompts = prompts_of(96, seed=6) + prompts_of(96, seed=5)
    answers = greedy_decode(verifier, prompts, max_new=MAX_NEW, eos_id=EOS).answers
    conversations = [Conversation.from_answer(p, a.ids) for p, a in zip(prompts, answers, strict=True)]
    d2t = draft_vocabulary(torch.tensor([t for c in conversations for t in c.ids]), 36, VOCAB)
    rows = prepare_features(verifier, conversations, TAPS, d2t=d2t, soft_targets=8)
    return train_drafter(verifier, rows[:96], d2t, epochs=8, steps=5), prompts, rows


@pytest.fixture(scope="module")
def served(verifier, fluent):
    """Real decoding by depth."""
    drafter, prompts, _ = fluent
    engine = DraftEngine(drafter)
    return {
        depth: speculative_decode(verifier, engine, prompts, depth=depth, max_new=MAX_NEW, eos_id=EOS)
        for depth in (3, 5, 8, 10)
    }


def profile_of(fluent, steps, **options):
    drafter, _, rows = fluent
    metric = TTTAcceptance(steps, 10, blocks=len(rows), **options)
    for batch in make_loader(rows, 32, shuffle=False):
        drafts = validated(drafter, batch, steps)
        metric.update(drafts, batch["ids"], batch["spans"], sequence_index=batch["sequence_index"])
    return metric.compute()


def test_from_five_steps_depths_8_and_10_are_within_half_a_percent(verifier, drafter):
    prompts = prompts_of(150, seed=15)
    answers = greedy_decode(verifier, prompts, max_new=MAX_NEW, eos_id=EOS).answers
    conversations = [Conversation.from_answer(p, a.ids) for p, a in zip(prompts, answers, strict=True)]
    rows = prepare_features(verifier, conversations, TAPS)
    profile, engine = profile_of((drafter, prompts, rows), 5), DraftEngine(drafter)
    assert profile.accepted_histogram(10)[6] > 0, "some chains must run past five drafts"
    for depth in (8, 10):
        real = speculative_decode(verifier, engine, prompts, depth=depth, max_new=MAX_NEW, eos_id=EOS)
        assert profile.accept_length(depth).value == pytest.approx(real.accept_length, rel=0.005)


def test_served_deeper_than_trained_the_sliding_anchor_is_too_high(fluent, served):
    """Its limit: a drafter that was trained for five steps decays at the sixth, which five steps can not show."""
    profile, deeper = profile_of(fluent, 5), profile_of(fluent, 10)
    assert profile.accept_length(5).value == served[5].accept_length
    assert deeper.cond_acc[5] < deeper.cond_acc[4] - 0.02
    for depth, most in ((8, 0.03), (10, 0.06)):
        real = served[depth].accept_length
        assert 0.004 < profile.accept_length(depth).value / real - 1 < most
        assert deeper.accept_length(depth).value == real  # the way out: validate as deep as it is served
        assert profile.accept_length(5).value < 0.97 * real  # still better than to stop at five


def test_with_eight_validation_steps_every_answer_is_exact_up_to_depth_8(fluent, served):
    counts = profile_of(fluent, 8).counts
    for depth in (3, 5, 8):
        assert counts.accepted[:, depth - 1].sum(-1).tolist() == [a.rounds for a in served[depth].answers]


def test_tempting_estimators_miss_what_is_served(verifier, fluent, served):
    drafter, _, rows = fluent
    profile, real = profile_of(fluent, 5), served[5]
    assert profile.accept_length(5).value == real.accept_length
    product, marginals = 1.0, 1.0
    for accuracy in profile.step_acc:
        product *= accuracy
        marginals += product
    per_answer = [(len(a.ids) - 1) / a.rounds for a in real.answers if a.rounds]
    restricted = TTTAcceptance(5)
    for batch in make_loader(rows, 32, shuffle=False):
        # What a trainer on the draft vocabulary compares with: the verifier's argmax among the tokens it can draft.
        logits = verifier.forward(batch["ids"], verifier.new_cache(*batch["ids"].shape)).logits
        among = drafter.d2t[logits[..., drafter.d2t].argmax(-1)].roll(1, 1)
        restricted.update(ttt_draft_ids(drafter, ttt_inputs(batch), 5), among, batch["spans"])
    tempting = {
        "uniform joint": 1 + sum(profile.full_acc),
        "product of marginals": marginals,
        "mean of per-answer ratios": sum(per_answer) / len(per_answer),
        "targets inside the draft vocabulary": restricted.compute().accept_length(5).value,
    }
    for name, value in tempting.items():
        assert abs(value / real.accept_length - 1) > 0.01, (name, value, real.accept_length)
