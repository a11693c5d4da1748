"""What counting costs: one update of the metric against one argmax pass over the same logits, in one run.

    python benchmarks/acceptance.py [--device cuda] [--dtype bfloat16] [--vocab 32000 163840]

Every figure is a ratio of medians of the same process, so it carries over between machines better than milliseconds do.
On a GPU every update runs under `torch.cuda.set_sync_debug_mode("error")`: one that waited for the device would stop
the benchmark.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torchmetrics.classification import MulticlassAccuracy

from eagle_speedup.acceptance import TTTAcceptance

STEPS, ROWS, LENGTH = 5, 4, 2048
GOAL = 0.02


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


@contextmanager
def never_waiting(device: str) -> Iterator[None]:
    """Turn every wait for the GPU into an error."""
    if device != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def batch(steps: int, rows: int, length: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random drafts that hit about every second time; one answer a row after a short prompt."""
    target = torch.randint(0, 32000, (rows, length), device=device)
    future = torch.stack([target.roll(-1 - k, dims=1) for k in range(steps)])
    drafts = torch.where(torch.rand(future.shape, device=device) < 0.6, future, 0)
    spans = torch.tensor([(row, 16, length - 1) for row in range(rows)], device=device)
    return drafts, target, spans


def update_seconds(steps: int, rows: int, length: int, args: argparse.Namespace, mode: str = "greedy") -> float:
    """One update at max_depth 2 K."""
    metric = TTTAcceptance(steps, max_depth=2 * steps, mode=mode).to(args.device)
    inputs = batch(steps, rows, length, args.device)
    options = {"accept_prob": torch.rand(inputs[0].shape, device=args.device)} if mode == "rejection" else {}

    def guarded() -> None:
        with never_waiting(args.device):
            metric.update(*inputs, **options)

    return median_seconds(guarded, args.device, args.repeats)


def torchmetrics_accuracy(logits: torch.Tensor, target: torch.Tensor) -> Callable[[], Any]:
    """A plain accuracy of every step from the same logits."""
    accuracy = MulticlassAccuracy(logits.shape[-1], average="micro").to(logits.device)

    def call() -> None:
        for step in logits:
            accuracy.update(step.flatten(0, 1), target.flatten())

    return call


def speculators_accuracy(logits: torch.Tensor, counting_only: bool) -> Callable[[], Any] | None:
    """The accuracy part of speculators' ``eagle3.metrics.compute_metrics`` for every step, without its losses; None
    where speculators is not installed.

    It takes two argmax passes a step, over the drafter's and the verifier's logits. ``counting_only`` gives it the ids.
    """
    try:
        from speculators.models.eagle3.metrics import align_for_step
        from speculators.models.metrics import compute_accuracy_single_step
    except ImportError:
        return None
    flat = logits.flatten(1, 2)[:, None]  # [K, 1, B * T, V]: it knows packed sequences only
    target, mask = flat[0], torch.ones(1, flat.shape[2], dtype=torch.bool, device=logits.device)
    ids = flat.argmax(-1, keepdim=True)

    def call() -> None:
        right = mask.clone()
        for k in range(len(logits)):
            source, goal = (ids[k], ids[0]) if counting_only else (flat[k], target)
            source, goal, kept, before = align_for_step(source, goal, mask, right, k)
            pair = (source[..., 0], goal[..., 0]) if counting_only else (source.argmax(-1), goal.argmax(-1))
            compute_accuracy_single_step(*pair, kept, before)

    return call


def costs(vocab: int, args: argparse.Namespace) -> None:
    """Print the table of one vocabulary size."""
    shape = (STEPS, ROWS, LENGTH, vocab)
    logits = torch.empty(shape, dtype=getattr(torch, args.dtype), device=args.device).uniform_()
    target = torch.randint(0, vocab, (ROWS, LENGTH), device=args.device)
    argmax = median_seconds(lambda: logits.argmax(dim=-1), args.device, min(args.repeats, 3))
    print(f"K={STEPS} B={ROWS} T={LENGTH} V={vocab} {args.dtype} on {args.device}, depth up to {2 * STEPS}")
    print(f"{'one argmax pass over the logits':45s} {1:8.4f} ({1e3 * argmax:.1f} ms)")
    for mode in ("greedy", "rejection"):
        update = update_seconds(STEPS, ROWS, LENGTH, args, mode)
        note = f", goal at most {GOAL}" if mode == "greedy" else ""
        print(f"{f'TTTAcceptance.update, {mode}':45s} {update / argmax:8.4f} ({1e3 * update:.1f} ms{note})")
    others = {
        "speculators accuracy, counting alone": speculators_accuracy(logits, True),
        "speculators accuracy": speculators_accuracy(logits, False),
        "torchmetrics MulticlassAccuracy": torchmetrics_accuracy(logits, target),
    }
    for name, call in others.items():
        if call is None:
            print(f"{name:45s} not installed (pip install speculators)")
            continue
        seconds = median_seconds(call, args.device, 2)
        print(f"{name:45s} {seconds / argmax:8.4f} ({1e3 * seconds:.1f} ms)")


def growth(args: argparse.Namespace) -> None:
    """Print how one update grows with the batch."""
    print("\ngrowth of one update (1.00 = linear)")
    base = update_seconds(STEPS, ROWS, LENGTH, args)
    for name, large in (
        ("T 2048 -> 8192", (5, 4, 8192)),
        ("B 4 -> 16", (5, 16, 2048)),
        ("K 5 -> 10, depth 10 -> 20", (10, 4, 2048)),
    ):
        factor = large[0] * large[1] * large[2] / (STEPS * ROWS * LENGTH)
        grown = update_seconds(*large, args) / base
        print(f"{name:30s} x{grown:.2f} for x{factor:.0f} data: {grown / factor:.2f}")


def main() -> None:
    """Print the tables."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--dtype", default="bfloat16" if gpu else "float32")
    parser.add_argument("--vocab", type=int, nargs="+", default=[32000, 163840] if gpu else [32000])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    for vocab in args.vocab:
        costs(vocab, args)
    growth(args)
    if args.device != "cuda":
        print("\nGPU: not run here")


if __name__ == "__main__":
    main()
