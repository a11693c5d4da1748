"""Rounds of the metric are rounds of real greedy decoding, in every answer, in every layout of the validation data."""

from __future__ import annotations

import pytest
import torch

from eagle_speedup.acceptance.spans import spans_from_cu_seqlens, spans_from_mask
from eagle_speedup.eagle3.data import Conversation, collate, make_loader, prepare_features
from eagle_speedup.eagle3.decoder import greedy_decode, speculative_decode
from eagle_speedup.eagle3.engine import DraftEngine

from .conftest import EOS, TAPS, grammar_batch, prompts_of
from .layouts import histogram, packed_ttt, per_answer, two_turns, validated

DEPTHS = (1, 3, 5, 8)


@pytest.fixture(scope="module")
def real(verifier, drafter):
    """Decode prompts speculatively as one batch: answers by depth, checked against plain decoding."""
    engine = DraftEngine(drafter)

    def decode(prompts, written, *, max_new=40, eos_id=EOS):
        out = {}
        for depth in DEPTHS:
            result = speculative_decode(verifier, engine, prompts, depth=depth, max_new=max_new, eos_id=eos_id)
            assert [a.ids for a in result.answers] == written, "lossless"
            out[depth] = result.answers
        return out

    return decode


def assert_equal_in_every_answer(counts, decoded):
    """Not only the rounds: how many of them accept 0, 1, .. drafts."""
    for depth, answers in decoded.items():
        for i, answer in enumerate(answers):
            assert counts.accepted[i, depth - 1, : depth + 1].tolist() == histogram(answer, depth), (depth, i)
        assert sum(sum(a.accepted) for a in answers) > len(answers), "a drafter that is never right shows nothing"


def test_batches_of_unequal_prompts_with_early_ends(verifier, drafter, held_out, real):
    prompts = [c.ids[: c.spans[0][0]] for c in held_out]
    assert len({len(p) for p in prompts}) > 5
    plain = greedy_decode(verifier, prompts, max_new=40)
    stop = plain.answers[0].ids[10]  # a frequent token, declared to be the end of a turn
    answers = [a.ids for a in greedy_decode(verifier, prompts, max_new=40, eos_id=stop).answers]
    assert len({len(a) for a in answers}) > 5 and min(map(len, answers)) < 12
    conversations = [Conversation.from_answer(p, a) for p, a in zip(prompts, answers, strict=True)]
    decoded = real(prompts, answers, eos_id=stop)
    rows, done = prepare_features(verifier, conversations, TAPS), 0
    for batch in make_loader(rows, 7, shuffle=False):
        counts = per_answer(validated(drafter, batch, 8), batch["ids"], batch["spans"], 8)
        part = {depth: a[done : done + len(batch["ids"])] for depth, a in decoded.items()}
        assert_equal_in_every_answer(counts, part)
        done += len(batch["ids"])
    assert done == len(held_out)


def test_conversations_of_two_turns(verifier, drafter, real):
    prompts = prompts_of(12, seed=31)
    replies = [row[: 2 + i % 4] for i, row in enumerate(prompts_of(12, seed=32))]
    conversations = two_turns(verifier, prompts, replies, max_new=24, eos_id=EOS)
    batch = collate(list(enumerate(prepare_features(verifier, conversations, TAPS))))
    assert len(batch["spans"]) == 24
    counts = per_answer(validated(drafter, batch, 8), batch["ids"], batch["spans"], 8)
    for turn in (0, 1):
        asked = [c.ids[: c.spans[turn][0]] for c in conversations]
        written = [c.ids[c.spans[turn][0] : c.spans[turn][1] + 1] for c in conversations]
        decoded = real(asked, written, max_new=24)
        of_turn = counts.accepted[turn::2]
        for depth, answers in decoded.items():
            for i, answer in enumerate(answers):
                assert of_turn[i, depth - 1, : depth + 1].tolist() == histogram(answer, depth), (turn, depth, i)


@pytest.mark.parametrize("masked", [False, True])
def test_packed_documents(verifier, drafter, held_out, held_out_rows, real, masked):
    """Eight documents in one row; drafts come from every slot, those across the documents' borders too."""
    packed, rows = held_out[:8], held_out_rows[:8]
    ids, taps = torch.cat([r.ids for r in rows]), torch.cat([r.taps for r in rows])
    documents = torch.repeat_interleave(torch.arange(8), torch.tensor([len(r.ids) for r in rows]))
    drafts = packed_ttt(drafter, ids, taps, documents, 8)[:, None]
    prompt_lengths = [c.spans[0][0] for c in packed]
    spans = spans_from_cu_seqlens([0, *torch.bincount(documents).cumsum(0).tolist()], prompt_lengths)
    if masked:
        starts = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(documents).cumsum(0)[:-1]])
        answer = torch.arange(len(ids)) - starts[documents] >= torch.tensor(prompt_lengths)[documents]
        from_mask = spans_from_mask(answer[None], mask_on="input", document_ids=documents[None])
        assert torch.equal(from_mask, spans)
        spans = from_mask
    counts = per_answer(drafts, ids[None], spans, 8)
    prompts = [c.ids[: c.spans[0][0]] for c in packed]
    assert_equal_in_every_answer(counts, real(prompts, [c.ids[c.spans[0][0] :] for c in packed]))


def test_drafts_that_are_right_across_the_border_are_not_counted(drafter, held_out, held_out_rows):
    rows = held_out_rows[:8]
    ids = torch.cat([r.ids for r in rows])
    offsets = [0, *torch.tensor([len(r.ids) for r in rows]).cumsum(0).tolist()]
    perfect = torch.stack([ids.roll(-1 - k) for k in range(8)])[:, None]
    spans = spans_from_cu_seqlens(offsets, [c.spans[0][0] for c in held_out[:8]])
    counts = per_answer(perfect, ids[None], spans, 8)
    for i, (_, first, last) in enumerate(spans.tolist()):
        assert counts.accepted[i, 7].sum() == -(-(last - first) // 9), "rounds of depth + 1 tokens, the last one short"


def test_a_row_of_the_grammar_is_not_the_verifier_s_own(verifier, drafter):
    """The guard of all of this: on text the verifier did not write, walk and decoding are about different texts."""
    text = grammar_batch(torch.Generator().manual_seed(8), 1, 40)[0].tolist()
    written = greedy_decode(verifier, [text[:6]], max_new=34, eos_id=EOS).answers[0].ids
    assert written != text[6:]
