"""Draft vocabularies in both stored forms, and mixes of validation sets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_speedup.acceptance import TTTAcceptance
from eagle_speedup.acceptance.mix import mix_profiles
from eagle_speedup.acceptance.vocabulary import absolute_d2t, check_absolute, to_verifier_ids
from eagle_speedup.errors import InputError
from tests.acceptance.test_metric_contract import ForbidsSynchronisation

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
        ([3, 1, 1], {}, "d2t = [3, 1, 1]: falls, as no table of rising ids does in either form; state form"),
        ([50, 6, 88, 0], {}, "d2t = [50, 6, 88, 0]: falls, as no table of rising ids"),  # 50, 7, 90, 3 as offsets
        (OFFSETS, {"form": "absolute"}, "d2t = [0, 0, 0, 4, 4, 15]: must give distinct verifier ids in [0, V) under"),
        (IDS, {"form": "offset", "vocab_size": 21}, "d2t = 'up to 25': must give distinct verifier ids in [0, 21) und"),
        ([-3, 0, 1], {}, "d2t = 'from -3 to 1': must give distinct verifier ids in [0, V) under form 'absolute'"),
        (IDS, {"form": "relative"}, "form = 'relative': must be one of offset, absolute"),
        ([], {}, "d2t = ((0,), torch.int64): must be a non-empty int64 vector"),
    ],
)
def test_bad_tables(table, options, rule):
    with pytest.raises(InputError) as error:
        absolute_d2t(torch.tensor(table, dtype=torch.int64), **options)
    assert str(error.value).startswith(rule)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (IDS, "d2t = 'list': must be a non-empty int64 vector, a tensor"),
        (torch.tensor(IDS) > 0, "d2t = ((6,), torch.bool): must be a non-empty int64 vector"),
        (torch.tensor([IDS]), "d2t = ((1, 6), torch.int64): must be a non-empty int64 vector"),
        (torch.tensor(IDS).float(), "d2t = ((6,), torch.float32): must be a non-empty int64 vector"),
    ],
)
def test_what_is_no_table_is_named(table, message):
    for function in (absolute_d2t, lambda d2t: to_verifier_ids(torch.tensor([0]), d2t)):
        with pytest.raises(InputError) as error:
            function(table)
        assert str(error.value) == message


def test_ids_in_order_of_frequency_need_their_form():
    ids = [50, 7, 90, 3]
    offsets = torch.tensor(ids) - torch.arange(4)
    assert absolute_d2t(offsets, form="offset").tolist() == ids
    assert absolute_d2t(torch.tensor(ids), form="absolute").tolist() == ids
    with pytest.raises(InputError, match="state form"):
        absolute_d2t(torch.tensor(ids))


def test_every_integer_type_is_mapped():
    for dtype in (torch.int8, torch.int16, torch.int32, torch.uint8):
        got = to_verifier_ids(torch.tensor([3, 0, 1], dtype=dtype), torch.tensor(IDS, dtype=dtype))
        assert got.tolist() == [7, 0, 1] and got.dtype == torch.int64
    with pytest.raises(InputError, match="draft_ids = 'list': must be a tensor of ids"):
        to_verifier_ids([0, 1], torch.tensor(IDS))  # type: ignore[arg-type]


def test_offsets_do_not_pass_for_ids():
    with pytest.raises(
        InputError, match=r"d2t = \[0, 0, 0, 4, 4, 15\]: must be absolute ids, see absolute_d2t: each once"
    ):
        to_verifier_ids(torch.tensor([0]), torch.tensor(OFFSETS))


def test_a_table_is_read_once_but_again_when_it_changed():
    table = absolute_d2t(torch.tensor(IDS))
    with ForbidsSynchronisation():
        check_absolute(table)
        check_absolute(table, 21)
    with pytest.raises(InputError, match=r"d2t = 'up to 20': must be absolute ids, .* in \[0, 20\)"):
        check_absolute(table, 20)
    table[1] = 0
    with pytest.raises(InputError, match=r"d2t = \[0, 0, 2, 7, 8, 20\]: must be absolute ids"):
        check_absolute(table, 21)
    with torch.inference_mode():
        made = torch.tensor(IDS)
    check_absolute(made)
    with ForbidsSynchronisation():
        check_absolute(made)


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


def test_a_mix_keeps_the_number_of_tokens():
    sets = {f"set{i}": profile(1 + i % 3, rows=2 + 5 * i) for i in range(5)}
    for weights in ([3, 1, 1, 1, 1], [0.1, 0.2, 0.3, 0.7, 1.1], [1 / 3, 5, 2, 9, 7]):
        mixed = mix_profiles(sets, dict(zip(sets, weights, strict=True)))
        assert mixed.tokens == sum(p.tokens for p in sets.values())
        again = mix_profiles({"mix": mixed, "chat": profile(1)}, {"mix": 0.3, "chat": 0.7})
        assert again.tokens == mixed.tokens + profile(1).tokens


def test_bad_weights():
    with pytest.raises(InputError, match="must name the sets"):
        mix_profiles({"chat": profile(1)}, {"code": 1})
    with pytest.raises(InputError, match="must be a finite number above 0"):
        mix_profiles({"chat": profile(1)}, {"chat": 0})
    with pytest.raises(InputError, match="must be positive to be weighted"):
        mix_profiles({"chat": TTTAcceptance(3).compute()}, {"chat": 1})
