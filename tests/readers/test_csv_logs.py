"""The metrics.csv of Lightning's CSVLogger: a header, and one row per logged step with many empty cells."""

from __future__ import annotations

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.readers.lines import stream_lines
from eagle_speedup.readers.trainer_logs import read_trainer_log

from .test_trainer_logs import KEYS, KINDS

# Columns are in the order of their names, as the logger sorts them.
METRICS = """\
epoch,speedup/full_acc_0,speedup/full_acc_1,speedup/full_acc_2,step,train_loss
0,0.5,0.25,0.125,0,
0,,,,49,3.25
0,,,,99,2.5
0,0.75,0.5,0.25,99,
1,,,,149,2.25
"""


def read(text):
    return read_trainer_log(text.encode().splitlines())


def test_the_latest_validation_of_a_metrics_file():
    reading = read(METRICS)
    assert (reading.trainer.name, reading.values, reading.validations) == ("eagle-speedup", (0.75, 0.5, 0.25), 2)
    assert (reading.dropped, reading.faults) == (0, ())


@pytest.mark.parametrize("name", KEYS)
def test_every_trainer(name):
    columns = ",".join(KEYS[name].format(k) for k in range(12))
    reading = read(f"step,{columns}\n9,{','.join(f'0.{90 - k}' for k in range(12))}\n")
    assert reading.trainer.name == name and (reading.trainer.kind, reading.trainer.targets) == KINDS[name]
    assert reading.values == (0.9, 0.89, 0.88, 0.87, 0.86, 0.85, 0.84, 0.83, 0.82, 0.81, 0.8, 0.79)


def test_columns_in_the_order_of_their_names_and_twice():
    header = "val/full_acc_0,val/full_acc_0_epoch,val/full_acc_1,val/full_acc_10,val/full_acc_2,train/full_acc_0"
    reading = read(f"{header}\n0.7,0.7,0.5,,0.25,0.99\n")
    assert (reading.trainer.name, reading.values, reading.dropped) == ("speculators", (0.7, 0.5, 0.25), 0)


def test_line_ends_and_quotes(tmp_path):
    path = tmp_path / "metrics.csv"
    quoted = METRICS.replace("speedup/full_acc_1", '"speedup/full_acc_1"').replace("0.5,0.25", '"0.5",0.25')
    path.write_text(quoted, newline="\r\n", encoding="utf-8-sig")
    assert read_trainer_log(stream_lines(path)).values == (0.75, 0.5, 0.25)


def test_a_last_validation_with_a_cell_that_is_none():
    reading = read(METRICS + "1,0.8,nan,0.3,199,\n")
    assert (reading.values, reading.dropped) == ((0.75, 0.5, 0.25), 3)
    assert reading.faults[0] == "the last validation is not used, since its step 1 is nan: these are of an earlier one"
    assert read(METRICS + "1,0.8,tensor,0.3,199,\n").values == (0.75, 0.5, 0.25)


def test_a_last_validation_with_an_empty_cell():
    reading = read(METRICS + "1,0.8,0.6,,199,\n")
    assert reading.values == (0.75, 0.5, 0.25)
    assert reading.faults[0].startswith("the last validation is not used, since it holds 2 of 3 steps")


def test_values_of_two_training_steps_are_no_one_validation():
    reading = read(METRICS + "1,0.8,,,199,\n1,,0.6,0.3,299,\n")
    assert reading.values == (0.75, 0.5, 0.25)  # not 0.8, 0.6, 0.3
    assert read(METRICS + "1,0.8,,,199,\n1,,0.6,0.3,199,\n").values == (0.8, 0.6, 0.3)  # logged one by one


def test_a_row_that_breaks_off():
    reading = read(METRICS + "1,0.8,0.6,0.")
    assert reading.values == (0.75, 0.5, 0.25)
    assert reading.faults == ("1 rows left out: they have another number of cells than the table has columns",)


def test_a_second_file_after_the_first():
    other = "epoch,speedup/full_acc_0,speedup/full_acc_1,speedup/full_acc_2,step,train_loss,x\n0,0.9,0.8,0.7,9,,\n"
    assert read(METRICS + other).values == (0.9, 0.8, 0.7)
    assert read(METRICS + METRICS.replace("0.75", "0.875")).values == (0.875, 0.5, 0.25)


@pytest.mark.parametrize("text", ["step,loss\n1,2\n", "step,eval/acc_0\n1,\n", "eval/acc_0,0.5\n0.5,0.5\n"])
def test_a_table_without_accuracies(text):
    with pytest.raises(InputError, match="no complete set of per-step accuracies"):
        read(text)


TRAINING = """\
full_acc_0,full_acc_1,step,val/full_acc_0,val/full_acc_1
,,99,0.6,0.4
0.96,0.92,149,,
0.97,0.93,199,,
"""


@pytest.mark.parametrize(
    "text",
    [
        TRAINING,
        "full_acc_0,full_acc_1,step,val/full_acc_0,val/full_acc_1\n0.97,0.93,99,0.6,0.4\n",
        "val/full_acc_0: 0.6, val/full_acc_1: 0.4\nfull_acc_0: 0.97, full_acc_1: 0.93\n",
        "val full_acc_0: 0.6\nval full_acc_1: 0.4\ntrain full_acc_0: 0.97\ntrain full_acc_1: 0.93\n",
        '{"val/full_acc_0": 0.6, "val/full_acc_1": 0.4}\n{"full_acc_0": 0.97, "full_acc_1": 0.93}\n',
    ],
    ids=["rows", "one row", "text", "words", "json"],
)
def test_what_is_said_to_be_of_a_validation_comes_before_what_is_not(text):
    """The tempting answer is the latest set: that of a training batch, a token longer."""
    reading = read(text)
    assert (reading.trainer.name, reading.values, reading.validations) == ("speculators", (0.6, 0.4), 1)
