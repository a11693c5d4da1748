"""Small models that other tests may reuse: a verifier that has learned a grammar in seconds, and a drafter trained
on it.
"""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle_speedup.eagle3.data import Conversation, FeatureRow, make_loader, prepare_features, ttt_inputs
from eagle_speedup.eagle3.decoder import greedy_decode
from eagle_speedup.eagle3.drafter import Eagle3Drafter, draft_vocabulary
from eagle_speedup.eagle3.lightning_module import ttt_loss
from eagle_speedup.eagle3.ttt import ttt
from eagle_speedup.eagle3.verifier import LlamaVerifier

VOCAB, EOS, TAPS = 48, 1, (0, 1, 2)


def tiny_hf(seed: int = 0, **changes) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    settings = dict(  # noqa: C408
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, rope_theta=10_000.0, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=EOS,
    )  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).float().eval()


def grammar_batch(generator: torch.Generator, batch: int, length: int) -> torch.Tensor:
    """Sentences of a second-order chain with forks: partly predictable, so that accept lengths are neither 1 nor
    full. Token 1 ends a sentence.
    """
    out = torch.randint(2, VOCAB, (batch, length), generator=generator)
    fork = torch.rand(batch, length, generator=generator)
    for t in range(2, length):
        follow = 2 + (3 * out[:, t - 1] + out[:, t - 2]) % (VOCAB - 2)
        other = 2 + (5 * out[:, t - 1] + 7) % (VOCAB - 2)
        out[:, t] = torch.where(
            fork[:, t] < 0.75, follow, torch.where(fork[:, t] < 0.97, other, torch.ones_like(other))
        )
    return out


def train_verifier(steps: int = 150) -> LlamaForCausalLM:
    model, generator = tiny_hf(1), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    model.train()
    for _ in range(steps):
        ids = grammar_batch(generator, 16, 40)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def prompts_of(count: int, seed: int) -> list[list[int]]:
    """Prompts of unequal lengths, 3..12 tokens."""
    generator = torch.Generator().manual_seed(seed)
    rows = grammar_batch(generator, count, 12).tolist()
    return [[token if token != EOS else 2 for token in row[: 3 + i % 10]] for i, row in enumerate(rows)]


def train_drafter(
    verifier: LlamaVerifier, rows: list[FeatureRow], d2t: torch.Tensor, *, epochs: int = 6, steps: int = 3
) -> Eagle3Drafter:
    torch.manual_seed(2)
    drafter = Eagle3Drafter.for_verifier(verifier, d2t, TAPS)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for batch in make_loader(rows, 8, shuffle=True, seed=epoch):
            ttt_loss(ttt(drafter, ttt_inputs(batch), steps, keep_missed=0.2), batch, drafter).backward()
            optimizer.step()
            optimizer.zero_grad()
    return drafter.requires_grad_(False)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny operations lose more to a second thread than they win."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def hf_model() -> LlamaForCausalLM:
    """A trained HF model of the tiny size."""
    return train_verifier()


@pytest.fixture(scope="session")
def verifier(hf_model: LlamaForCausalLM) -> LlamaVerifier:
    """The trained tiny verifier."""
    return LlamaVerifier.from_hf(hf_model, float16_grid=True, max_positions=256)


@pytest.fixture(scope="session")
def held_out(verifier: LlamaVerifier) -> list[Conversation]:
    """Greedy answers of the verifier to prompts of unequal lengths; some end early."""
    prompts = prompts_of(24, seed=5)
    result = greedy_decode(verifier, prompts, max_new=40, eos_id=EOS)
    return [Conversation.from_answer(p, a.ids) for p, a in zip(prompts, result.answers, strict=True)]


@pytest.fixture(scope="session")
def drafter(verifier: LlamaVerifier) -> Eagle3Drafter:
    """A drafter trained on the verifier's own answers; its vocabulary leaves a third of the tokens out."""
    prompts = prompts_of(96, seed=6)
    result = greedy_decode(verifier, prompts, max_new=32, eos_id=EOS)
    conversations = [Conversation.from_answer(p, a.ids) for p, a in zip(prompts, result.answers, strict=True)]
    d2t = draft_vocabulary(torch.tensor([t for c in conversations for t in c.ids]), 32, VOCAB)
    rows = prepare_features(verifier, conversations, TAPS, d2t=d2t, soft_targets=8)
    return train_drafter(verifier, rows, d2t)


@pytest.fixture(scope="session")
def held_out_rows(verifier: LlamaVerifier, held_out: list[Conversation]) -> list[FeatureRow]:
    """Features of the held-out conversations."""
    return prepare_features(verifier, held_out, TAPS)
