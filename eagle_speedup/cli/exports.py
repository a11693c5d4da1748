"""Serving flags and accept-length tables for a drafter at its best depth."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..estimate import Estimate
from ..projection import project
from ..throughput import Calibration
from .inputs import Given
from .what_if import batch_rows, best_depths

__all__ = ["Export", "build_export"]

_NO_SPECULATION = "# do not speculate: no draft depth gains at this batch size"


@dataclass(frozen=True)
class Export:
    """What to serve with."""

    drafter: str
    depth: int
    """Draft tokens; 0 = do not speculate."""
    schedule: tuple[tuple[int, int, int], ...]
    """(lowest batch size, highest, draft tokens); empty without batch sizes."""
    lengths: tuple[Estimate, ...]
    """Accept length at depth 1, 2, .."""
    given_depth: int
    """TTT steps that were given: deeper lengths are extrapolated."""
    fingerprint: str
    """Of the calibration."""
    warnings: tuple[str, ...]
    """What the choice rests on, and where it lies outside what was measured."""

    def vllm_config(self) -> dict[str, Any] | None:
        """The value of ``--speculative-config``; None = serve without."""
        deepest = max([self.depth, *(depth for _, _, depth in self.schedule)])
        if deepest == 0:
            return None
        config: dict[str, Any] = {"method": "eagle3", "model": self.drafter, "num_speculative_tokens": deepest}
        if len({depth for _, _, depth in self.schedule}) > 1:
            config["num_speculative_tokens_per_batch_size"] = [list(row) for row in self.schedule]
        return config

    def vllm(self) -> str:
        """Flag for ``vllm serve``."""
        config = self.vllm_config()
        return _NO_SPECULATION if config is None else f"--speculative-config {shlex.quote(json.dumps(config))}"

    def sglang(self) -> str:
        """Flags for ``sglang.launch_server``: a chain."""
        if self.depth == 0:
            return _NO_SPECULATION
        return (
            f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {shlex.quote(self.drafter)} "
            f"--speculative-num-steps {self.depth} --speculative-eagle-topk 1 "
            f"--speculative-num-draft-tokens {self.depth + 1}"
        )

    def table(self) -> str:
        """CSV: depth, accept length with its interval, what its last draft adds, extrapolated (0 or 1)."""
        rows = ["depth,accept_length,lo,hi,accepted_at_last_position,extrapolated"]
        before = 1.0
        for index, length in enumerate(self.lengths):
            gain = max(0.0, length.value - before)
            beyond = int(index >= self.given_depth)
            rows.append(f"{index + 1},{length.value:.4f},{length.lo:.4f},{length.hi:.4f},{gain:.4f},{beyond}")
            before = length.value
        return "\n".join(rows)

    def as_dict(self) -> dict[str, Any]:
        """All of it."""
        return {
            "depth": self.depth,
            "vllm": {"speculative_config": self.vllm_config(), "flag": self.vllm()},
            "sglang": {"flags": self.sglang()},
            "schedule": self.schedule,
            "accept_length": {str(index + 1): length for index, length in enumerate(self.lengths)},
            "accept_length_extrapolated_beyond": self.given_depth,
            "fingerprint": self.fingerprint,
            "warnings": self.warnings,
        }


def build_export(
    given: Given,
    calibration: Calibration,
    *,
    drafter: str,
    depth: int | None = None,
    batch: int = 1,
    context_tokens: float | None = None,
    batches: Sequence[int] = (),
) -> Export:
    """Export for the best depth at ``batch``, or for ``depth``."""
    ends = None
    if depth is None:
        projection = project(given.lengths, calibration, batch=batch, context_tokens=context_tokens)
        depth, ends = projection.best_depth, best_depths(given, calibration, projection)
    else:
        given.lengths.accept_length(depth)  # refuses a depth out of range
    rows = batch_rows(given, calibration, sorted(set(batches)), context_tokens)
    lengths = tuple(given.lengths.accept_length(d) for d in range(1, max(depth, given.table_depth) + 1))
    schedule = _schedule([(row.batch, row.best_depth) for row in rows])
    model = calibration.model
    warnings = [*given.warnings, *([] if ends is None else [f"depth {ends}"]), *calibration.caveats]
    warnings += model.range_warnings(max(depth, 1), batch, context_tokens)
    warnings += [warning for row in rows for warning in row.warnings]
    steps = given.lengths.ttt_steps
    if depth > steps:
        warnings.append(f"depth {depth} is extrapolated: beyond the {steps} TTT steps that were given")
    unique = tuple(dict.fromkeys(warnings))
    return Export(drafter, depth, schedule, lengths, steps, calibration.fingerprint, unique)


def _schedule(best: Sequence[tuple[int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Ranges of batch sizes around the given ones, split half-way, neighbours of one depth merged."""
    ranges: list[tuple[int, int, int]] = []
    for index, (batch, depth) in enumerate(best):
        low = ranges[-1][1] + 1 if ranges else 1
        high = (batch + best[index + 1][0]) // 2 if index + 1 < len(best) else batch
        if ranges and ranges[-1][2] == depth:
            ranges[-1] = (ranges[-1][0], high, depth)
        elif high >= low:
            ranges.append((low, high, depth))
    return tuple(ranges)
