"""Conversations with precomputed verifier features, and their batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eagle_speedup.errors import InputError

from .ttt import TTTInputs
from .verifier import LlamaVerifier

__all__ = ["Conversation", "FeatureDataset", "FeatureRow", "collate", "make_loader", "prepare_features"]


@dataclass(frozen=True)
class Conversation:
    """Token ids of a conversation and where its answers are."""

    ids: list[int]
    spans: tuple[tuple[int, int], ...]
    """(P, E) of every answer: its first and its last token, end-of-turn included."""

    @classmethod
    def from_answer(cls, prompt: Sequence[int], answer: Sequence[int]) -> Conversation:
        """One turn."""
        return cls([*prompt, *answer], ((len(prompt), len(prompt) + len(answer) - 1),))

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(e - p + 1 for p, e in self.spans)


@dataclass(frozen=True)
class FeatureRow:
    """One conversation with what the verifier says about it."""

    ids: Tensor
    """int64 [T]."""
    spans: tuple[tuple[int, int], ...]
    taps: Tensor
    """[T, taps * hidden]: tapped states, normalised per tap when stored in float16 (the drafter normalises them
    anyway).
    """
    soft_ids: Tensor | None
    """int64 [answer tokens, m]: draft ids of the verifier's likeliest tokens for every position P+1..E (in order),
    or None.
    """
    soft_probs: Tensor | None
    """[answer tokens, m]: their probabilities; they may sum to less than 1."""


class FeatureDataset(Dataset):
    """Rows by index; `__getitem__` returns (index, row), the index being the `sequence_index` of validation outputs."""

    def __init__(self, rows: Sequence[FeatureRow]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[int, FeatureRow]:
        return index, self.rows[index]

    @property
    def answer_tokens(self) -> int:
        """Tokens that anchors draft: all answer tokens but the first of each answer."""
        return sum(e - p for row in self.rows for p, e in row.spans)


def collate(items: Sequence[tuple[int, FeatureRow]]) -> dict[str, Tensor]:
    """Right-padded batch: ids [B, T], taps [B, T, ..], spans [S, 3], sequence_index [B], and soft targets [N, m] in
    the spans' order.
    """
    rows = [row for _, row in items]
    longest = max(len(row.ids) for row in rows)
    batch = {
        "ids": torch.zeros(len(rows), longest, dtype=torch.long),
        "taps": torch.zeros(len(rows), longest, rows[0].taps.shape[-1], dtype=rows[0].taps.dtype),
        "spans": torch.tensor([(b, p, e) for b, row in enumerate(rows) for p, e in row.spans], dtype=torch.long).view(
            -1, 3
        ),
        "sequence_index": torch.tensor([index for index, _ in items], dtype=torch.long),
    }
    for b, row in enumerate(rows):
        batch["ids"][b, : len(row.ids)] = row.ids
        batch["taps"][b, : len(row.ids)] = row.taps
    if all(row.soft_ids is not None and row.soft_probs is not None for row in rows):
        batch["soft_ids"] = torch.cat([row.soft_ids.long() for row in rows if row.soft_ids is not None])
        batch["soft_probs"] = torch.cat([row.soft_probs.float() for row in rows if row.soft_probs is not None])
    return batch


def ttt_inputs(batch: dict[str, Tensor]) -> TTTInputs:
    """The part of a batch that `ttt` takes."""
    return TTTInputs(batch["ids"], batch["taps"], batch["spans"])


def make_loader(rows: Sequence[FeatureRow], batch_size: int, *, shuffle: bool, seed: int = 0) -> DataLoader:
    """A loader in this process: the features are in memory."""
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(FeatureDataset(rows), batch_size, shuffle=shuffle, collate_fn=collate, generator=generator)


@torch.inference_mode()
def prepare_features(
    verifier: LlamaVerifier,
    conversations: Sequence[Conversation],
    tap_layers: Sequence[int],
    *,
    d2t: Tensor | None = None,
    soft_targets: int = 0,
    dtype: torch.dtype = torch.float32,
    batch_positions: int = 1024,
    progress: Callable[[int, int], None] | None = None,
) -> list[FeatureRow]:
    """Run the verifier over ready conversations and keep its tapped states.

    Args:
        verifier: the model.
        conversations: they are batched by similar length; the result keeps their order.
        tap_layers: layers to keep, see `DrafterConfig`.
        d2t: draft vocabulary; needed for soft targets.
        soft_targets: how many of the verifier's likeliest draft-vocabulary tokens to keep an answer position; 0 for
            none.
        dtype: storage. float16 stores every tap normalised (raw states overflow it). Use float32 for validation,
            where hits must be exact.
        batch_positions: about how many positions one forward holds.
        progress: called with (done, all) conversations after every forward.
    """
    if soft_targets and d2t is None:
        raise InputError("d2t", None, "is needed for soft targets")
    order = sorted(range(len(conversations)), key=lambda i: len(conversations[i].ids))
    rows: list[FeatureRow | None] = [None] * len(order)
    done = 0
    while done < len(order):
        batch = [order[done]]
        while (
            done + len(batch) < len(order)
            and (len(batch) + 1) * len(conversations[order[done + len(batch)]].ids) <= batch_positions
        ):
            batch.append(order[done + len(batch)])
        taps, hidden = _forward(verifier, [conversations[i].ids for i in batch], tap_layers, soft_targets > 0, dtype)
        for b, i in enumerate(batch):
            soft = (
                (None, None)
                if hidden is None or d2t is None
                else _soft(verifier, conversations[i], hidden[b], d2t, soft_targets)
            )
            length = len(conversations[i].ids)
            rows[i] = FeatureRow(
                torch.tensor(conversations[i].ids), conversations[i].spans, taps[b, :length].clone(), *soft
            )
        done += len(batch)
        if progress:
            progress(done, len(order))
    return [row for row in rows if row is not None]


def _forward(
    verifier: LlamaVerifier,
    sequences: Sequence[Sequence[int]],
    tap_layers: Sequence[int],
    soft: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    cache = verifier.new_cache(len(sequences), longest)
    out = verifier.forward(ids.to(verifier.device), cache, taps=tap_layers, logits="hidden" if soft else "none")
    assert out.taps is not None
    taps = out.taps
    if dtype != torch.float32:
        split = taps.unflatten(-1, (len(tap_layers), -1))
        taps = (
            torch.nn.functional.rms_norm(split, split.shape[-1:], None, verifier.config.norm_eps).flatten(-2).to(dtype)
        )
    return taps, out.hidden


def _soft(
    verifier: LlamaVerifier, conversation: Conversation, hidden: Tensor, d2t: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The likeliest draft tokens for every position P+1..E, from the state one position before.

    Probabilities are over the draft vocabulary and the token that came: the whole vocabulary would cost a quarter of
    the verifier's forward, and where it takes much mass away from the draft vocabulary, that token has most of it.
    """
    before = torch.cat([hidden[p:e] for p, e in conversation.spans])
    came = torch.tensor([t for p, e in conversation.spans for t in conversation.ids[p + 1 : e + 1]], device=d2t.device)
    logits = verifier.logits_of(before, d2t)
    outside = (before * verifier.head_rows(came)).sum(-1).masked_fill(torch.isin(came, d2t), float("-inf"))
    log_total = torch.logaddexp(logits.logsumexp(-1), outside)[:, None]
    top = logits.topk(min(count, len(d2t)), -1)
    return top.indices.to(torch.int32), (top.values - log_total).exp().half()
