"""Draft vocabularies in both stored forms, and mixes of validation sets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_speedup.acceptance import TTTAcceptance
from eagle_speedup.acceptance.mix import mix_profiles
from eagle_speedup.acceptance.vocabulary import absolute_d2t, to_verifier_ids
from eagle_speedup.errors import InputError

IDS = [0, 1, 2, 7, 8, 20]
OFFSETS = [0, 0, 0, 4, 4, 15]


def test_both_forms_by_hand():
    assert absolute_d2t(torch.tensor(IDS)).tolist() == IDS
    assert absolute_d2t(torch.tensor(OFFSETS)).tolist() == IDS
    drafted = torch.tensor([[3, -1], [5, 0]])
    assert to_verifier_ids(drafted, torch.tensor(IDS)).tolist() == [[7, -1], [20, 0]]


def test_ids_beyond_the_table_are_named():
    with pytest.raises(InputError, match="draft_ids = 6: must be below 6, the length of d2t"):
        to_verifier_ids(torch.tensor([0, 6]), torch.tensor(IDS))
    with pytest.raises(InputError, match=r"draft_ids.dtype = torch.float32: must be an integer type"):
        to_verifier_ids(torch.tensor([0.0]), torch.tensor(IDS))


@given(st.sets(st.integers(0, 300), min_size=40, max_size=200))
def test_detection(ids):
    table = torch.tensor(sorted(ids))
    offsets = table - torch.arange(len(ids))
    assert torch.equal(absolute_d2t(table, vocab_size=301), table)
    if offsets.unique().numel() < offsets.numel():  # two neighbours somewhere
        assert torch.equal(absolute_d2t(offsets, vocab_size=301), table)


@pytest.mark.parametrize(
    ("table", "options", "rule"),
    [
        ([3, 1, 1], {}, "neither an offset nor an absolute table"),
        (OFFSETS, {"form": "absolute"}, "two draft ids may not stand for one verifier id"),
        (IDS, {"form": "offset", "vocab_size": 21}, "must lie in [0, 21)"),
        (IDS, {"form": "relative"}, "must be one of offset, absolute"),
        ([], {}, "must be a non-empty int64 vector"),
    ],
)
def test_bad_tables(table, options, rule):
    with pytest.raises(InputError) as error:
        absolute_d2t(torch.tensor(table, dtype=torch.int64), **options)
    assert rule in str(error.value)


def profile(accept: int, rows: int = 8):
    """Rows whose every round at depth 3 accepts ``accept`` drafts, over 12 tokens: accept length accept + 1."""
    target = torch.arange(13).repeat(rows, 1)
    drafts = torch.stack([torch.roll(target, -1 - k, 1) if k < accept else target * 0 - 1 for k in range(3)])
    metric = TTTAcceptance(3)
    metric.update(drafts, target, torch.tensor([(row, 0, 12) for row in range(rows)]))
    return metric.compute()


def test_a_mix_is_the_harmonic_mean():
    sets = {"chat": profile(1), "code": profile(3)}
    mixed = mix_profiles(sets, {"chat": 1, "code": 1})
    assert [p.accept_length(3).value for p in sets.values()] == [2.0, 4.0]
    assert mixed.accept_length(3).value == pytest.approx(8 / 3)
    assert mixed.accept_length(3).value != 3.0
    assert mix_profiles(sets, {"chat": 3, "code": 1}).accept_length(3).value == pytest.approx(1 / (3 / 8 + 1 / 16))


def test_a_mix_does_not_depend_on_the_sizes_of_the_sets():
    small = mix_profiles({"chat": profile(1, rows=2), "code": profile(3, rows=30)}, {"chat": 1, "code": 1})
    assert small.accept_length(3).value == pytest.approx(8 / 3)


def test_bad_weights():
    with pytest.raises(InputError, match="must name the sets"):
        mix_profiles({"chat": profile(1)}, {"code": 1})
    with pytest.raises(InputError, match="must be a finite number above 0"):
        mix_profiles({"chat": profile(1)}, {"chat": 0})
    with pytest.raises(InputError, match="must be positive to be weighted"):
        mix_profiles({"chat": TTTAcceptance(3).compute()}, {"chat": 1})
