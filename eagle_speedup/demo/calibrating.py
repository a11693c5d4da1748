"""Calibration of this machine, from real decoding with an early checkpoint."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import date

import torch

from ..throughput import Calibration, MeasuredPoint, Source
from ..throughput.rounds import Prior
from .machine import Machine
from .measure import Served, total

__all__ = ["NAME", "machine_calibration", "measured_points", "spread_out"]

NAME = "this_machine"
_SOURCE = "early_checkpoint"
# One machine, one workload, rounds timed alone: there is no time outside of decoding, and little scatter to expect.
_PRIOR = Prior(outside_share=1e-6, noise=0.015)


def spread_out(count: int, lengths: Sequence[int]) -> list[int]:
    """``count`` indices whose lengths stand for all of them: every so-manieth in order of length."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    count = min(count, len(order))
    return [order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)]


def measured_points(
    served: Sequence[Served], depths: Sequence[int], groups: Sequence[Sequence[int]]
) -> list[MeasuredPoint]:
    """One point per depth and group of answers, so that the fit sees how much they scatter.

    ``step_ms`` is the time of a round: what it does not hold (prefill) is in no figure of the demo.
    """
    points = []
    for depth in depths:
        for answers in groups:
            sums = total(served, depth, answers)
            length = sums.accept_length if depth else None
            points.append(MeasuredPoint(depth, sums.tok_s, length, step_ms=sums.round_ms, source=_SOURCE))
    return points


def machine_calibration(points: Sequence[MeasuredPoint], verifier: str, machine: Machine) -> Calibration:
    """The calibration ``this_machine``.

    Args:
        points: of `measured_points`.
        verifier: its name.
        machine: threads and kernels go into the description.
    """
    processor = f"{platform.machine()} CPU, {machine.decode_threads} thread{'s' if machine.decode_threads > 1 else ''}"
    return Calibration(
        name=NAME,
        title=f"This machine ({processor}), {verifier}, batch 1",
        node=processor,
        verifier=verifier,
        engine=f"eagle_speedup reference decoder, {machine.kernels[0]} kernels",
        engine_version=f"torch {torch.__version__}",
        draft_sampling="greedy",
        points=tuple(points),
        prior=_PRIOR,
        sources=(
            Source(
                _SOURCE,
                "decode rounds timed on an early checkpoint of the run, prefill excluded",
                "measured",
                date.today().isoformat(),
            ),
        ),
    )
