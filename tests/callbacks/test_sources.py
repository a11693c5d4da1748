"""Sources: what they take, and one clear line for what they do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from eagle_speedup.callbacks import AttributeSource, DraftSource, OutputsSource, SpeedupMonitor, TTTBatch
from eagle_speedup.callbacks._counting import ValidationCounter
from eagle_speedup.errors import InputError
from tests.acceptance.test_metric_contract import ForbidsSynchronisation

from .toy import (
    Texts,
    ToyDrafter,
    answer_spans,
    direct_counts,
    drafts,
    toy_calibration,
    toy_loader,
    toy_trainer,
)


def good():
    return {
        "draft_ids": torch.zeros(2, 1, 4, dtype=torch.int64),
        "target_ids": torch.zeros(1, 4, dtype=torch.int64),
        "spans": torch.tensor([[0, 1, 3]]),
    }


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (
            torch.tensor(0.5),
            "validation_step output = 'Tensor': must be a dict with 'draft_ids', 'target_ids', 'spans'",
        ),
        (None, "validation_step output = 'NoneType': must be a dict with 'draft_ids', 'target_ids', 'spans'"),
        ({"loss": 1}, "validation_step output = ['loss']: must hold the key 'draft_ids': [K, B, T]"),
        ({**good(), "spans": [(0, 1, 3)]}, "validation_step output['spans'] = 'list': must be a tensor [S, 3]"),
        (
            {**good(), "draft_ids": torch.zeros(1, 4, dtype=torch.int64)},
            "validation_step output['draft_ids'].shape = (1, 4): must be [K, B, T]",
        ),
    ],
)
def test_bad_outputs_get_one_line(outputs, message):
    with pytest.raises(InputError) as error:
        OutputsSource().read(torch.nn.Module(), outputs)
    assert str(error.value) == message


def test_keys_can_be_renamed_and_the_index_is_optional():
    outputs = {"ids" if key == "draft_ids" else key: value for key, value in good().items()}
    batch = OutputsSource(draft_ids="ids").read(torch.nn.Module(), outputs)
    assert batch.draft_ids.shape == (2, 1, 4) and batch.sequence_index is None
    with pytest.raises(InputError, match="must hold the key 'ids'"):
        OutputsSource(draft_ids="ids").read(torch.nn.Module(), good())


class KeepsDrafts(ToyDrafter):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.drafted = super().validation_step(batch, batch_idx)
        return torch.tensor(0.0)


def run(folder, module, source):
    callback = SpeedupMonitor(toy_calibration(), source=source)
    toy_trainer(folder, [callback], max_steps=2).fit(module, toy_loader(), toy_loader())
    return callback


def test_an_attribute_of_the_module_counts_the_same(tmp_path):
    module = KeepsDrafts()
    callback = run(tmp_path, module, AttributeSource("drafted"))
    assert callback.profile.counts == direct_counts(40, 2)
    assert module.drafted is None  # no reference is kept


def test_a_missing_or_stale_attribute_is_refused(tmp_path):
    with pytest.raises(InputError, match="must be an attribute of KeepsDrafts"):
        run(tmp_path, KeepsDrafts(), AttributeSource("other"))

    class Forgets(KeepsDrafts):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            return super().validation_step(batch, batch_idx) if batch_idx == 0 else None

    with pytest.raises(InputError, match=r"module.drafted = 'NoneType': must be a dict"):
        run(tmp_path, Forgets(), AttributeSource("drafted"))


def test_the_sanity_check_finds_a_wrong_output_before_training(tmp_path):
    class Wrong(ToyDrafter):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            return {"loss": torch.tensor(1.0)}

        def training_step(self, batch, batch_idx):
            raise AssertionError("trained")

    with pytest.raises(InputError, match="must hold the key 'draft_ids'"):
        run(tmp_path, Wrong(), OutputsSource())


def test_the_sanity_check_finds_what_only_counting_notices(tmp_path):
    class NeverTrains(ToyDrafter):
        def training_step(self, batch, batch_idx):
            raise AssertionError("trained")

    class WrongSpans(NeverTrains):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            return {**super().validation_step(batch, batch_idx), "spans": torch.tensor([[0, 5, 99]])}

    with pytest.raises(InputError, match=r"spans\[0\] = .*E must be below the sequence length"):
        run(tmp_path, WrongSpans(), OutputsSource())
    callback = SpeedupMonitor(toy_calibration(), mode="rejection")
    with pytest.raises(InputError, match="accept_prob = 'missing'"):
        toy_trainer(tmp_path, [callback], max_steps=2).fit(NeverTrains(), toy_loader(), toy_loader())


def test_a_source_is_called_in_order(tmp_path):
    calls = []

    class Recorder(DraftSource):
        def attach(self, pl_module):
            calls.append("attach")

        def start_batch(self, pl_module, batch):
            calls.append("start")

        def read(self, pl_module, outputs):
            calls.append("read")
            return TTTBatch(outputs["draft_ids"], outputs["target_ids"], outputs["spans"])

        def detach(self):
            calls.append("detach")

    run(tmp_path, ToyDrafter(), Recorder())
    batches = 2 + 5  # sanity check, one validation
    assert calls == ["attach", *["start", "read"] * batches, "detach"]


def test_counting_never_waits_for_the_device():
    counter = ValidationCounter(8, max_depth=None, depth=None, mode="greedy", draft_vocab=None)
    sampler: Any = DistributedSampler(Texts(5), num_replicas=2, rank=1, shuffle=False)
    counter.start([toy_loader(5, 3, sampler=sampler)] * 2, rank=1, world=2, sets=2)
    batch = next(iter(toy_loader(3, 3)))
    ids = TTTBatch(drafts(batch, 0.5), batch["text"], answer_spans(batch))
    with ForbidsSynchronisation():
        counter.add(ids, 1)  # samples 1 and 3, and a repeat
    metric = counter.metric
    assert metric is not None and metric.counts().answers.tolist() == [0] * 8 + [0, 1, 0, 1, 0, 0, 0, 0]
