"""Masks, packed documents and chat turns become spans."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_speedup.acceptance.spans import spans_from_cu_seqlens, spans_from_mask, spans_from_turns
from eagle_speedup.errors import InputError

# Tokens:      p p A A A p A A     answers at 2..4 and 6..7
INPUT = [[0, 0, 1, 1, 1, 0, 1, 1]]
TARGET = [[0, 1, 1, 1, 0, 1, 1, 0]]
SLOT = [[0, 1, 1, 0, 0, 1, 0, 0]]  # anchors 2, 3 and 6 sit at slots 1, 2 and 5
EXPECTED = [[0, 2, 4], [0, 6, 7]]


@pytest.mark.parametrize(("mask", "mask_on"), [(INPUT, "input"), (TARGET, "target"), (SLOT, "slot")])
def test_one_text_three_masks(mask, mask_on):
    assert spans_from_mask(torch.tensor(mask), mask_on=mask_on).tolist() == EXPECTED


def test_the_wrong_convention_gives_other_spans():
    mask = torch.tensor(TARGET)
    assert spans_from_mask(mask, mask_on="input").tolist() == [[0, 1, 3], [0, 5, 6]]
    with pytest.raises(InputError, match="mask_on = 'label': must be one of input, target, slot"):
        spans_from_mask(mask, mask_on="label")


def test_a_bit_whose_token_lies_beyond_the_row_is_no_answer():
    assert spans_from_mask(torch.tensor([[0, 1, 1, 1]]), mask_on="target").tolist() == [[0, 2, 3]]
    assert spans_from_mask(torch.tensor([[0, 0, 0, 1]]), mask_on="target").tolist() == []


def test_packed_documents_are_cut():
    mask = torch.ones(1, 6, dtype=torch.bool)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]])
    assert spans_from_mask(mask, mask_on="input", document_ids=documents).tolist() == [[0, 0, 2], [0, 3, 5]]
    assert spans_from_mask(mask, mask_on="target", document_ids=documents).tolist() == [[0, 1, 2], [0, 3, 5]]


def test_cu_seqlens():
    assert spans_from_cu_seqlens([0, 5, 8, 12], [2, 3, 1]).tolist() == [[0, 2, 4], [0, 9, 11]]
    with pytest.raises(InputError, match=r"prompt_lengths\[0\] = 6: must lie in \[0, 5\]"):
        spans_from_cu_seqlens([0, 5], [6])
    with pytest.raises(InputError, match="cu_seqlens"):
        spans_from_cu_seqlens([0, 5, 3], [1, 1])
    with pytest.raises(InputError, match="must hold 1 lengths"):
        spans_from_cu_seqlens([0, 5], [])


def test_turns():
    chat = [("system", 4), ("user", 3), ("header", 2), ("assistant", 5), ("user", 2), ("header", 2), ("assistant", 1)]
    assert spans_from_turns([chat, [("user", 3)]]).tolist() == [[0, 9, 13], [0, 18, 18]]


@given(st.lists(st.booleans(), min_size=3, max_size=30))
def test_masks_round_trip(bits):
    """Every convention finds the runs of an input mask that it can express."""
    mask = torch.tensor([bits])
    runs = spans_from_mask(mask, mask_on="input").tolist()
    rebuilt = torch.zeros_like(mask)
    for _, first, last in runs:
        rebuilt[0, first : last + 1] = True
    assert torch.equal(rebuilt, mask)
    shifted = torch.cat([mask[:, 1:], torch.zeros(1, 1, dtype=torch.bool)], dim=1)
    expected = [[r, max(p, 1), e] for r, p, e in runs if e >= 1]
    assert spans_from_mask(shifted, mask_on="target").tolist() == expected
