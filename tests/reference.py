"""Slow plain-Python twins of every acceptance estimator: loops over tokens, nothing shared with the package."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

Spans = list[tuple[int, int, int]]


@dataclass
class SlowCounts:
    """Pooled counts over everything added; depth index 1..D, step index 0..K-1."""

    tokens: int = 0
    answers: int = 0
    step_valid: Counter = field(default_factory=Counter)
    step_hits: Counter = field(default_factory=Counter)
    prefix_hits: Counter = field(default_factory=Counter)
    prefix_valid: Counter = field(default_factory=Counter)
    accepted: Counter = field(default_factory=Counter)  # (depth, accepted drafts) -> rounds
    rounds_per_answer: dict = field(default_factory=dict)  # (depth, answer number) -> rounds

    def rounds(self, depth: int) -> int:
        """Rounds at one depth."""
        return sum(n for (d, _), n in self.accepted.items() if d == depth)

    def accept_length(self, depth: int) -> float:
        """Ratio of sums."""
        return self.tokens / self.rounds(depth)


def slow_hit(drafts, targets, row, anchor, last, step) -> bool:
    """Is the draft of ``step`` from ``anchor`` right, inside the span? Beyond the run steps: sliding anchor."""
    steps = len(drafts)
    if step >= steps:
        anchor, step = anchor + step - steps + 1, steps - 1
    position = anchor + 1 + step
    return position <= last and drafts[step][row][anchor] == targets[row][position]


def slow_counts(drafts, targets, spans: Spans, max_depth: int, counts: SlowCounts | None = None) -> SlowCounts:
    """Count one batch given as nested lists."""
    counts = counts or SlowCounts()
    steps = len(drafts)
    for row, first, last in spans:
        if first == last:
            continue
        answer = counts.answers
        counts.answers += 1
        counts.tokens += last - first
        for anchor in range(first, last):
            alive = True
            for k in range(steps):
                if anchor + 1 + k > last:
                    break
                hit = slow_hit(drafts, targets, row, anchor, last, k)
                counts.step_valid[k] += 1
                counts.step_hits[k] += hit
                counts.prefix_valid[k] += alive
                alive = alive and hit
                counts.prefix_hits[k] += alive
        for depth in range(1, max_depth + 1):
            t, rounds = first, 0
            while t < last:
                n = 0
                while n < depth and slow_hit(drafts, targets, row, t, last, n):
                    n += 1
                counts.accepted[depth, n] += 1
                rounds += 1
                t += n + 1
            counts.rounds_per_answer[depth, answer] = rounds
    return counts


def slow_expected_rounds(accept, spans: Spans, depth: int) -> tuple[float, list[float]]:
    """Expected rounds, and by number of accepted drafts, under rejection sampling; ``accept[k][row][anchor]``."""
    steps = len(accept)
    by_accepted = [0.0] * (depth + 1)
    for row, first, last in spans:
        if first == last:
            continue
        visits = [0.0] * (last + depth + 2)
        visits[first] = 1.0
        for t in range(first, last):
            alive = visits[t]
            for j in range(depth + 1):
                anchor, step = (t, j) if j < steps else (t + j - steps + 1, steps - 1)
                inside = j < depth and t + 1 + j <= last
                go_on = accept[step][row][anchor] if inside else 0.0
                visits[t + j + 1] += alive * (1 - go_on)
                by_accepted[j] += alive * (1 - go_on)
                alive *= go_on
    return sum(by_accepted), by_accepted
