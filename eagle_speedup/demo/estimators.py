"""The usual ways to get an accept length from TTT predictions, side by side on the same drafter and answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from ..acceptance import AcceptanceProfile, TTTAcceptance
from ..eagle3.data import Conversation, FeatureRow, make_loader
from ..eagle3.lightning_module import Eagle3Module
from ..eagle3.verifier import LlamaVerifier

__all__ = ["EstimatorRow", "estimator_rows", "restricted_targets", "textbook_lengths"]


@dataclass(frozen=True)
class EstimatorRow:
    """One estimator's accept length."""

    name: str
    full_vocabulary: float
    """With the verifier's tokens as targets."""
    draft_vocabulary: float
    """With the verifier's most likely token among those the drafter can produce as target."""


def estimator_rows(
    module: Eagle3Module,
    verifier: LlamaVerifier,
    held_out: Sequence[Conversation],
    rows: Sequence[FeatureRow],
    depth: int,
) -> tuple[EstimatorRow, ...]:
    """Walk, sum of joint accuracies and sum of products of marginal ones at one depth, each with both kinds of targets.

    Args:
        module: with the weights that are served.
        verifier: for the restricted targets.
        held_out: the answers.
        rows: their features, same order.
        depth: of drafting, at most the validation TTT steps.
    """
    restricted = [restricted_targets(verifier, c, module.drafter.d2t) for c in held_out]
    full, limited = (TTTAcceptance(module.config.validation_ttt_steps, blocks=max(64, len(rows))) for _ in range(2))
    module.on_validation_start()
    for index, batch in enumerate(make_loader(rows, 1, shuffle=False)):
        output = module.validation_step(batch, index)
        full.update(**output)
        limited.update(**output | {"target_ids": restricted[index][None]})
    module.on_validation_end()
    walks = [metric.compute() for metric in (full, limited)]
    names = ("walk", "1 + sum of joint full_acc", "1 + sum of marginal products")
    columns = [[p.accept_length(depth).value, *textbook_lengths(p, depth)] for p in walks]
    return tuple(EstimatorRow(name, a, b) for name, a, b in zip(names, *columns, strict=True))


def textbook_lengths(profile: AcceptanceProfile, depth: int) -> tuple[float, float]:
    """(1 + sum of joint accuracies, 1 + sum of products of marginal ones) over all anchors, at one depth."""
    joint = 1 + math.fsum(profile.full_acc[:depth])
    marginal = 1 + math.fsum(accumulate(profile.step_acc[:depth], mul))
    return joint, marginal


@torch.inference_mode()
def restricted_targets(verifier: LlamaVerifier, conversation: Conversation, d2t: Tensor) -> Tensor:
    """int64 [T]: the tokens, those of answers replaced by the verifier's most likely one within the draft vocabulary.

    This is what a trainer compares with that keeps the verifier's logits only where the drafter has an output.
    """
    ids = torch.tensor(conversation.ids)
    out = verifier.forward(ids[None], verifier.new_cache(1, len(ids)), logits="hidden")
    assert out.hidden is not None
    for first, last in conversation.spans:
        logits = out.hidden[0, first:last] @ verifier.head_weight[d2t].T
        ids[first + 1 : last + 1] = d2t[logits.argmax(-1)]
    return ids
