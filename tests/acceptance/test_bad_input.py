"""Bad input gets one line with the field, its value and the rule; on an accelerator it waits for ``compute``."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from eagle_speedup.acceptance import TTTAcceptance, checks
from eagle_speedup.errors import InputError

TARGET = torch.arange(10).repeat(2, 1)


def good(**changes) -> dict[str, Any]:
    drafts = torch.stack([TARGET.roll(-1, 1), TARGET.roll(-2, 1)])
    spans = torch.tensor([[0, 2, 8], [1, 4, 9]])
    return {"draft_ids": drafts, "target_ids": TARGET, "spans": spans, **changes}


def changed(tensor, place, value):
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


INDEX = torch.tensor([0, 1])
SHAPES = [
    ({"draft_ids": good()["draft_ids"].tolist()}, "draft_ids = 'list': must be a tensor [K, B, T]"),
    ({"spans": None}, "spans = None: must be a tensor [S, 3]"),
    ({"target_ids": TARGET.numpy()}, "target_ids = 'ndarray': must be a tensor [B, T]"),
    ({"sequence_index": INDEX.double()}, "sequence_index.dtype = torch.float64: must be an integer type"),
    ({"verifier_ids": TARGET.float()}, "verifier_ids.dtype = torch.float32: must be an integer type"),
    ({"spans": good()["spans"].bool()}, "spans.dtype = torch.bool: must be an integer type"),
    ({"verifier_ids": TARGET[:, :-1]}, "verifier_ids.shape = (2, 9): must be [B, T] = [2, 10]"),
    ({"draft_ids": good()["draft_ids"].transpose(0, 1)[:1]}, "draft_ids.shape = (1, 2, 10): must be [K, B, T]"),
    ({"draft_ids": good()["draft_ids"].to("meta")}, "draft_ids.device = device(type='meta'): must be cpu"),
    ({"target_ids": TARGET[:0], "draft_ids": good()["draft_ids"][:, :0]}, "spans = '2 rows': must be none where"),
]


@pytest.mark.parametrize(("change", "message"), SHAPES)
def test_shapes_and_types(change, message):
    with pytest.raises(InputError) as error:
        TTTAcceptance(2).update(**good(**change))
    assert str(error.value).startswith(message)


VALUES = [
    ({"target_ids": changed(TARGET, (0, 5), -100)}, "target_ids[0, 5] = -100: must be ids of the vocabulary inside"),
    ({"target_ids": changed(TARGET, (1, 9), 10)}, "target_ids[1, 9] = 10: must be ids of the vocabulary"),
    ({"draft_ids": changed(good()["draft_ids"], (1, 0, 3), 10)}, "draft_ids[1, 0, 3] = 10: must be -1 or ids"),
    ({"sequence_index": torch.tensor([0, -1])}, "sequence_index[1] = -1: must be at least 0"),
    ({"sequence_index": torch.tensor([9, 3])}, "sequence_index[0] = 9: must be at least 0, and below sequences"),
]


@pytest.mark.parametrize(("change", "message"), VALUES)
def test_values(change, message, monkeypatch):
    options: Any = {"vocab_size": 10, "sequences": 9}
    arguments = {"sequence_index": INDEX, **good(**change)}
    metric = TTTAcceptance(2, **options)
    with pytest.raises(InputError) as error:
        metric.update(**arguments)
    assert str(error.value).startswith(message)
    assert not metric.sums.any(), "nothing of a refused batch is counted"
    # As on an accelerator: nothing may be read in update, compute tells.
    monkeypatch.setattr("eagle_speedup.acceptance.metric.count_broken", lambda name, values, broken: broken.sum())
    metric.update(**arguments)
    field = message.partition("[")[0]
    with pytest.raises(InputError, match=rf"{field} = '1 illegal': ") as error:
        metric.compute()
    assert error.value.rule == checks.VALUE_RULES[field]


@pytest.mark.parametrize("value", [math.nan, -0.25, 1.5])
def test_probabilities(value):
    probabilities = torch.full((2, 2, 10), 0.5)
    metric = TTTAcceptance(2, mode="rejection")
    metric.update(**good(accept_prob=changed(probabilities, (0, 0, 0), value)))  # no anchor of an answer
    with pytest.raises(InputError, match=r"accept_prob\[0, 0, 2\] = .*: must lie in \[0, 1\]"):
        metric.update(**good(accept_prob=changed(probabilities, (0, 0, 2), value)))
    with pytest.raises(InputError, match=r"accept_prob.dtype = torch.int64: must be a floating-point type"):
        metric.update(**good(accept_prob=probabilities.long()))


def test_no_draft_is_no_hit_even_where_the_text_has_a_placeholder():
    """-1 drafted where the label is -1 would count as right."""
    none = torch.full((2, 2, 10), -1)
    with pytest.raises(InputError, match=r"target_ids\[0, 3\] = -1"):
        TTTAcceptance(2).update(**good(draft_ids=none, target_ids=changed(TARGET, (0, 3), -1)))
    metric = TTTAcceptance(2)
    metric.update(
        **good(draft_ids=none, target_ids=changed(TARGET, (0, slice(0, 2)), -100))
    )  # the prompt may be masked
    assert metric.compute().rounds == (11, 11)


def test_drafts_that_were_not_mapped_are_noticed():
    vocabulary = torch.tensor([3, 4, 5, 6, 7, 8, 9, 20])
    drafted = torch.searchsorted(vocabulary, good()["draft_ids"].clamp(3, 9))  # ids of the draft vocabulary, 0..6
    with pytest.raises(InputError, match=r"draft_ids\[0, 0, 2\] = 0: .*not mapped by d2t"):
        TTTAcceptance(2, draft_vocab=vocabulary).update(**good(draft_ids=drafted))
    TTTAcceptance(2, draft_vocab=vocabulary).update(**good(draft_ids=vocabulary[drafted]))


def test_narrow_integers_count_the_same():
    wide, narrow = TTTAcceptance(2), TTTAcceptance(2)
    wide.update(**good(sequence_index=INDEX))
    narrow.update(**{name: tensor.int() for name, tensor in good(sequence_index=INDEX).items()})
    assert narrow.counts() == wide.counts()
