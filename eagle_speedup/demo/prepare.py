"""Held-out answers and the verifier's features: made once, then read from the run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..eagle3.data import Conversation, FeatureRow, prepare_features
from ..eagle3.drafter import draft_vocabulary
from .data import generate_answers
from .folder import RunFolder
from .story import Story
from .subject import Subject

__all__ = ["HeldOut", "TrainingSet", "position_bytes", "prepare_held_out", "prepare_training"]

_CHUNK = 32  # conversations whose features are made between two looks at the clock and the bar
_BATCH = 24  # the most rows that the few-row kernels take: answers then come from the kernels that will serve


@dataclass(frozen=True)
class HeldOut:
    """Answers to validate and to serve."""

    conversations: tuple[Conversation, ...]
    rows: tuple[FeatureRow, ...]
    """float32 features, so that validation and decoding see the same numbers."""

    @property
    def answers(self) -> list[tuple[int, ...]]:
        """Token ids of every answer, by plain greedy decoding."""
        return [tuple(c.ids[c.spans[0][0] :]) for c in self.conversations]


@dataclass(frozen=True)
class TrainingSet:
    """Features to train on, and the vocabulary they give."""

    rows: tuple[FeatureRow, ...]
    d2t: Tensor
    """int64: verifier ids the drafter can produce."""

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(e - p for row in self.rows for p, e in row.spans)


def position_bytes(subject: Subject) -> int:
    """Bytes of one position's training features."""
    recipe = subject.recipe
    return 2 * len(recipe.tap_layers) * subject.verifier.config.hidden_size + 6 * recipe.soft_targets + 8


def prepare_held_out(subject: Subject, count: int, seed: int, folder: RunFolder, story: Story) -> HeldOut:
    """Let the verifier write ``count`` answers, live, or take those of the interrupted run."""
    recipe, conversations = subject.recipe, folder.load_answers()
    if conversations is None:
        with story.bar("answers") as bar:
            conversations = generate_answers(
                subject.verifier,
                subject.prompts(count, seed),
                max_new=recipe.max_new,
                eos_id=subject.eos_id,
                batch=_BATCH,
                progress=bar,
            )
        folder.save_answers(conversations)
    rows = prepare_features(subject.verifier, conversations, recipe.tap_layers)
    return HeldOut(tuple(conversations), tuple(rows))


def prepare_training(
    subject: Subject, count: int, folder: RunFolder, story: Story, in_time: Callable[[], bool]
) -> TrainingSet:
    """Run the verifier over the first ``count`` conversations, or take the features of the interrupted run.

    Args:
        subject: whose.
        count: how many, if there is time for them.
        folder: where they are kept.
        story: for the progress bar.
        in_time: asked every few conversations; once it says no, what is done is enough.
    """
    d2t, rows = _vocabulary(subject), folder.load_rows(folder.features)
    if rows is None:
        rows = []
        with story.bar("conversations") as bar:
            while len(rows) < count and (not rows or in_time()):
                rows += _features(subject, subject.conversations[len(rows) : count][:_CHUNK], d2t)
                bar(len(rows), count)
        folder.save_rows(folder.features, rows)
    return TrainingSet(tuple(rows), d2t)


def _features(subject: Subject, conversations: Sequence[Conversation], d2t: Tensor) -> list[FeatureRow]:
    recipe = subject.recipe
    return prepare_features(
        subject.verifier,
        conversations,
        recipe.tap_layers,
        d2t=d2t,
        soft_targets=recipe.soft_targets,
        dtype=torch.float16,
    )


def _vocabulary(subject: Subject) -> Tensor:
    """Of all conversations: their ids are at hand even where there is no time for their features."""
    ids = torch.tensor([token for c in subject.conversations for token in c.ids])
    return draft_vocabulary(ids, subject.recipe.draft_vocab_size, subject.verifier.config.vocab_size)
