"""What a drafter is trained for: a verifier, conversations it has written, prompts that training never sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..eagle3.data import Conversation
from ..eagle3.recipe import DemoRecipe
from ..eagle3.verifier import LlamaVerifier

__all__ = ["Subject", "load_smollm2_subject"]


@dataclass(frozen=True)
class Subject:
    """The verifier and its data."""

    name: str
    verifier: LlamaVerifier
    eos_id: int
    """Token that ends an answer."""
    recipe: DemoRecipe
    """How its drafter is made and trained."""
    conversations: tuple[Conversation, ...]
    """Of the verifier's own writing, to train on."""
    prompts: Callable[[int, int], list[list[int]]]
    """(count, seed) -> token ids of that many prompts, none of them in ``conversations``."""
    prompts_text: str
    """What the prompts are, for people."""


def load_smollm2_subject() -> Subject:
    """SmolLM2-135M-Instruct with the conversations that come with the package; half of the prompts are HumanEval's."""
    from ..eagle3.smollm2 import load_smollm2
    from .data import held_out_prompts, load_shipped

    chat = load_smollm2()
    return Subject(
        name=chat.name,
        verifier=chat.verifier,
        eos_id=chat.eos_id,
        recipe=DemoRecipe(),
        conversations=tuple(load_shipped().conversations),
        prompts=lambda count, seed: [p.ids for p in held_out_prompts(chat, count, seed=seed)],
        prompts_text="half of them HumanEval problems, half questions in plain language",
    )
