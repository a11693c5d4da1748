"""The claim of the package on a small model: rounds from TTT hits are the rounds of real decoding, in every answer."""

from typing import Any

import pytest
import torch

from eagle_speedup.eagle3.data import collate, ttt_inputs
from eagle_speedup.eagle3.decoder import (
    finish,
    greedy_decode,
    greedy_rounds,
    read_prompts,
    speculative_decode,
    speculative_rounds,
)
from eagle_speedup.eagle3.engine import DraftEngine
from eagle_speedup.eagle3.sampling import Acceptor
from eagle_speedup.eagle3.ttt import ttt, ttt_draft_ids
from eagle_speedup.errors import InputError

from .conftest import EOS


def walk(draft_ids, ids, first, last, depth):
    """Accepted drafts of every round, by a plain walk."""
    anchor, accepted = first, []
    while anchor < last:
        n = 0
        while n < depth and anchor + 1 + n <= last and draft_ids[n][anchor] == ids[anchor + 1 + n]:
            n += 1
        accepted.append(n)
        anchor += n + 1
    return accepted


def drafts_of(drafter, rows, steps, batch=5):
    """draft_ids[k][t] per row, from padded batches."""
    out = []
    for begin in range(0, len(rows), batch):
        part = list(enumerate(rows[begin : begin + batch]))
        draft = ttt_draft_ids(drafter, ttt_inputs(collate(part)), steps)
        out += [draft[:, b].tolist() for b in range(len(part))]
    return out


@pytest.mark.parametrize("depth", [1, 3, 5, 8])
def test_rounds_of_the_walk_equal_rounds_of_decoding_in_every_answer(verifier, drafter, held_out, held_out_rows, depth):
    drafts = drafts_of(drafter, held_out_rows, 8)
    engine, total = DraftEngine(drafter), 0
    for conversation, draft in zip(held_out, drafts, strict=True):
        first, last = conversation.spans[0]
        answer = speculative_decode(
            verifier, engine, [conversation.ids[:first]], depth=depth, max_new=40, eos_id=EOS
        ).answers[0]
        assert answer.ids == conversation.ids[first:], "lossless"
        assert answer.accepted == walk(draft, conversation.ids, first, last, depth)
        total += sum(answer.accepted)
    assert total > len(held_out), "drafts must be accepted for the comparison to mean anything"


@pytest.mark.parametrize("depth", [2, 5])
def test_a_batch_of_unequal_prompts_and_ends_decodes_as_one_by_one(verifier, drafter, held_out, depth):
    prompts = [c.ids[: c.spans[0][0]] for c in held_out[:12]]
    engine = DraftEngine(drafter)
    together = speculative_decode(verifier, engine, prompts, depth=depth, max_new=40, eos_id=EOS)
    for prompt, answer in zip(prompts, together.answers, strict=True):
        alone = speculative_decode(verifier, engine, [prompt], depth=depth, max_new=40, eos_id=EOS).answers[0]
        assert (answer.ids, answer.accepted, answer.verified) == (alone.ids, alone.accepted, alone.verified)
    assert together.steps == max(a.rounds for a in together.answers)


def test_prompts_are_read_once_for_all_depths(verifier, drafter, held_out):
    prompts = [c.ids[: c.spans[0][0]] for c in held_out[:3]]
    options: dict[str, Any] = {"max_new": 24, "eos_id": EOS}
    read = read_prompts(verifier, prompts, drafter.config.tap_layers)
    for depth in (1, 4, 1):  # the first run leaves nothing behind for the last one
        ours = finish(speculative_rounds(verifier, drafter, read, depth=depth, **options))
        assert ours.answers == speculative_decode(verifier, drafter, prompts, depth=depth, **options).answers
    assert (
        finish(greedy_rounds(verifier, read, **options)).answers == greedy_decode(verifier, prompts, **options).answers
    )
    without_taps = read_prompts(verifier, prompts)
    with pytest.raises(InputError, match="must be read with the drafter's taps"):
        finish(speculative_rounds(verifier, drafter, without_taps, depth=1, **options))


def test_every_draft_of_the_decoder_is_the_metric_s_draft(verifier, drafter, held_out, held_out_rows):
    # Step by step, not only hits: drafts before the first miss are teacher forced with themselves, so all of these
    # are defined alike.
    conversation = held_out[3]
    draft = drafts_of(drafter, held_out_rows[3:4], 6)[0]
    first, last = conversation.spans[0]
    seen = []

    class Spy(DraftEngine):
        def draft(self, *args, **kwargs):
            drafts, q = super().draft(*args, **kwargs)
            seen.append(drafts[0].tolist())
            return drafts, q

    answer = speculative_decode(
        verifier, Spy(drafter), [conversation.ids[:first]], depth=6, max_new=40, eos_id=EOS
    ).answers[0]
    anchor = first
    for drafts, accepted in zip(seen, answer.accepted, strict=True):
        for step in range(min(accepted + 1, 6)):
            if anchor + 1 + step <= last:
                assert drafts[step] == draft[step][anchor]
        anchor += accepted + 1


def test_dropping_missed_chains_changes_nothing_for_the_others(drafter, held_out_rows):
    batch = ttt_inputs(collate(list(enumerate(held_out_rows[:4]))))
    every = {s.step: s for s in ttt(drafter, batch, 4)}
    hits = {s.step: s for s in ttt(drafter, batch, 4, keep_missed=0.0)}
    assert len(hits[1].row) < len(every[1].row)
    for step, part in hits.items():
        index = {(int(r), int(t)): i for i, (r, t) in enumerate(zip(every[step].row, every[step].anchor, strict=True))}
        same = every[step].logits[[index[int(r), int(t)] for r, t in zip(part.row, part.anchor, strict=True)]]
        torch.testing.assert_close(part.logits, same, atol=1e-4, rtol=1e-4)


def test_anchors_run_from_the_first_answer_token_to_the_one_before_the_last(drafter, held_out_rows):
    row = held_out_rows[0]
    first, last = row.spans[0]
    draft = ttt_draft_ids(drafter, ttt_inputs(collate([(0, row)])), 3)[:, 0]
    for step in range(3):
        drafted = (draft[step] >= 0).nonzero().flatten().tolist()
        assert drafted == list(range(first, last - step))


def test_an_answer_of_one_token_has_no_round(verifier, drafter, held_out):
    prompt = held_out[0].ids[: held_out[0].spans[0][0]]
    result = speculative_decode(verifier, drafter, [prompt], depth=3, max_new=1)
    assert (result.rounds, result.tokens, len(result.answers[0].ids)) == (0, 0, 1)


def test_early_end_of_turn_cuts_the_answer_and_server_counters_differ(verifier, drafter, held_out):
    prompts = [c.ids[: c.spans[0][0]] for c in held_out]
    plain = greedy_decode(verifier, prompts, max_new=40)
    stop = plain.answers[0].ids[10]  # a token that surely comes, declared to be the end
    cut = greedy_decode(verifier, prompts, max_new=40, eos_id=stop)
    spec = speculative_decode(verifier, drafter, prompts, depth=5, max_new=40, eos_id=stop)
    assert [a.ids for a in spec.answers] == [a.ids for a in cut.answers]
    assert spec.answers[0].finished and len(spec.answers[0].ids) <= 11
    assert spec.accept_length == spec.tokens / spec.rounds
    assert spec.vllm_accept_length > spec.accept_length
    assert spec.sglang_accept_length == (spec.tokens + len(prompts)) / spec.rounds


def test_bad_arguments_are_named(verifier, drafter):
    with pytest.raises(InputError, match="depth = 0"):
        speculative_decode(verifier, drafter, [[2, 3]], depth=0, max_new=4)
    with pytest.raises(InputError, match="mode = 'beam'"):
        speculative_decode(verifier, drafter, [[2, 3]], depth=1, max_new=4, mode="beam")
    with pytest.raises(InputError, match="prompts"):
        greedy_decode(verifier, [[2]], max_new=4)


@pytest.mark.parametrize("mode", ["onehot", "rejection"])
def test_sampling_modes_follow_the_verifier_s_distribution(verifier, drafter, mode):
    generator, n = torch.Generator().manual_seed(0), 1500
    prompt = [5, 9, 12, 7]
    result = speculative_decode(verifier, drafter, [prompt] * n, depth=3, max_new=2, mode=mode, generator=generator)
    logits = verifier.forward(torch.tensor([prompt]), verifier.new_cache(1, 16)).logits[0, -1]
    first = logits.softmax(-1)
    expected = torch.zeros_like(first)
    for token in (first > 1e-4).nonzero().flatten().tolist():
        step = verifier.forward(torch.tensor([[*prompt, token]]), verifier.new_cache(1, 16)).logits[0, -1]
        expected += first[token] * step.softmax(-1)
    seen = torch.bincount(torch.tensor([a.ids[1] for a in result.answers]), minlength=len(first)) / n
    assert (seen - expected).abs().sum() / 2 < 0.06  # total variation; sampling noise alone is about 0.04
    assert sum(map(sum, (a.accepted for a in result.answers))) > 0


def test_rejection_accepts_with_the_ratio_of_probabilities():
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.7, 0.1])
    accept = Acceptor("rejection", generator=torch.Generator().manual_seed(1))
    n = 20_000
    drafts = torch.multinomial(q, n, replacement=True, generator=torch.Generator().manual_seed(2))[:, None]
    out = accept(p.log().expand(n, 2, 3), drafts, q.expand(n, 1, 3))
    rate = sum(len(tokens) == 2 for tokens in out) / n
    assert rate == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.015)
    first = torch.bincount(torch.tensor([tokens[0] for tokens in out]), minlength=3) / n
    torch.testing.assert_close(first, p, atol=0.015, rtol=0)
