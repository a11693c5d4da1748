"""Makes the conversations that the demo ships: `python -m eagle_speedup.demo.make_conversations` (about five minutes
on two cores).

Natural-language prompts are written by the model itself: a few opening words of ours, then its own tokens at
temperature 1. Code prompts are `code_prompts`. Answers are the verifier's greedy ones in float32, as it is served,
so that training is on-policy.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch

from eagle_speedup.eagle3.smollm2 import ChatModel, load_smollm2

from .code_prompts import code_prompts
from .data import _FILE, ShippedData, generate_answers, pack_shipped

_OPENINGS = (
    "What is",
    "What are the",
    "How do I",
    "How does",
    "Why do",
    "Explain",
    "Describe",
    "Write a short",
    "Give me",
    "Can you",
    "List",
    "Tell me about",
    "Compare",
    "What is the difference between",
    "How can I",
    "Write a poem about",
    "Summarize",
    "Name",
    "When did",
    "Who was",
)


@torch.inference_mode()
def write_prompts(
    model: ChatModel, wanted: int, generator: torch.Generator, *, longest: int = 28, batch: int = 40
) -> list[str]:
    """Prompts the model writes itself: those that end within `longest` tokens, are plain ASCII, one line, and end a
    sentence.
    """
    seen: dict[str, None] = {}
    draw = random.Random(int(torch.randint(1 << 30, (1,), generator=generator)))
    while len(seen) < wanted:
        for text in _continue(model, [draw.choice(_OPENINGS) for _ in range(batch)], longest, generator):
            if _usable(text):
                seen.setdefault(text)
        print(f"{len(seen)}/{wanted} prompts", flush=True)
    return list(seen)[:wanted]


def _continue(model: ChatModel, openings: list[str], longest: int, generator: torch.Generator) -> list[str]:
    """The openings that came to an end of turn, with what the model wrote."""
    ids = [model.encode(f"<|im_start|>user\n{opening}") for opening in openings]
    lengths = [len(row) for row in ids]
    padded = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in ids])
    cache = model.verifier.new_cache(len(ids), max(lengths) + longest)
    hidden = model.verifier.forward(padded, cache, logits="hidden").hidden
    assert hidden is not None
    cache.rollback(lengths)
    logits = model.verifier.logits(hidden[torch.arange(len(ids)), torch.tensor(lengths) - 1])
    written: list[list[int]] = [[] for _ in ids]
    for _ in range(longest):
        tokens = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        for row, token in zip(written, tokens[:, 0].tolist(), strict=True):
            row.append(token)
        out = model.verifier.forward(tokens, cache).logits
        assert out is not None
        logits = out[:, -1]
    ended = [
        (opening, row[: row.index(model.eos_id)])
        for opening, row in zip(openings, written, strict=True)
        if model.eos_id in row
    ]
    return [opening + model.decode(row) for opening, row in ended]


def _usable(text: str) -> bool:
    return (
        text.isascii()
        and "\n" not in text
        and len(text.split()) >= 4
        and text.rstrip()[-1:] in "?.!"
        and "<|" not in text
    )


def main() -> None:
    """Write the file into the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--natural", type=int, default=190)
    parser.add_argument("--code", type=int, default=150)
    parser.add_argument("--held-out", type=int, default=64)
    parser.add_argument("--max-new", type=int, default=96)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data" / _FILE)
    args = parser.parse_args()
    model, generator = load_smollm2(), torch.Generator().manual_seed(args.seed)
    natural = write_prompts(model, args.natural + args.held_out, generator)
    held_out, natural = natural[: args.held_out], natural[args.held_out :]
    texts = natural + code_prompts(args.code, args.seed)
    random.Random(args.seed).shuffle(texts)  # any first part of the file is a fair mixture
    prompts = [model.prompt_ids(text) for text in texts]
    conversations = generate_answers(
        model.verifier,
        prompts,
        max_new=args.max_new,
        eos_id=model.eos_id,
        batch=48,
        progress=lambda n, of: print(f"{n}/{of}", flush=True),
    )
    meta = {
        "seed": args.seed,
        "verifier": model.name,
        "max_new": args.max_new,
        "natural": len(natural),
        "code": args.code,
    }
    blob = pack_shipped(ShippedData(conversations, held_out, meta))
    args.output.write_bytes(blob)
    answers = sum(c.answer_tokens for c in conversations)
    print(f"{args.output}: {len(conversations)} conversations, {answers} answer tokens, {len(blob)} bytes")


if __name__ == "__main__":
    main()
