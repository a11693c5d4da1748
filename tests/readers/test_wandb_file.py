"""The reader of offline wandb files on bytes made here, and on what is no such file."""

from __future__ import annotations

import json
import struct
import zlib

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.readers import counts_from_run, read_wandb_run

pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")

HEADER = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
BLOCK = 32768


def as_file(records):
    """The records as a LevelDB log, cut at block boundaries as its writer does."""
    out = bytearray(HEADER)
    for record in records:
        data = record.SerializeToString()
        first = True
        while True:
            left = BLOCK - len(out) % BLOCK
            if left < 7:
                out += bytes(left)
                continue
            piece, data = data[: left - 7], data[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not data]
            out += struct.pack("<IHB", zlib.crc32(piece), len(piece), kind) + piece
            first = False
            if not data:
                break
    return bytes(out)


def row(**values):
    record = pb.Record()
    for key, value in values.items():
        record.history.item.add(nested_key=key.split("__"), value_json=json.dumps(value))
    return record


def step_row(step, **values):
    record = row(**values)
    record.history.item.add(nested_key=["trainer/global_step"], value_json=str(step))
    return record


def exit_record():
    record = pb.Record()
    record.exit.exit_code = 0
    return record


def written(folder, records):
    path = folder / "run-abc.wandb"
    path.write_bytes(as_file(records))
    return path


def test_rows_of_one_step_merge_and_nested_keys_nest(tmp_path):
    records = [step_row(1, a=1), step_row(1, b__c=2, b__d=float("nan")), row(free=3), step_row(2, a=4), exit_record()]
    run = read_wandb_run(written(tmp_path, records))
    assert [{k: v for k, v in r.items() if k != "b"} for r in run.history] == [
        {"a": 1, "trainer/global_step": 1},
        {"free": 3},
        {"a": 4, "trainer/global_step": 2},
    ]
    assert run.history[0]["b"]["c"] == 2 and run.history[0]["b"]["d"] != run.history[0]["b"]["d"]
    assert run.finished


def test_config_and_summary_take_the_last_value(tmp_path):
    first, later, summary = pb.Record(), pb.Record(), pb.Record()
    first.run.run_id = "abc"
    first.run.config.update.add(key="speedup", value_json='{"node": "x"}')
    later.config.update.add(nested_key=["speedup", "node"], value_json='"y"')
    summary.summary.update.add(nested_key=["s", "max"], value_json="2.5")
    run = read_wandb_run(written(tmp_path, [first, later, summary]))
    assert (run.run_id, run.config, run.summary) == ("abc", {"speedup": {"node": "y"}}, {"s": {"max": 2.5}})
    assert not run.finished


@pytest.mark.parametrize("size", [10, BLOCK - 30, BLOCK, 3 * BLOCK + 5])
def test_records_span_blocks(tmp_path, size):
    run = read_wandb_run(written(tmp_path, [row(text="x" * size), row(after=size)]))
    assert [next(iter(r.values())) for r in run.history] == ["x" * size, size]


def test_every_cut_of_the_end_gives_the_records_before_it(tmp_path):
    records = [step_row(i, a=i) for i in range(4)]
    whole = as_file(records)
    sizes = [len(as_file(records[:n])) for n in range(5)]
    path = tmp_path / "run-cut.wandb"
    for length in range(len(HEADER) + 1, len(whole) + 1):
        path.write_bytes(whole[:length])
        run = read_wandb_run(path)
        assert len(run.history) == max(n for n in range(5) if sizes[n] <= length)
    path.write_bytes(whole + b"\xff" * 9)
    assert len(read_wandb_run(path).history) == 4


def test_what_is_no_wandb_file_gets_one_line(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    with pytest.raises(InputError, match="must be a wandb file"):
        read_wandb_run(other)
    with pytest.raises(InputError, match="must be an existing file"):
        read_wandb_run(tmp_path / "none.wandb")
    with pytest.raises(InputError, match=r"must be the folder of one run \(found 0"):
        read_wandb_run(tmp_path)
    run = read_wandb_run(written(tmp_path, [row(a=1)]))
    with pytest.raises(InputError, match=r"speedup/counts = .*must be a table of the run"):
        counts_from_run(run)


def test_a_lost_or_foreign_table_gets_one_line(tmp_path):
    entry = {"_type": "table-file", "path": "media/table/t.table.json"}
    run = read_wandb_run(written(tmp_path, [step_row(3, **{"speedup/counts": entry})]))
    with pytest.raises(InputError, match=r"media/table/t.table.json.*must lie under files/"):
        counts_from_run(run)
    folder = tmp_path / "files/media/table"
    folder.mkdir(parents=True)
    (folder / "t.table.json").write_text(json.dumps({"columns": ["block", "tokens"], "data": [[0, 1]]}))
    with pytest.raises(InputError, match="must have the columns of acceptance counts"):
        counts_from_run(run)
