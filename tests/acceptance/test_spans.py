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


def test_a_slot_mask_never_reaches_into_the_next_document():
    # Anchors are all tokens but the first; the last of a document has nothing to draft there.
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    every_slot = torch.ones(1, 7, dtype=torch.bool)
    assert spans_from_mask(every_slot, mask_on="slot", document_ids=documents).tolist() == [[0, 1, 2], [0, 3, 6]]
    one_answer = torch.tensor([[0, 1, 0, 0, 0, 0, 0]])  # slot 1: anchor 2, the last of its document
    assert spans_from_mask(one_answer, mask_on="slot", document_ids=documents).tolist() == [[0, 2, 2]]
    assert spans_from_mask(one_answer, mask_on="slot").tolist() == [[0, 2, 3]]


def test_what_is_no_mask_is_named():
    labels = torch.tensor([[-100, -100, 5, 7]])
    with pytest.raises(InputError, match="mask = -100: must hold 0 and 1 only"):
        spans_from_mask(labels, mask_on="target")
    with pytest.raises(InputError, match=r"mask = 0.5: must hold 0 and 1 only"):
        spans_from_mask(torch.tensor([[0.0, 0.5, 1.0]]), mask_on="input")
    assert spans_from_mask(torch.tensor([[0.0, 1.0, 1.0]]), mask_on="input").tolist() == [[0, 1, 2]]
    with pytest.raises(InputError, match=r"document_ids.dtype = torch.float32: must be an integer type"):
        spans_from_mask(labels > 0, mask_on="input", document_ids=labels.float())
    with pytest.raises(InputError, match=r"document_ids.shape = \(1, 3\): must be \[1, 4\], as the mask"):
        spans_from_mask(labels > 0, mask_on="input", document_ids=labels[:, 1:])
    with pytest.raises(InputError, match=r"mask.shape = \(4,\): must be \[B, T\]"):
        spans_from_mask(labels[0] > 0, mask_on="input")


@pytest.mark.parametrize(
    ("mask", "options", "message"),
    [
        (None, {}, "mask = 'NoneType': must be a tensor [B, T]"),
        ([[0, 1]], {}, "mask = 'list': must be a tensor [B, T]"),
        (None, {"mask_on": ["input"]}, "mask_on = ['input']: must be one of input, target, slot"),
        (torch.tensor([[0, 1]]), {"document_ids": [[0, 0]]}, "document_ids = 'list': must be a tensor [B, T]"),
    ],
)
def test_what_is_no_tensor_is_named(mask, options, message):
    with pytest.raises(InputError) as error:
        spans_from_mask(mask, **{"mask_on": "input", **options})
    assert str(error.value) == message


TURN = "must be a turn (role, number of tokens); rows holds a list of turns for each row"
LISTS = "must be a list; rows holds a list of turns for each row"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("user", 5), ("assistant", 3)], f"rows[0][0] = 'user': {TURN}"),
        ([("me", 5)], f"rows[0][0] = 'me': {TURN}"),  # of two letters, which could be taken for a pair
        ([[("user", 5, 0)]], f"rows[0][0] = ('user', 5, 0): {TURN}"),
        ([[("user", 5)], [("assistant",)]], f"rows[1][0] = ('assistant',): {TURN}"),
        ([[{"role": "user", "tokens": 5}]], f"rows[0][0] = {{'role': 'user', 'tokens': 5}}: {TURN}"),
        ([[5]], f"rows[0][0] = 5: {TURN}"),
        ([5], f"rows[0] = 5: {LISTS}"),
        (["user"], f"rows[0] = 'user': {LISTS}"),
        (None, f"rows = None: {LISTS}"),
    ],
)
def test_what_are_no_turns_is_named(rows, message):
    with pytest.raises(InputError) as error:
        spans_from_turns(rows)
    assert str(error.value) == message


def test_what_is_no_list_of_lengths_is_named():
    for values in (None, "0, 5", [[0], [1, 2]], [0, None]):
        with pytest.raises(InputError, match=r"cu_seqlens = .*: must be a list of whole numbers") as error:
            spans_from_cu_seqlens(values, [1])  # type: ignore[arg-type]
        assert repr(values) in str(error.value)


def test_lengths_are_whole_numbers():
    with pytest.raises(InputError, match=r"cu_seqlens = \[0.0, 2.5\]: must be a list of whole numbers"):
        spans_from_cu_seqlens([0, 2.5], [1])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"prompt_lengths = \[\[1\]\]: must be a list of whole numbers"):
        spans_from_cu_seqlens([0, 2], torch.tensor([[1]]))
    with pytest.raises(InputError, match=r"rows\[0\]\[1\] = \('assistant', 2.5\): must have a whole length"):
        spans_from_turns([[("user", 3), ("assistant", 2.5)]])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"rows\[0\]\[0\] = \('user', -1\): must have a whole length of at least 0"):
        spans_from_turns([[("user", -1)]])
    assert spans_from_cu_seqlens([0], []).shape == (0, 3)


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
