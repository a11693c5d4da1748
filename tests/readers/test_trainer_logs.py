from __future__ import annotations

import gzip
import json
import random

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.readers.lines import stream_lines
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


SET = "val/full_acc_0_epoch: {} val/full_acc_1_epoch: {} val/full_acc_2_epoch: {}"


@pytest.mark.parametrize("values", [("0.742", ".47", ".29"), ("7.42e-1", "+.47", "29e-2"), (".742", "4.7E-1", "0.29")])
def test_every_way_of_writing_a_number(values):
    reading = read(SET.format(*values))
    assert reading.values == (0.742, 0.47, 0.29)
    assert (reading.dropped, reading.faults) == (0, ())


def test_a_one_with_nothing_behind_its_point_and_one_rounded_up():
    assert read(SET.format("1.", "1.0000001", "0.")).values == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("bad", ["nan", "NaN", "-nan", "inf", "null", "None", "7", "-0.1"])
def test_a_last_validation_with_a_value_that_is_none(bad):
    reading = read("\n".join((SET.format(0.7, 0.5, 0.3), SET.format(0.8, 0.6, bad))))
    assert (reading.values, reading.validations, reading.dropped) == ((0.7, 0.5, 0.3), 1, 3)
    broken = f"the last validation is not used, since its step 2 is {bad}: these are of an earlier one"
    assert f"speculators: {broken}" in reading.warnings
    assert "3 values left out: not a number in [0, 1], or of a set that is not whole" in reading.faults


def test_words_that_begin_like_a_value_are_none():
    assert read(f"eval/acc_0 info\neval/acc_0 none-such nano\n{SET.format(0.7, 0.5, 0.3)}").faults == ()


def test_a_last_validation_that_breaks_off():
    reading = read(SET.format(0.7, 0.5, 0.3) + "\nval/full_acc_0_epoch: 0.8\n")
    assert reading.values == (0.7, 0.5, 0.3)
    assert reading.faults[0].startswith("the last validation is not used, since it holds 1 of 3 steps")
    whole_again = read(SET.format(0.7, 0.5, 0.3) + "\nval/full_acc_0_epoch: 0.8\n" + SET.format(0.9, 0.6, 0.4))
    assert whole_again.values == (0.9, 0.6, 0.4)
    assert whole_again.faults == ("1 values left out: not a number in [0, 1], or of a set that is not whole",)


def test_where_no_validation_is_whole_the_steps_before_the_fault_are_taken():
    reading = read("\n".join(SET.format(a, 0.5, "nan") for a in (0.7, 0.8)))
    assert (reading.values, reading.validations) == ((0.8, 0.5), 2)
    assert reading.faults[0] == "no validation is whole (its step 2 is nan): only the 2 steps before are used"
    with pytest.raises(InputError, match=r"holds no complete set of per-step accuracies \(its step 0 is nan\); known"):
        read(SET.format("nan", 0.5, 0.3))


def test_a_log_that_begins_in_the_middle_of_a_set():
    tail = "eval/acc_1: 0.1\neval/acc_2: 0.05\n"
    reading = read(tail + "".join(f"eval/acc_{k}: {v}\n" for k, v in enumerate((0.7, 0.5, 0.3))))
    assert reading.values == (0.7, 0.5, 0.3)  # not 0.7 with the steps of the set before it
    alone = read(tail)
    assert alone.values == (0.1, 0.05) and "its steps begin at 1" in alone.faults[0]


RANKS = {0: (0.8, 0.5), 1: (0.7, 0.45)}


@pytest.mark.parametrize("order", ["00 10 01 11", "10 00 11 01", "00 10 11 01", "10 00 01 11"])
def test_two_ranks_mixed_in_a_log(order):
    lines = [f"eval/acc_{k}: {RANKS[int(r)][int(k)]}" for r, k in order.split()]
    reading = read("\n".join(lines))
    assert any("step 1 comes again before step 0 does: several ranks or runs may be mixed" in f for f in reading.faults)


def test_ranks_that_print_the_same_are_no_matter():
    reading = read("\n".join(f"eval/acc_{k}: {0.8 - 0.2 * k:.1f}" for k in (0, 1, 2) for _ in range(4)))
    assert (reading.values, reading.validations, reading.faults) == ((0.8, 0.6, 0.4), 1, ())


@pytest.mark.parametrize("prefix", ["[rank{}]: ", "[default{}]:", "INFO (Rank {}) ", "rank={} "])
@pytest.mark.parametrize("order", ["00 10 01 11", "10 00 11 01", "00 01 10 11", "10 11 00 01"])
def test_ranks_that_are_named_are_told_apart(prefix, order):
    lines = [f"{prefix.format(r)}eval/acc_{k}: {RANKS[int(r)][int(k)]}" for r, k in order.split()]
    reading = read("\n".join(lines))
    assert reading.values == RANKS[0]
    assert reading.faults == ("several ranks printed unlike values: those of rank 0 are taken",)


def test_progress_bars_before_the_metrics(tmp_path):
    path = tmp_path / "train.log"
    bar = "\r".join(f"Epoch 0: {n}/9000 train_acc" for n in range(9000))
    path.write_text(f"{bar}\r{SET.format(0.7, 0.5, 0.3)}\n", newline="")
    assert path.stat().st_size > 100_000
    assert read_trainer_log(stream_lines(path)).values == (0.7, 0.5, 0.3)


def test_a_gzip_log_that_breaks_off(tmp_path):
    path = tmp_path / "train.log.gz"
    noise = random.Random(1).randbytes(20_000).hex()
    path.write_bytes(gzip.compress(f"{SET.format(0.7, 0.5, 0.3)}\n{noise}\n".encode())[:-9000])
    (fault,) = read_trainer_log(stream_lines(path)).faults
    assert fault.startswith("the gzip file is cut off after ")
    path.write_bytes(gzip.compress(noise.encode())[:-9000])
    with pytest.raises(InputError, match=r"no complete set of per-step accuracies \(the gzip file is cut off after"):
        read_trainer_log(stream_lines(path))


@pytest.mark.parametrize("rest", ["x", "", ":", ": x", "'", "tensor("])
@pytest.mark.parametrize("filling", [" ", "0", "a", "nan "])
def test_a_corrupt_line_takes_no_longer_than_its_length(rest, filling):
    lines = [f"{key.format(1)}{filling * (200_000 // len(filling))}{rest}" for key in KEYS.values()]
    assert read("\n".join([*lines, SET.format(0.7, 0.5, 0.3)])).values == (0.7, 0.5, 0.3)


def test_a_step_of_a_thousand_digits_is_none():
    assert read(f"eval/acc_{'1' * 5000}: 0.5\n{SET.format(0.7, 0.5, 0.3)}").values == (0.7, 0.5, 0.3)
