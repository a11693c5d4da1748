"""The sampling modes against the real decoder: equal traces in ``onehot``, equal expectations in ``rejection``."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from scipy.stats import chi2_contingency

from eagle_speedup.acceptance.rejection import acceptance_probability
from eagle_speedup.eagle3.data import Conversation, collate, prepare_features, ttt_inputs
from eagle_speedup.eagle3.decoder import speculative_decode
from eagle_speedup.eagle3.engine import DraftEngine
from eagle_speedup.eagle3.sampling import Acceptor
from eagle_speedup.eagle3.ttt import ttt

from .conftest import EOS, TAPS, prompts_of
from .layouts import histogram, per_answer, validated


def sampled(verifier, drafter, prompts, mode, *, depth, max_new, temperature, seed):
    """The decoder's answers, and its own output as validation data."""
    result = speculative_decode(
        verifier, DraftEngine(drafter), prompts, depth=depth, max_new=max_new, eos_id=EOS, mode=mode,
        temperature=temperature, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    conversations = [Conversation.from_answer(p, a.ids) for p, a in zip(prompts, result.answers, strict=True)]
    return result.answers, conversations


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("depth", [1, 3, 5])
def test_onehot_traces_are_equal_in_every_answer(verifier, drafter, depth, temperature):
    prompts = prompts_of(60, seed=depth)
    answers, conversations = sampled(
        verifier, drafter, prompts, "onehot", depth=depth, max_new=30, temperature=temperature, seed=depth
    )
    assert len({len(a.ids) for a in answers}) > 5, "some must end early"
    batch = collate(list(enumerate(prepare_features(verifier, conversations, TAPS))))
    counts = per_answer(validated(drafter, batch, depth), batch["ids"], batch["spans"], depth, mode="onehot")
    for i, answer in enumerate(answers):
        assert counts.accepted[i, depth - 1].tolist() == histogram(answer, depth), i
    assert sum(sum(a.accepted) for a in answers) > 100


def accept_probability(verifier, drafter, batch, steps, temperature):
    """min(1, q / p) of every token that a step could have drafted: [steps, B, T]."""
    ids = batch["ids"]
    p = verifier.forward(ids, verifier.new_cache(*ids.shape)).logits
    out = torch.zeros(steps, *ids.shape, dtype=torch.float64)
    for step in ttt(drafter, ttt_inputs(batch), steps):
        place = step.anchor + 1 + step.step
        out[step.step, step.row, step.anchor] = acceptance_probability(
            step.logits, p[step.row, place - 1], ids[step.row, place], d2t=drafter.d2t, temperature=temperature
        )
    return out


@pytest.mark.slow
def test_rejection_expects_the_rounds_that_decoding_takes(verifier, drafter):
    """More than 50,000 real rounds; given its text, an answer's rounds vary around the metric's expectation."""
    depth, steps = 3, 3
    prompts = [p for p in prompts_of(100, seed=21) for _ in range(32)]
    answers, conversations = sampled(
        verifier, drafter, prompts, "rejection", depth=depth, max_new=36, temperature=1.0, seed=4
    )
    real = torch.tensor([a.rounds for a in answers], dtype=torch.float64)
    assert real.sum() >= 50_000
    expected, by_accepted = [], torch.zeros(depth + 1, dtype=torch.float64)
    for begin in range(0, len(conversations), 200):
        part = list(enumerate(prepare_features(verifier, conversations[begin : begin + 200], TAPS)))
        batch = collate(part)
        probability = accept_probability(verifier, drafter, batch, steps, 1.0)
        ids = torch.full((steps, *batch["ids"].shape), -1)  # rejection needs no ids of drafts
        counts = per_answer(ids, batch["ids"], batch["spans"], depth, mode="rejection", accept_prob=probability)
        accepted = torch.tensor(counts.accepted[:, depth - 1])
        expected.append(accepted.sum(-1))
        by_accepted += accepted.sum(0)
    difference = real - torch.cat(expected)
    standard_error = float(difference.std()) * math.sqrt(len(difference))
    assert abs(float(difference.sum())) < 3 * standard_error
    assert standard_error < 0.005 * float(real.sum()), "the comparison would notice half a percent"
    seen = torch.tensor([histogram(a, depth) for a in answers], dtype=torch.float64)
    for accepts in range(depth + 1):  # each count of accepted drafts on its own
        spread = float(seen[:, accepts].std()) * math.sqrt(len(answers))
        assert abs(float(seen[:, accepts].sum() - by_accepted[accepts])) < 3.5 * spread
    # A hard walk over sampled drafts' argmax, as `onehot` counts it, is another number by far.
    assert float(real.sum()) < 0.97 * sum(len(a.ids) - 1 for a in answers)


class AlwaysFromP(Acceptor):
    """A decoder's tempting mistake: after a refusal the token comes from p, not from the residual max(p - q, 0)."""

    def _reject(self, p, drafts, q):
        out = super()._reject(p, drafts, q)
        own = self._draw(p).tolist()
        return [[*row[:-1], own[i][len(row) - 1]] for i, row in enumerate(out)]


def directly_sampled(verifier, prompt, count, length, generator):
    """Ancestral sampling from the verifier, no drafts."""
    cache = verifier.new_cache(count, len(prompt) + length)
    new = torch.tensor(prompt).expand(count, -1)
    out = []
    for _ in range(length):
        logits = verifier.forward(new, cache, logits="last").logits[:, -1]
        new = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        out.append(new[:, 0])
    return torch.stack(out, 1).tolist()


def p_value(first, second):
    """Chi-square test that two samples come from one distribution; rare cells are pooled."""
    a, b = Counter(map(tuple, first)), Counter(map(tuple, second))
    cells = [key for key in a | b if a[key] + b[key] >= 20]
    table = [[c[key] for key in cells] + [sum(c.values()) - sum(c[key] for key in cells)] for c in (a, b)]
    assert len(cells) > 30
    return chi2_contingency(table).pvalue


@pytest.mark.parametrize("mode", ["onehot", "rejection"])
def test_the_decoder_s_output_follows_direct_sampling(verifier, drafter, mode, monkeypatch):
    """The joint distribution of the next three tokens, which one or two rounds make."""
    prompt, count, length = [5, 9, 12, 7], 6000, 3
    direct = directly_sampled(verifier, prompt, count, length, torch.Generator().manual_seed(1))

    def decoded():
        result = speculative_decode(
            verifier, drafter, [prompt] * count, depth=3, max_new=length, mode=mode,
            generator=torch.Generator().manual_seed(2),
        )  # fmt: skip
        return [a.ids for a in result.answers]

    assert p_value(decoded(), direct) > 0.01
    if mode == "rejection":  # the test can fail: the mistake above is plain to see
        monkeypatch.setattr("eagle_speedup.eagle3.decoder.Acceptor", AlwaysFromP)
        assert p_value(decoded(), direct) < 1e-6
