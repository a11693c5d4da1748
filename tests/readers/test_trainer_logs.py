from __future__ import annotations

import json

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.readers.trainer_logs import TRAINERS, read_trainer_log

KEYS = {
    "speculators": "val/full_acc_{}_epoch",
    "SpecForge": "eval/per_position_acc/{}",
    "TorchSpec": "eval/acc_{}",
    "Model-Optimizer": "train_acc/parallel_0_step_{}",
    "EAGLE-3": "test/epochacc_{}",
    "EAGLE-1/2": "test/{}_acc",
    "eagle-speedup": "speedup/full_acc_{}",
}
KINDS = {
    "speculators": ("joint", "invisible"),
    "SpecForge": ("marginal", "miss"),
    "TorchSpec": ("marginal", "left out"),
    "Model-Optimizer": ("marginal", "invisible"),
    "EAGLE-3": ("marginal", "miss"),
    "EAGLE-1/2": ("joint", "miss"),
    "eagle-speedup": ("joint", "miss"),
}


def read(text):
    return read_trainer_log(text.encode().split(b"\n"))


def test_every_trainer_is_covered():
    assert {t.name for t in TRAINERS} == set(KEYS) == set(KINDS)


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize(
    "form", ["{key}: {value}", "{key}={value:.4f}", "'{key}': {value}", '"{key}": {value}', "{key} {value}"]
)
@pytest.mark.parametrize("joint", ["\n", ", "])
def test_every_key_in_every_form(name, form, joint):
    sets = [(0.6, 0.3, 0.1), (0.7, 0.4, 0.2)]
    lines = [
        joint.join(form.format(key=KEYS[name].format(k), value=v) for k, v in enumerate(values)) for values in sets
    ]
    reading = read("epoch\n" + "\nloss=1.2\n".join(lines))
    assert reading.trainer.name == name
    assert (reading.trainer.kind, reading.trainer.targets) == KINDS[name]
    assert reading.values == (0.7, 0.4, 0.2)  # the last validation
    assert reading.validations == 2


def test_json_lines():
    lines = [
        json.dumps({"step": s, **{f"eval/acc_{k}": a - 0.1 * k for k in range(3)}}) for s, a in ((1, 0.5), (2, 0.6))
    ]
    assert read("\n".join(lines)).values == pytest.approx((0.6, 0.5, 0.4))


def test_training_accuracies_are_not_validation_ones():
    text = "val/full_acc_0_epoch: 0.5\nval/full_acc_1_epoch: 0.2\ntrain/full_acc_0: 0.9\ntrain/full_acc_1: 0.8"
    assert read(text).values == (0.5, 0.2)


def test_an_incomplete_last_set_gives_way_to_the_one_before():
    text = "\n".join(f"eval/acc_{k}: {v}" for v in (0.5, 0.6) for k in range(3)) + "\neval/acc_0: 0.7"
    reading = read(text)
    assert (reading.values, reading.dropped) == ((0.6, 0.6, 0.6), 1)


def test_values_that_are_none_are_dropped():
    reading = read("eval/acc_0: nan\neval/acc_0: 0.5\neval/acc_1: 7\neval/acc_1: 0.25")
    assert (reading.values, reading.dropped) == ((0.5, 0.25), 2)


def test_warnings_name_what_is_wrong_with_the_figures():
    assert any("invisible" in w for w in read("val/full_acc_0_epoch: 0.5").warnings)
    assert any("left out" in w for w in read("eval/acc_0: 0.5").warnings)
    assert read("test/0_acc: 0.5").warnings == ()


def test_a_log_without_accuracies():
    with pytest.raises(InputError, match=r"no complete set of per-step accuracies; known keys: .*eval/acc_K"):
        read("loss: 3\naccuracy high\n")
