"""Draft ids by a hook on the head: the same counts as from outputs, and no silent miss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


class Head(torch.nn.Module):
    """Returns its outputs in turn, whatever it is given."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = list(outputs)

    def forward(self):
        return self.outputs.pop(0)


def read(outputs, text=None, step_output=None, extra=None, **options):
    """What a source reads in a batch [2, 5] in which the head makes those outputs."""
    module = torch.nn.Module()
    module.lm_head = Head(outputs)
    source = HookSource(len(outputs), **{"d2t": None, **options})
    source.attach(module)
    text = torch.zeros(2, 5, dtype=torch.int64) if text is None else text
    batch = {"input_ids": text, "spans": torch.tensor([[0, 1, 4]]), **(extra or {})}
    source.start_batch(module, batch)
    for _ in range(len(outputs)):
        module.lm_head()
    return source.read(module, step_output)


def logits(batch=2, length=5):
    ids = torch.arange(batch * length).view(batch, length) % 7
    return torch.nn.functional.one_hot(ids, 7).float()


@dataclass
class Output:
    logits: Any


@pytest.mark.parametrize(
    "output",
    [
        Output(logits()),
        (logits(), None),  # with its bias, as heads split over devices
        (torch.tensor(0.5), logits()),
        {"hidden": logits() + 1, "logits": logits()},
        logits().bfloat16(),
    ],
)
def test_logits_are_found_in_what_the_head_returns(output):
    assert torch.equal(read([output]).draft_ids, read([logits()]).draft_ids)


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ((logits(), logits()), "'tuple': must be logits [B, T, V_draft], or hold one such tensor; holds 2"),
        ((logits().argmax(-1), None), "'tuple': must be logits [B, T, V_draft], or hold one such tensor; holds 0"),
        (logits().flatten(0, 1), "(10, 7): must be logits [B, T, V_draft], or hold one such tensor; holds 0"),
        (Output(None), "'Output': must be logits [B, T, V_draft], or hold one such tensor; holds 0"),
        ({"out": logits()}, "'dict': must be logits [B, T, V_draft], or hold one such tensor; holds 0"),
    ],
)
def test_an_output_without_clear_logits_is_named(output, shown):
    with pytest.raises(InputError) as error:
        read([output])
    assert str(error.value) == f"head 'lm_head' output = {shown}"


def test_every_step_is_over_all_slots():
    message = r"head 'lm_head' output\[step 1\].shape\[:2\] = \(2, 4\): must be over all slots of 'input_ids', \[2, 5\]"
    with pytest.raises(InputError, match=message):
        read([logits(), logits(length=4)])


@pytest.mark.parametrize("slots", [1.5, -1, True, None])
def test_slots_are_whole_numbers(slots):
    with pytest.raises(InputError, match=r"slots_before_anchor = .*: must be a whole number of at least 0"):
        HookSource(2, slots_before_anchor=slots)


def test_a_shift_beyond_the_row_is_refused():
    assert (read([logits()], slots_before_anchor=4).draft_ids[..., 4] >= 0).all()
    for slots in (5, 99):
        with pytest.raises(InputError, match=rf"slots_before_anchor = {slots}: must be below T = 5, or no slot drafts"):
            read([logits()], slots_before_anchor=slots)
    one_token = read([logits(length=1)], torch.zeros(2, 1, dtype=torch.int64))  # nothing to draft, and nothing wrong
    assert one_token.draft_ids.tolist() == [[[-1], [-1]]]


def test_a_vocabulary_in_order_of_frequency_needs_its_form():
    table = torch.tensor([50, 7, 90, 3, 4, 60, 1])
    for form, stored in (("absolute", table), ("offset", table - torch.arange(7))):
        drafts = read([logits()], d2t=stored, d2t_form=form).draft_ids
        assert drafts[0, 0].tolist() == [-1, 50, 7, 90, 3]
        with pytest.raises(InputError, match=r"d2t = .*: falls, .* state form"):
            read([logits()], d2t=stored)


def test_the_verifiers_tokens_come_from_the_step_or_the_batch():
    mine, other = torch.ones(2, 5, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64)
    assert read([logits()]).verifier_ids is None
    assert read([logits()], extra={"verifier_ids": mine}).verifier_ids is mine
    assert read([logits()], step_output={"verifier_ids": mine}, extra={"verifier_ids": other}).verifier_ids is mine
    assert read([logits()], step_output={"argmax": mine}, verifier_ids="argmax").verifier_ids is mine
    assert read([logits()], step_output=torch.tensor(0.5)).verifier_ids is None


def test_text_of_another_author_is_noticed(tmp_path):
    def collate(items):
        return {**collate_spans(items), "verifier_ids": torch.full((len(items), LENGTH), 99)}

    with pytest.warns(UserWarning, match="would not have written"):
        callback = run(tmp_path, Untouched(), HookSource(STEPS, target_ids="text"), collate)
    assert callback.profile is not None and callback.profile.is_off_policy


def test_rejection_is_not_served(tmp_path):
    callback = SpeedupMonitor(toy_calibration(), source=HookSource(STEPS, target_ids="text"), mode="rejection")
    loader = toy_loader(collate_fn=collate_spans)
    with pytest.raises(InputError, match="accept_prob = 'missing': is for mode 'rejection' and needed there"):
        toy_trainer(tmp_path, [callback], max_steps=2).fit(Untouched(), loader, loader)
