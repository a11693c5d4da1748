"""Draft ids by a hook on the head: the same counts as from outputs, and no silent miss."""

from __future__ import annotations

import pytest
import torch

from eagle_speedup.callbacks import HookSource, SpeedupMonitor
from eagle_speedup.errors import InputError

from .toy import (
    LENGTH,
    STEPS,
    ToyDrafter,
    answer_spans,
    direct_counts,
    drafts,
    toy_calibration,
    toy_loader,
    toy_trainer,
)

VOCABULARY = 100


class Lookup(torch.nn.Module):
    """A head whose argmax is the id it is given: logits [B, T, V_draft]."""

    def forward(self, ids):
        return torch.nn.functional.one_hot(ids, VOCABULARY).float()


class Untouched(ToyDrafter):
    """A module as others write it: EAGLE's slots, a head per step, logits that never leave validation_step."""

    def __init__(self, calls=STEPS, **options):
        super().__init__(**options)
        self.lm_head = Lookup()
        self.verifier_lm_head = Lookup()  # holds "lm_head" in its name and must not be taken for it
        self.register_buffer("d2t", torch.zeros(VOCABULARY, dtype=torch.int64))  # offsets: draft id = verifier id
        self.calls = calls

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.verifier_lm_head(batch["text"])
        by_anchor = drafts(batch, self.chance())
        by_slot = by_anchor.roll(-1, dims=2)
        for k in range(self.calls):
            self.lm_head(by_slot[k % STEPS])
        return torch.tensor(0.0)

    def training_step(self, batch, batch_idx):
        self.lm_head(batch["text"])  # training also uses the head: nothing of it may be counted
        return super().training_step(batch, batch_idx)


def collate_spans(items):
    batch = torch.utils.data.default_collate(items)
    batch["spans"] = answer_spans(batch)
    return batch


def collate_mask(items):
    batch = torch.utils.data.default_collate(items)
    position = torch.arange(LENGTH)
    batch["loss_mask"] = (position >= batch["span"][:, :1]) & (position <= batch["span"][:, 1:])
    return batch


def run(folder, module, source, collate=collate_spans):
    callback = SpeedupMonitor(toy_calibration(), source=source)
    loader = toy_loader(collate_fn=collate)
    toy_trainer(folder, [callback], max_steps=4).fit(module, loader, loader)
    return callback


@pytest.mark.parametrize(("collate", "mask_on"), [(collate_spans, None), (collate_mask, "input")])
def test_the_counts_are_those_of_the_outputs(tmp_path, collate, mask_on):
    module = Untouched()
    source = HookSource(STEPS, target_ids="text", mask_on=mask_on)
    callback = run(tmp_path, module, source, collate)
    assert callback.profile is not None
    assert callback.profile.counts == direct_counts(40, 4)
    assert not module.lm_head._forward_hooks  # detached at the end


def test_reading_slots_as_anchors_gives_another_number(tmp_path):
    callback = run(tmp_path, Untouched(), HookSource(STEPS, target_ids="text", slots_before_anchor=0))
    assert callback.profile is not None
    assert callback.profile.counts != direct_counts(40, 4)


@pytest.mark.parametrize("calls", [0, STEPS - 1, STEPS + 2])
def test_every_batch_checks_that_all_steps_were_seen(tmp_path, calls):
    with pytest.raises(InputError, match=r"head 'lm_head' calls = \d: must run ttt_steps = 3 times"):
        run(tmp_path, Untouched(calls=calls), HookSource(STEPS, target_ids="text"))


def test_names_are_whole_components(tmp_path):
    with pytest.raises(InputError, match="head = 'head': must name exactly one part of Untouched; fits none"):
        run(tmp_path, Untouched(), HookSource(STEPS, head="head", target_ids="text"))


def test_a_mask_needs_its_convention(tmp_path):
    with pytest.raises(InputError, match="mask_on = None: must say what a bit of 'loss_mask' stands for"):
        run(tmp_path, Untouched(), HookSource(STEPS, target_ids="text"), collate_mask)


def test_a_batch_without_the_text_is_named(tmp_path):
    with pytest.raises(InputError, match="must hold the tensor 'input_ids'"):
        run(tmp_path, Untouched(), HookSource(STEPS))
