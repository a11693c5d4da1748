"""What counting costs: one update of the metric against one argmax pass over the same logits, in one run.

    python benchmarks/acceptance.py [--device cuda] [--dtype bfloat16] [--vocab 32000]

Every figure is a ratio of medians of the same process, so it carries over between machines better than milliseconds do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torchmetrics.classification import MulticlassAccuracy

from eagle_speedup.acceptance import TTTAcceptance


def median_seconds(call: Callable[[], Any], device: str, repeats: int) -> float:
    """Median of ``repeats`` timed calls after one that warms up."""
    call()
    times = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def batch(steps: int, rows: int, length: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random drafts that hit about every second time; one answer a row after a short prompt."""
    target = torch.randint(0, 32000, (rows, length), device=device)
    future = torch.stack([target.roll(-1 - k, dims=1) for k in range(steps)])
    drafts = torch.where(torch.rand(future.shape, device=device) < 0.6, future, 0)
    spans = torch.tensor([(row, 16, length - 1) for row in range(rows)], device=device)
    return drafts, target, spans


def update_seconds(steps: int, rows: int, length: int, args: argparse.Namespace) -> float:
    """One update at max_depth 2 K."""
    metric = TTTAcceptance(steps, max_depth=2 * steps).to(args.device)
    inputs = batch(steps, rows, length, args.device)

    def guarded() -> None:
        if args.device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        metric.update(*inputs)
        if args.device == "cuda":
            torch.cuda.set_sync_debug_mode("default")

    return median_seconds(guarded, args.device, args.repeats)


def others(logits: torch.Tensor, target: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Other ways to an accuracy from the same tensors: they see logits, the metric sees ids."""
    steps, _, _, vocab = logits.shape
    accuracy = MulticlassAccuracy(vocab, average="micro").to(logits.device)

    def torchmetrics_accuracy() -> None:
        for k in range(steps):
            accuracy.update(logits[k].flatten(0, 1), target.flatten())

    passes: dict[str, Callable[[], Any]] = {"torchmetrics MulticlassAccuracy": torchmetrics_accuracy}
    try:
        from speculators.models.metrics import compute_accuracy_multi_step
    except ImportError:
        return passes
    mask = torch.ones_like(target, dtype=torch.bool)

    def speculators_accuracy() -> None:
        right = mask.clone()
        for k in range(steps):
            right = compute_accuracy_multi_step(logits[k], logits[0], mask, right, k)[-1]

    return {**passes, "speculators compute_accuracy_multi_step": speculators_accuracy}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    steps, rows, length = 5, 4, 2048
    logits = torch.empty(steps, rows, length, args.vocab, dtype=getattr(torch, args.dtype), device=args.device)
    logits.uniform_()
    target = torch.randint(0, args.vocab, (rows, length), device=args.device)
    argmax = median_seconds(lambda: logits.argmax(dim=-1), args.device, min(args.repeats, 3))
    update = update_seconds(steps, rows, length, args)
    print(f"K={steps} B={rows} T={length} V={args.vocab} {args.dtype} on {args.device}, depth up to {2 * steps}")
    print(f"{'TTTAcceptance.update':45s} {update / argmax:8.4f} argmax passes ({1e3 * update:.1f} ms)")
    for name, call in others(logits, target).items():
        print(f"{name:45s} {median_seconds(call, args.device, 2) / argmax:8.4f} argmax passes")
    print("\ngrowth of one update (1.00 = linear)")
    for name, small, large in (
        ("T 2048 -> 8192", (5, 4, 2048), (5, 4, 8192)),
        ("B 4 -> 16", (5, 4, 2048), (5, 16, 2048)),
        ("K 5 -> 10, depth 10 -> 20", (5, 4, 2048), (10, 4, 2048)),
    ):
        factor = (large[0] * large[1] * large[2]) / (small[0] * small[1] * small[2])
        growth = update_seconds(*large, args) / update_seconds(*small, args)
        print(f"{name:30s} x{growth:.2f} for x{factor:.0f} data: {growth / factor:.2f}")


if __name__ == "__main__":
    main()
