"""Validation data in every layout that trainers use, and one answer at a time from metric and decoder to compare."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_speedup.acceptance import AcceptanceCounts, TTTAcceptance
from eagle_speedup.eagle3.attention import rotate
from eagle_speedup.eagle3.data import Conversation
from eagle_speedup.eagle3.decoder import Answer, greedy_decode
from eagle_speedup.eagle3.drafter import Eagle3Drafter
from eagle_speedup.eagle3.lightning_module import Eagle3Module, TrainingConfig
from eagle_speedup.eagle3.verifier import LlamaVerifier


def histogram(answer: Answer, depth: int) -> list[int]:
    """Real rounds by the number of drafts they accepted."""
    return torch.bincount(torch.tensor(answer.accepted, dtype=torch.long), minlength=depth + 1).tolist()


def per_answer(drafts: Tensor, targets: Tensor, spans: Tensor, max_depth: int, **options) -> AcceptanceCounts:
    """The metric's counts, one answer a block; checks that the answers of a row together count the same."""
    mode, index = options.get("mode", "greedy"), torch.arange(len(spans))
    together = TTTAcceptance(len(drafts), max_depth, mode=mode)
    together.update(drafts, targets, spans, accept_prob=options.get("accept_prob"))
    alone, row = spans.clone(), spans[:, 0]
    alone[:, 0] = index
    options = {name: value[:, row] for name, value in options.items() if name != "mode"}
    metric = TTTAcceptance(len(drafts), max_depth, mode=mode, blocks=len(spans))
    metric.update(drafts[:, row], targets[row], alone, sequence_index=index, **options)
    counts = metric.counts()
    torch.testing.assert_close(
        torch.tensor(together.counts().flat().sum(0)), torch.tensor(counts.flat().sum(0)), atol=1e-9, rtol=1e-12
    )
    return counts


def validated(drafter: Eagle3Drafter, batch: dict[str, Tensor], steps: int) -> Tensor:
    """Drafted ids [steps, B, T] of ``validation_step`` with that many TTT steps."""
    module = Eagle3Module(drafter, TrainingConfig(validation_ttt_steps=steps, ema_decay=0.0, float16_grid=False))
    return module.validation_step(batch, 0)["draft_ids"]


def two_turns(
    verifier: LlamaVerifier, prompts: list[list[int]], replies: list[list[int]], *, max_new: int, eos_id: int
) -> list[Conversation]:
    """Conversations of two turns, both answers by plain greedy decoding."""
    first = greedy_decode(verifier, prompts, max_new=max_new, eos_id=eos_id).answers
    asked = [p + a.ids + reply for p, a, reply in zip(prompts, first, replies, strict=True)]
    second = greedy_decode(verifier, asked, max_new=max_new, eos_id=eos_id).answers
    return [
        Conversation(q + b.ids, ((len(p), len(p) + len(a.ids) - 1), (len(q), len(q) + len(b.ids) - 1)))
        for p, a, q, b in zip(prompts, first, asked, second, strict=True)
    ]


@torch.no_grad()
def packed_ttt(drafter: Eagle3Drafter, ids: Tensor, taps: Tensor, documents: Tensor, steps: int) -> Tensor:
    """Drafts [steps, T] of a packed row, from every anchor and with dense masks, as a trainer on packed data runs it.

    Written apart from ``eagle3.ttt``, which runs anchors of answers only and knows no packing.

    Args:
        drafter: the drafter.
        ids: int64 [T].
        taps: [T, taps * hidden].
        documents: int64 [T] number of each token's document.
        steps: K.
    """
    c, anchor = drafter.config, torch.arange(1, len(ids))
    of = documents[anchor]
    start = torch.tensor([int((documents == d).nonzero()[0]) for d in of.tolist()])
    in_document = anchor > start  # a document's first token has no feature of its own document before it
    seen = (anchor <= anchor[:, None]) & (of == of[:, None]) & in_document
    seen |= torch.eye(len(anchor), dtype=torch.bool)  # keeps rows without any key finite
    state = drafter.fuse(taps[anchor - 1])
    drafts, own_keys, own_values = [], [], []

    def heads(x: Tensor) -> Tensor:
        x = x.unflatten(-1, (-1, c.head_dim))
        return x.repeat_interleave(c.heads // x.shape[1], 1)

    for step in range(steps):
        x = drafter.layer_input(ids[(anchor + step).clamp(max=len(ids) - 1)], state)
        rotation = drafter.rope[(anchor - 1 - start + step).clamp(min=0)]
        query, key, value = rotate(heads(drafter.query(x)), rotation), heads(drafter.key(x)), heads(drafter.value(x))
        own_keys.append(rotate(key, rotation))
        own_values.append(value)
        scores = torch.einsum("nhd,mhd->hnm", query, own_keys[0]).masked_fill(~seen, float("-inf"))
        own = [torch.einsum("nhd,nhd->hn", query, k)[..., None] for k in own_keys[1:]]
        weights = (torch.cat([scores, *own], -1) / c.head_dim**0.5).softmax(-1)
        out = torch.einsum("hnm,mhd->nhd", weights[..., : len(anchor)], own_values[0])
        for i, v in enumerate(own_values[1:]):
            out = out + weights[..., len(anchor) + i].T[..., None] * v
        state = drafter.finish(out.flatten(1), state)
        drafts.append(drafter.d2t[drafter.logits(state).argmax(-1)])
    return torch.nn.functional.pad(torch.stack(drafts), (1, 0), value=-1)
