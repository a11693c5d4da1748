"""What torchmetrics, torch and a device ask of the metric."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eagle_speedup.acceptance import TTTAcceptance
from eagle_speedup.errors import InputError


def batch(seed: int, rows: int = 3, length: int = 40, steps: int = 3):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 3, (rows, length), generator=generator)
    drafts = torch.randint(0, 3, (steps, rows, length), generator=generator)
    spans = torch.tensor([(row, 2 + row, length - 1 - row) for row in range(rows)])
    return drafts, target, spans


class ForbidsSynchronisation(TorchDispatchMode):
    """Raises on every operator that would wait for a device or depend on values there."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "equal", "is_nonzero", "item")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.lstrip("_") in {f.lstrip("_") for f in self.forbidden}:
            raise AssertionError(f"{name} waits for the device")
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if name in ("index", "index_put", "index_put_"):
            indices = [i for i in (args[1] or []) if i is not None]
            assert not any(i.dtype == torch.bool for i in indices), "a mask index waits for the device"
        out = func(*args, **(kwargs or {}))
        for tensor in [*tensors, *(out if isinstance(out, list | tuple) else [out])]:
            assert not isinstance(tensor, torch.Tensor) or 50_000 not in tensor.shape, "a vocabulary axis"
        return out


@pytest.mark.parametrize("mode", ["greedy", "onehot", "rejection"])
@pytest.mark.parametrize("sequences", [None, 5])
def test_update_never_waits_for_the_device(mode, sequences):
    drafts, target, spans = batch(0)
    probabilities = {"accept_prob": torch.rand(drafts.shape)} if mode == "rejection" else {}
    metric = TTTAcceptance(
        3, max_depth=6, mode=mode, sequences=sequences, draft_vocab=torch.tensor([0, 1, 2, 49_998]), vocab_size=50_000
    )
    with ForbidsSynchronisation():
        metric.update(drafts, target, spans, sequence_index=torch.arange(3), verifier_ids=target, **probabilities)
    assert metric.compute().tokens == (37 + 35 + 33)


def test_the_guard_itself_can_fail():
    with ForbidsSynchronisation(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(3).sum().item()
    with ForbidsSynchronisation(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(3).nonzero()
    with ForbidsSynchronisation(), pytest.raises(AssertionError, match="mask index"):
        torch.ones(3)[torch.ones(3) > 0]


def test_pickle_clone_reset_and_state_dict():
    metric = TTTAcceptance(3, max_depth=5)
    metric.persistent(True)
    metric.update(*batch(0))
    expected = metric.counts()
    copies: list[Any] = [pickle.loads(pickle.dumps(metric)), metric.clone()]
    for copy in copies:
        assert copy.counts() == expected
        copy.update(*batch(1))
        assert copy.counts() != expected
    assert metric.counts() == expected
    other = TTTAcceptance(3, max_depth=5)
    other.load_state_dict(metric.state_dict())
    assert other.counts() == expected
    metric.reset()
    assert metric.counts().tokens.sum() == 0
    metric.update(*batch(0))
    assert metric.counts() == expected


def test_forward_gives_the_batch_value_and_adds_up():
    metric = TTTAcceptance(3)
    alone = TTTAcceptance(3)
    alone.update(*batch(1))
    metric.update(*batch(0))
    assert metric(*batch(1)).rounds == alone.compute().rounds
    alone.update(*batch(0))
    assert metric.compute().rounds == alone.compute().rounds


def test_inference_mode_and_autocast():
    metric = TTTAcceptance(3)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        metric.update(*batch(0))
    expected = TTTAcceptance(3)
    expected.update(*batch(0))
    assert metric.counts() == expected.counts()
    metric.half()  # a module in half precision must not touch the counts
    assert metric.counts() == expected.counts()


def test_rejection_sums_keep_float64_in_a_half_precision_module():
    metric = TTTAcceptance(1, mode="rejection")
    torch.nn.ModuleList([metric]).to(torch.bfloat16)
    ids = torch.zeros(1, 1, 9, dtype=torch.int64)
    metric.update(ids, ids[0], torch.tensor([[0, 0, 8]]), accept_prob=torch.full((1, 1, 9), 1 / 3))
    assert metric.sums.dtype == torch.float64


@pytest.mark.parametrize("mode", ["greedy", "rejection"])
def test_update_works_where_nothing_can_be_read(mode):
    """The meta device has shapes and no values: whatever asked for one would raise."""
    metric = TTTAcceptance(3, max_depth=6, mode=mode, draft_vocab=torch.arange(3), vocab_size=5).to("meta")
    assert metric.device.type == metric.sums.device.type == metric.in_draft_vocab.device.type == "meta"
    drafts, target, spans = (tensor.to("meta") for tensor in batch(0))
    probabilities = {"accept_prob": torch.rand(drafts.shape, device="meta")} if mode == "rejection" else {}
    metric.update(drafts, target, spans, verifier_ids=target, **probabilities)
    assert metric.sums.device.type == "meta"


def test_other_devices_report_illegal_spans_at_compute(monkeypatch):
    """On a device nothing may be read in update: spans are checked where they are, and told later."""
    metric = TTTAcceptance(3)
    monkeypatch.setattr("eagle_speedup.acceptance.metric.check_spans", lambda *_: None)  # as for spans on a device
    drafts, target, _ = batch(0)
    metric.update(drafts, target, torch.tensor([[0, 2, 40], [1, 2, 39]]))
    with pytest.raises(InputError, match="spans = '1 illegal': E must be below the sequence length"):
        metric.compute()


def test_each_sequence_counts_once():
    drafts, target, spans = batch(0)
    plain = TTTAcceptance(3, blocks=2)
    plain.update(drafts, target, spans, sequence_index=torch.tensor([4, 0, 3]))
    once = TTTAcceptance(3, blocks=2, sequences=5)
    once.update(drafts, target, spans, sequence_index=torch.tensor([4, 0, 3]))
    repeated = spans[:1].clone()
    once.update(drafts[:, :1], target[:1], repeated, sequence_index=torch.tensor([4]))
    assert once.counts() == plain.counts()
    plain.update(drafts[:, :1], target[:1], repeated, sequence_index=torch.tensor([4]))
    assert once.counts() != plain.counts()


def test_repeats_of_a_sequence_must_be_the_same_sequence():
    drafts, target, spans = batch(0)
    metric = TTTAcceptance(3, sequences=5)
    metric.update(drafts, target, spans, sequence_index=torch.tensor([4, 4, 3]))  # 37 and 35 tokens
    with pytest.raises(InputError, match="sequence_index = 4: must stand for one sequence"):
        metric.update(drafts, target, spans[:1], sequence_index=torch.tensor([1, 4, 2]))
        metric.compute()
    with pytest.raises(InputError, match="sequence_index = None: must say which sequences"):
        metric.update(drafts, target, spans)


def test_rows_are_numbered_on_through_forward():
    """``forward`` resets inside; without care every batch would land in the first blocks."""
    called, updated = TTTAcceptance(3, blocks=9), TTTAcceptance(3, blocks=9)
    for seed in range(3):
        called(*batch(seed))
        updated.update(*batch(seed))
    assert called.counts() == updated.counts()
    assert (called.counts().answers > 0).all()
    called.reset()
    called(*batch(0))
    assert called.counts().answers.tolist() == [1] * 3 + [0] * 6


@pytest.mark.filterwarnings("ignore:the verifier would not have written")
def test_off_policy_rate():
    drafts, target, spans = batch(0, rows=1)
    metric = TTTAcceptance(3)
    metric.update(drafts, target, spans)
    assert metric.compute().off_policy_rate is None
    other = target.clone()
    other[0, 2] += 1  # the first answer token is the prefill's: not compared
    other[0, 3] += 1
    other[0, 39] += 1
    metric.reset()
    metric.update(drafts, target, spans, verifier_ids=other)
    assert metric.compute().off_policy_rate == 2 / 37


def test_text_by_another_author_is_warned_about_with_the_rate():
    drafts, target, spans = batch(0, rows=1)
    other = target.clone()
    other[0, 3:10] += 1
    metric = TTTAcceptance(3)
    metric.update(drafts, target, spans, verifier_ids=other)
    with pytest.warns(UserWarning, match="the verifier would not have written 19% of the tokens"):
        metric.compute()
    sampled = TTTAcceptance(3, mode="onehot")  # sampled tokens differ from the argmax by nature
    sampled.update(drafts, target, spans, verifier_ids=other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sampled.compute().off_policy_rate == 7 / 37


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttt_steps": 0}, "ttt_steps = 0: must be a whole number of at least 1"),
        ({"max_depth": 2.5}, "max_depth = 2.5: must be a whole number of at least 1"),
        ({"mode": "sampling"}, "mode = 'sampling': must be one of greedy, onehot, rejection"),
        ({"vocab_size": -5}, "vocab_size = -5: must be a whole number of at least 1"),
        ({"level": 90}, "level = 90: must lie in (0, 1)"),
        ({"draft_vocab": torch.tensor([-1, 3])}, "draft_vocab = [-1, 3]: must hold at least one id, none negative"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError) as error:
        TTTAcceptance(**{"ttt_steps": 3, **options})
    assert str(error.value) == message
