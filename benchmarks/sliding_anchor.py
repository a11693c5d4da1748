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

from eagle_speedup.acceptance import AcceptanceProfile, TTTAcceptance
from eagle_speedup.demo.subject import Subject, load_smollm2_subject
from eagle_speedup.eagle3.data import Conversation, make_loader, prepare_features
from eagle_speedup.eagle3.decoder import greedy_decode, speculative_decode
from eagle_speedup.eagle3.drafter import Eagle3Drafter
from eagle_speedup.eagle3.engine import DraftEngine
from eagle_speedup.eagle3.lightning_module import Eagle3Module, TrainingConfig

STEPS, ROWS, SEED = 5, 8, 1000


def best_drafter(checkpoint: Path, subject: Subject) -> Eagle3Drafter:
    """The drafter that the demo served: its averaged weights."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    served = {name.removeprefix("averaged."): value for name, value in state.items() if name.startswith("averaged.")}
    drafter = Eagle3Drafter.for_verifier(subject.verifier, served["d2t"], subject.recipe.tap_layers)
    drafter.load_state_dict(served)
    return drafter.requires_grad_(False)


def projected(drafter: Eagle3Drafter, subject: Subject, answers: list[Conversation], depth: int) -> AcceptanceProfile:
    """What the metric makes of five TTT steps, walked to ``depth``."""
    module = Eagle3Module(drafter, TrainingConfig(ema_decay=0.0, validation_ttt_steps=STEPS))
    rows = prepare_features(subject.verifier, answers, subject.recipe.tap_layers)
    metric = TTTAcceptance(STEPS, depth, blocks=len(rows))
    with torch.inference_mode():
        for index, batch in enumerate(make_loader(rows, ROWS, shuffle=False)):
            metric.update(**module.validation_step(batch, index))
    return metric.compute()


def main() -> int:
    parser = argparse.ArgumentParser(description="The sliding anchor beside real decoding.")
    parser.add_argument("folder", type=Path, help="folder of a finished demo (demo_out)")
    parser.add_argument("--answers", type=int, default=32)
    parser.add_argument("--depths", type=int, nargs="+", default=[5, 8, 10])
    options = parser.parse_args()

    checkpoint = options.folder / "checkpoints" / "best.ckpt"
    if not checkpoint.is_file():
        parser.error(f"folder = '{options.folder}': must hold checkpoints/best.ckpt of a finished demo")
    subject = load_smollm2_subject()
    drafter = best_drafter(checkpoint, subject)
    engine = DraftEngine(drafter)
    prompts = subject.prompts(options.answers, SEED)
    max_new, eos = subject.recipe.max_new, subject.eos_id
    plain = [
        a
        for i in range(0, len(prompts), ROWS)
        for a in greedy_decode(subject.verifier, prompts[i : i + ROWS], max_new=max_new, eos_id=eos).answers
    ]
    answers = [Conversation.from_answer(p, a.ids) for p, a in zip(prompts, plain, strict=True)]
    profile = projected(drafter, subject, answers, max(options.depths))
    print(f"{profile.answers} answers of up to {max_new} tokens, {STEPS} TTT steps")
    print("depth  projected  served  error %  answers that differ in their rounds")
    for depth in options.depths:
        served = [
            a
            for i in range(0, len(prompts), ROWS)
            for a in speculative_decode(
                subject.verifier, engine, prompts[i : i + ROWS], depth=depth, max_new=max_new, eos_id=eos
            ).answers
        ]
        if [a.ids for a in served] != [a.ids for a in plain]:
            raise SystemExit("decoding was not lossless")
        rounds = [a.rounds for a in served]
        real = sum(len(a.ids) - 1 for a in served) / sum(rounds)
        value = profile.accept_length(depth).value
        walked = profile.counts.accepted[:, depth - 1].sum(-1).tolist()
        differ = sum(a != b for a, b in zip(walked, rounds, strict=True))
        print(f"{depth:>5}  {value:9.4f}  {real:6.4f}  {100 * (value / real - 1):+7.2f}  {differ:>10}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
