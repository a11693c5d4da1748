"""Depths beyond the TTT steps: the sliding anchor beside real decoding, for the drafter of a finished demo.

    python benchmarks/sliding_anchor.py DEMO_FOLDER [--answers 32] [--depths 5 8 10]

Decodes new prompts with the demo's best checkpoint, plainly and speculatively, and prints the accept length that five
TTT steps project beside the one that was served. Up to five drafts the two are equal in every answer; beyond, the
metric takes the further drafts of an anchor from the anchors after it (goal: within 0.5 %).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from eagle_speedup.demo.data import generate_answers
from eagle_speedup.demo.subject import Subject, load_smollm2_subject
from eagle_speedup.demo.training import profile_of, restore
from eagle_speedup.eagle3.data import prepare_features
from eagle_speedup.eagle3.decoder import DecodeResult, speculative_decode
from eagle_speedup.eagle3.drafter import Eagle3Drafter
from eagle_speedup.eagle3.engine import DraftEngine
from eagle_speedup.eagle3.lightning_module import Eagle3Module

ROWS, SEED = 8, 1000


def blank_module(subject: Subject) -> Eagle3Module:
    """What a checkpoint of the demo is loaded into; its vocabulary comes with it."""
    d2t = torch.arange(subject.recipe.draft_vocab_size)
    drafter = Eagle3Drafter.for_verifier(subject.verifier, d2t, subject.recipe.tap_layers)
    return Eagle3Module(drafter, subject.recipe.training(1))


def served(subject: Subject, engine: DraftEngine, prompts: list[list[int]], depth: int) -> DecodeResult:
    """All prompts decoded speculatively, some at a time."""
    verifier, max_new = subject.verifier, subject.recipe.max_new
    parts = [
        speculative_decode(verifier, engine, prompts[i : i + ROWS], depth=depth, max_new=max_new, eos_id=subject.eos_id)
        for i in range(0, len(prompts), ROWS)
    ]
    return sum(parts[1:], start=parts[0])


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="The sliding anchor beside real decoding.")
    parser.add_argument("folder", type=Path, help="folder of a finished demo (demo_out)")
    parser.add_argument("--answers", type=int, default=32)
    parser.add_argument("--depths", type=int, nargs="+", default=[5, 8, 10])
    options = parser.parse_args()

    checkpoint = options.folder / "checkpoints" / "best.ckpt"
    if not checkpoint.is_file():
        parser.error(f"folder = '{options.folder}': must hold checkpoints/best.ckpt of a finished demo")
    subject = load_smollm2_subject()
    module = blank_module(subject)
    engine = DraftEngine(restore(module, checkpoint))
    prompts, max_new = subject.prompts(options.answers, SEED), subject.recipe.max_new
    plain = generate_answers(subject.verifier, prompts, max_new=max_new, eos_id=subject.eos_id, batch=ROWS)
    rows = prepare_features(subject.verifier, plain, subject.recipe.tap_layers)
    profile, _ = profile_of(module, rows, max(options.depths))
    print(f"{profile.answers} answers of up to {max_new} tokens, {profile.ttt_steps} TTT steps")
    print("depth  projected  served  error %  answers that differ in their rounds")
    for depth in options.depths:
        real = served(subject, engine, prompts, depth)
        if [[*prompt, *answer.ids] for prompt, answer in zip(prompts, real.answers, strict=True)] != [
            conversation.ids for conversation in plain
        ]:
            raise SystemExit("decoding was not lossless")
        value = profile.accept_length(depth).value
        walked = profile.counts.accepted[: len(rows), depth - 1].sum(-1).tolist()
        differ = sum(a != b.rounds for a, b in zip(walked, real.answers, strict=True))
        error = 100 * (value / real.accept_length - 1)
        print(f"{depth:>5}  {value:9.4f}  {real.accept_length:6.4f}  {error:+7.2f}  {differ:>10}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
