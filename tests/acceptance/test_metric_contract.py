"""What torchmetrics, torch and a device ask of the metric."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics import MetricCollection

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


@pytest.mark.parametrize("named", [False, True])
def test_pickle_clone_reset_and_state_dict(named):
    first, second = ({"sequence_index": torch.arange(3) + i} if named else {} for i in (0, 3))
    metric = TTTAcceptance(3, max_depth=5)
    metric.persistent(True)
    metric.update(*batch(0), **first)
    expected = metric.counts()
    copies: list[Any] = [pickle.loads(pickle.dumps(metric)), metric.clone()]
    for copy in copies:
        assert copy.counts() == expected
        copy.update(*batch(1), **second)
        assert copy.counts() != expected
    assert metric.counts() == expected
    other = TTTAcceptance(3, max_depth=5)
    other.load_state_dict(metric.state_dict())
    assert other.counts() == expected
    other.merge_state(metric)
    assert (other.counts() == expected) is named, "only named sequences are known to be the same ones"
    metric.reset()
    assert metric.counts().tokens.sum() == 0
    metric.update(*batch(0), **first)
    assert metric.counts() == expected


@pytest.mark.parametrize("named", [False, True])
def test_forward_gives_the_batch_value_and_adds_up(named):
    first, second = ({"sequence_index": torch.arange(3) + i} if named else {} for i in (0, 3))
    metric = TTTAcceptance(3)
    alone = TTTAcceptance(3)
    alone.update(*batch(1), **second)
    metric.update(*batch(0), **first)
    assert metric(*batch(1), **second).rounds == alone.compute().rounds
    alone.update(*batch(0), **first)
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


def test_a_compiled_module_compiles_once():
    """Counting stays outside of its graphs, whatever torchmetrics and the running number change at every batch."""
    frames: list[Any] = []

    def backend(graph, inputs):
        frames.append(graph)
        return graph.forward

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.metric = TTTAcceptance(3)

        def forward(self, drafts, target, spans):
            self.metric.update(drafts * 1, target, spans)
            return target + 1

    module, expected = Module(), TTTAcceptance(3)
    compiled = torch.compile(module, backend=backend)
    for seed in range(5):
        compiled(*batch(seed))
        expected.update(*batch(seed))
        if seed == 0:
            once = len(frames)
    assert 0 < once == len(frames)
    assert module.metric.counts() == expected.counts()


@pytest.mark.parametrize("options", [{}, {"sequences": 9}])
def test_a_batch_that_forward_refuses_leaves_the_counts(options):
    drafts, target, spans = batch(0)
    metric = TTTAcceptance(3, blocks=9, **options)
    named = {"sequence_index": torch.arange(3)} if options else {}
    metric(drafts, target, spans, **named)
    before = metric.counts()
    with pytest.raises(InputError, match="must satisfy 0 <= P <= E"):
        metric(drafts, target, torch.tensor([[0, 5, 3]]), **named)
    with pytest.raises(InputError, match="must satisfy 0 <= P <= E"):
        metric.update(drafts, target, torch.tensor([[0, 5, 3]]), **named)
    assert metric.counts() == before
    if not options:
        metric(drafts, target, spans)
        assert metric.counts().answers.tolist() == [1] * 6 + [0] * 3, "refused rows were not numbered either"


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"ttt_steps": 2}, "ttt_steps = 2"),
        ({"max_depth": 4}, "max_depth = 4"),
        ({"blocks": 8}, "blocks = 8"),
        ({"mode": "rejection"}, "mode = 'rejection'"),
        ({"sequences": 3}, "sequences = 3"),
        ({"vocab_size": 10}, "vocab_size = 10"),
        ({"draft_vocab": torch.tensor([1, 2])}, "draft_vocab = 'another'"),
    ],
)
def test_counts_of_other_settings_are_refused(other, named):
    options: dict[str, Any] = {"ttt_steps": 3, "max_depth": 5}
    counted, metric = TTTAcceptance(**options), TTTAcceptance(**{**options, **other})
    counted.update(*batch(0))
    counted.persistent(True)
    with pytest.raises(InputError, match=f"{named}: must be what the counts of the state were made with"):
        metric.load_state_dict(counted.state_dict())
    with pytest.raises(InputError, match=f"{named}: must be"):
        metric.merge_state(counted)
    assert not metric.sums.any()


def test_a_loaded_state_numbers_its_rows_on():
    counted, loaded, whole = (TTTAcceptance(3, blocks=9) for _ in range(3))
    counted.persistent(True)
    counted.update(*batch(0))
    loaded.load_state_dict(counted.state_dict())
    loaded.update(*batch(1))
    for seed in range(2):
        whole.update(*batch(seed))
    assert loaded.counts() == whole.counts()


def test_a_collection_keeps_metrics_of_other_settings_apart():
    """Its compute groups share the states of metrics whose first batch counted alike."""
    vocab = torch.tensor([0, 1])
    collection = MetricCollection({"any": TTTAcceptance(1), "some": TTTAcceptance(1, draft_vocab=vocab)})
    spans = torch.tensor([[0, 0, 9]])
    for target in (torch.zeros(1, 10).long(), torch.arange(10)[None]):
        collection.update(target[None] * 0, target, spans)
    profiles = collection.compute()
    assert profiles["any"].draft_vocab_coverage is None
    assert profiles["some"].draft_vocab_coverage == pytest.approx((9 + 1) / 18)


@pytest.mark.parametrize("named", [False, True])
def test_inference_mode_may_begin_and_end_anywhere(named):
    metric, expected = TTTAcceptance(3), TTTAcceptance(3)
    index = {"sequence_index": torch.arange(3)} if named else {}
    with torch.inference_mode():
        metric.update(*batch(5), **index)
        metric.reset()
    metric.update(*batch(0), **index)
    with torch.inference_mode():
        metric(*batch(0), **index)
    metric.update(*batch(0), **index)
    for _ in range(3):
        expected.update(*batch(0), **index)
    assert metric.counts() == expected.counts()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_every_integer_type_counts_alike(dtype):
    text = torch.arange(60)[None]
    drafts, spans, index = text[None] + 1, torch.tensor([[0, 23, 49]]), torch.tensor([3])
    vocab = torch.arange(64)
    expected, metric = TTTAcceptance(1, draft_vocab=vocab), TTTAcceptance(1, draft_vocab=vocab.to(dtype))
    expected.update(drafts, text, spans, sequence_index=index)
    metric.update(drafts.to(dtype), text.to(dtype), spans.to(dtype), sequence_index=index.to(dtype))
    assert metric.counts() == expected.counts()
    many = TTTAcceptance(1, draft_vocab=vocab, sequences=100_000)  # beyond what the narrow types hold
    many.update(drafts, text, spans, sequence_index=index.to(dtype))
    assert many.counts() == expected.counts()


def test_options_are_shown():
    assert "max_depth=6" in repr(TTTAcceptance(3, max_depth=6))


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
        (
            {"draft_vocab": torch.tensor([-1, 3])},
            "draft_vocab = [-1, 3]: must hold at least one id, all in [0, 67108864)",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError) as error:
        TTTAcceptance(**{"ttt_steps": 3, **options})
    assert str(error.value) == message
