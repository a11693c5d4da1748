"""The metric equals the slow reference, whatever the layout."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_speedup.acceptance import AcceptanceProfile, TTTAcceptance
from tests.reference import SlowCounts, slow_counts


@st.composite
def batches(draw):
    """A random batch: few token values, so that hits are frequent, and up to three spans a row."""
    steps = draw(st.integers(1, 4))
    rows = draw(st.integers(1, 3))
    length = draw(st.integers(1, 24))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    vocabulary = draw(st.integers(1, 4))
    targets = torch.randint(0, vocabulary, (rows, length), generator=generator)
    drafts = torch.randint(-1, vocabulary, (steps, rows, length), generator=generator)
    spans = []
    for row in range(rows):
        cuts = sorted(draw(st.sets(st.integers(0, length - 1), max_size=6)))
        spans += [(row, a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
        if len(cuts) % 2:
            spans.append((row, cuts[-1], cuts[-1]))  # one token: counts nothing
    return drafts, targets, draw(st.permutations(spans))


def assert_equal(profile: AcceptanceProfile, slow: SlowCounts) -> None:
    counts = profile.counts
    assert (profile.tokens, profile.answers) == (slow.tokens, slow.answers)
    for k in range(counts.ttt_steps):
        for name in ("step_valid", "step_hits", "prefix_hits", "prefix_valid"):
            assert getattr(counts, name)[:, k].sum() == getattr(slow, name)[k], (name, k)
    for depth in range(1, counts.max_depth + 1):
        assert profile.accepted_histogram(depth) == tuple(slow.accepted[depth, j] for j in range(depth + 1))
        assert profile.rounds[depth - 1] == slow.rounds(depth)


@settings(max_examples=300, deadline=None)
@given(st.lists(batches(), min_size=1, max_size=1), st.integers(1, 7))
def test_one_batch(parts, max_depth):
    drafts, targets, spans = parts[0]
    metric = TTTAcceptance(drafts.shape[0], max_depth=max_depth, blocks=3)
    metric.update(drafts, targets, torch.tensor(spans, dtype=torch.int64).view(-1, 3))
    assert_equal(metric.compute(), slow_counts(drafts.tolist(), targets.tolist(), spans, max_depth))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_batches_add_up(data):
    slow = SlowCounts()
    metric: TTTAcceptance | None = None
    for drafts, targets, spans in data.draw(st.lists(batches(), min_size=2, max_size=4)):
        if metric is None:
            metric = TTTAcceptance(drafts.shape[0], max_depth=6)
        if drafts.shape[0] != metric.ttt_steps:
            continue
        metric.update(drafts, targets, torch.tensor(spans, dtype=torch.int64).view(-1, 3))
        slow = slow_counts(drafts.tolist(), targets.tolist(), spans, 6, slow)
    assert metric is not None
    assert_equal(metric.compute(), slow)
