"""The metric inside a module that is sharded (FSDP2), compiled, or run in inference mode: the same counts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler

from eagle_speedup.acceptance import AcceptanceCounts, TTTAcceptance
from eagle_speedup.callbacks import HookSource, SpeedupMonitor
from eagle_speedup.eagle3.data import FeatureDataset, collate, ttt_inputs
from eagle_speedup.eagle3.ttt import ttt_draft_ids
from tests.callbacks.toy import toy_calibration, toy_trainer

STEPS, ROWS = 3, 13


class Validator(nn.Module):
    """Drafter and metric in one module, as a trainer's model may hold them."""

    def __init__(self, drafter):
        super().__init__()
        self.drafter = drafter
        self.metric = TTTAcceptance(STEPS, 6, blocks=5, sequences=ROWS, draft_vocab=drafter.d2t)

    def forward(self, batch):
        drafts = ttt_draft_ids(self.drafter, ttt_inputs(batch), STEPS)
        self.metric.update(drafts, batch["ids"], batch["spans"], sequence_index=batch["sequence_index"])
        return drafts


def loader_of(rows, rank=0, world=1):
    """13 rows over 2 ranks are 7 + 7: one comes twice."""
    data = FeatureDataset(rows)
    sampler: Any = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=False)
    return DataLoader(data, batch_size=3, sampler=sampler, collate_fn=collate)


def sharded(drafter, rows):
    """Counts of this rank after the reduction, and the share of the weights that it holds."""
    mesh = init_device_mesh("cpu", (2,))
    model = Validator(copy.deepcopy(drafter))
    size = sum(p.numel() for p in model.parameters())
    fully_shard(model, mesh=mesh)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    held: Any = list(model.parameters())
    share = sum(p.to_local().numel() for p in held) / size
    with torch.no_grad():
        for batch in loader_of(rows, mesh.get_rank(), 2):
            model(batch)
    return model.metric.compute().counts.to_dict(), share


@pytest.fixture(scope="module")
def alone(drafter, held_out_rows):
    """Counts of a single process."""
    model = Validator(copy.deepcopy(drafter))
    for batch in loader_of(held_out_rows[:ROWS]):
        model(batch)
    counts = model.metric.compute().counts
    assert counts.answers.sum() > 10 and counts.accepted[:, 2, 1:].sum() > 50
    return counts


def test_fsdp2_counts_as_one_process(gloo_pair, drafter, held_out_rows, alone):
    for counts, share in gloo_pair.run(sharded, drafter, held_out_rows[:ROWS]):
        assert AcceptanceCounts.from_dict(counts) == alone
        assert share < 0.6


class ShardedDrafter(LightningModule):
    """The same under Lightning's strategy for FSDP2."""

    def __init__(self, drafter):
        super().__init__()
        self.net = Validator(drafter)
        self.sharded = False

    def configure_model(self):
        assert self.device_mesh is not None
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])
        self.sharded = all(isinstance(p, DTensor) for p in self.net.parameters())

    def validation_step(self, batch, batch_idx):
        names = {"target_ids": "ids", "spans": "spans", "sequence_index": "sequence_index"}
        return {"draft_ids": self.net(batch), **{name: batch[key] for name, key in names.items()}}


def by_lightning(folder, drafter, rows):
    callback: Any = SpeedupMonitor(toy_calibration(), blocks=5, max_depth=6, sequences=ROWS)
    options: Any = {"logger": False, "strategy": ModelParallelStrategy(2, 1), "devices": 2}
    trainer = toy_trainer(folder, [callback], **options)
    module = ShardedDrafter(drafter)
    trainer.validate(module, DataLoader(FeatureDataset(rows), batch_size=3, collate_fn=collate), verbose=False)
    return callback.profile.counts.to_dict(), module.net.metric.compute().counts.to_dict(), module.sharded


def test_lightning_s_model_parallel_strategy_counts_as_one_process(gloo_pair, tmp_path, drafter, held_out_rows, alone):
    for logged, held, is_sharded in gloo_pair.run(by_lightning, str(tmp_path), drafter, held_out_rows[:ROWS]):
        assert is_sharded
        assert (AcceptanceCounts.from_dict(held).flat() == alone.flat()).all()
        # The monitor was not told the draft vocabulary: all tokens count as covered there.
        assert (AcceptanceCounts.from_dict(logged).accepted == alone.accepted).all()


def test_a_module_built_on_the_meta_device_counts(drafter, held_out_rows, alone):
    """Sharded models are built without memory and filled later; the counts must start at zero, not at chance."""
    with torch.device("meta"):
        metric = TTTAcceptance(STEPS, 6, blocks=5, sequences=ROWS, draft_vocab=drafter.d2t)
    nn.ModuleList([metric]).to_empty(device="cpu")
    for batch in loader_of(held_out_rows[:ROWS]):
        drafts = ttt_draft_ids(drafter, ttt_inputs(batch), STEPS)
        metric.update(drafts, batch["ids"], batch["spans"], sequence_index=batch["sequence_index"])
    assert metric.compute().counts == alone


class Heads(nn.Module):
    """A head for each TTT step over all slots; static shapes, so that it compiles as one graph up to the metric."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.embedding = nn.Parameter(torch.randn(20, 16, generator=generator))
        self.lm_head = nn.Linear(16, 20, bias=False)
        with torch.no_grad():
            self.lm_head.weight.copy_(torch.randn(20, 16, generator=generator))
        self.metric = TTTAcceptance(STEPS, 6, blocks=4)

    def drafts(self, ids):
        state, out = self.embedding[ids], []
        for _ in range(STEPS):
            logits = self.lm_head(state)
            out.append(logits.argmax(-1))
            state = torch.tanh(state + logits.softmax(-1) @ self.embedding)
        return torch.stack(out)

    def forward(self, ids, target, spans):
        self.metric.update(self.drafts(ids), target, spans)


def texts(model, batches=2):
    """Texts that the heads get right about every second time."""
    generator = torch.Generator().manual_seed(4)
    for _ in range(batches):
        ids = torch.randint(0, 20, (4, 30), generator=generator)
        right = torch.rand(ids.shape, generator=generator) < 0.6
        target = torch.where(right, model.drafts(ids)[0].roll(1, 1), ids)
        yield ids, target, torch.tensor([(row, 2 + row, 29 - row) for row in range(4)])


def test_a_compiled_module_counts_as_an_eager_one_in_inference_mode():
    eager, module = Heads(), Heads()
    compiled = torch.compile(module, backend="aot_eager")  # all of the tracing, without minutes of a C++ compiler
    with torch.inference_mode():
        for batch in texts(eager):
            eager(*batch)
            compiled(*batch)
    assert module.metric.counts() == eager.metric.counts()
    assert eager.metric.compute().accept_length(3).value > 1.3
    module.metric.reset()  # states made outside of inference mode stay usable after it, and the other way round
    for batch in texts(eager, batches=1):
        compiled(*batch)
    assert module.metric.counts().answers.sum() == 4


class Compiled(LightningModule):
    """Compiled as a trainer would, with a hook on its head that was there before the first forward."""

    def __init__(self):
        super().__init__()
        self.net = Heads()
        self.run = torch.compile(self.net.drafts, backend="aot_eager")

    def validation_step(self, batch, batch_idx):
        self.run(batch["ids"])


@pytest.mark.parametrize("warm", [False, True])
def test_hooks_on_a_compiled_module_count_or_refuse(tmp_path, warm):
    torch._dynamo.reset()
    module, net = Compiled(), Heads()
    data: Any = [
        {"ids": ids[row], "target_ids": target[row], "span": spans[row, 1:]}
        for ids, target, spans in texts(net)
        for row in range(4)
    ]

    def with_spans(items):
        batch = torch.utils.data.default_collate(items)
        rows = torch.arange(len(items))[:, None]
        return {**batch, "spans": torch.cat([rows, batch["span"]], 1)}

    for begin in range(0, len(data), 4):
        batch = with_spans(data[begin : begin + 4])
        drafts = net.drafts(batch["ids"])
        net.metric.update(drafts, batch["target_ids"], batch["spans"])
    if warm:
        module.run(data[0]["ids"].repeat(4, 1))
    source = HookSource(STEPS, target_ids="target_ids", d2t=None, slots_before_anchor=0)
    callback: Any = SpeedupMonitor(toy_calibration(), source=source, blocks=4, max_depth=6)
    trainer = toy_trainer(tmp_path, [callback], logger=False)
    trainer.validate(module, DataLoader(data, batch_size=4, collate_fn=with_spans), verbose=False)
    assert callback.profile.counts == net.metric.counts()
