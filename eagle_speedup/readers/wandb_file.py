"""Reads what an offline Weights & Biases run left on disk.

``run-*.wandb`` is a LevelDB log: a 7-byte header, then 32 KiB blocks of chunks ``[crc32][u16 length][u8 type]`` whose
joined payloads are ``wandb_internal_pb2.Record`` messages. Tables lie beside it, under ``files/media/table``.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..acceptance import AcceptanceCounts
from ..errors import InputError

__all__ = ["STEP", "WandbRun", "WandbTable", "counts_from_run", "merge_wandb_runs", "read_wandb_run"]

#: Column that Lightning's logger puts into every row.
STEP = "trainer/global_step"

_HEADER = b":W&B" + struct.pack("<H", 0xBEE1)  # one version byte follows
_BLOCK = 32 * 1024
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


@dataclass(frozen=True)
class WandbTable:
    """A logged table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class WandbRun:
    """What a run holds."""

    path: Path
    """The .wandb file."""
    run_id: str
    config: dict[str, Any]
    summary: dict[str, Any]
    history: list[dict[str, Any]]
    """Rows; those of one ``trainer/global_step`` are merged into one."""
    alerts: list[tuple[str, str]] = field(default_factory=list)
    """(title, text)."""
    finished: bool = False
    """Whether the file holds the exit record: where not, its end may be missing."""
    folders: tuple[Path, ...] = ()
    """Where files named in the history are looked up."""

    def tables(self, key: str) -> list[tuple[int, WandbTable]]:
        """The tables logged under ``key`` with their step, in order."""
        found = [(row, row[key]) for row in self.history if isinstance(row.get(key), Mapping) and "path" in row[key]]
        return [(int(row.get(STEP, row.get("_step", -1))), self._read_table(entry["path"])) for row, entry in found]

    def _read_table(self, path: str) -> WandbTable:
        for folder in self.folders:
            file = folder / "files" / path
            if file.is_file():
                data = json.loads(file.read_text(encoding="utf-8"))
                return WandbTable(tuple(map(str, data["columns"])), tuple(map(tuple, data["data"])))
        raise InputError("table", path, f"must lie under files/ of {self.path.parent}")


def read_wandb_run(path: str | Path) -> WandbRun:
    """Read one offline run; a file whose end is missing gives what is there.

    Args:
        path: a ``run-*.wandb`` file, or the run's folder.

    Raises:
        InputError: no such file, or not a wandb file.
    """
    file = _run_file(Path(path))
    content = _Content()
    try:
        # Mapped, not read: a long run's file is large, and only its rows are kept.
        with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(_HEADER)] != _HEADER or len(data) <= len(_HEADER):
                raise InputError("path", str(path), "must be a wandb file (run-*.wandb)")
            for record in _records(data):
                content.add(record)
    except InputError:
        raise
    except ValueError:  # an empty file can not be mapped
        raise InputError("path", str(path), "must be a wandb file (run-*.wandb)") from None
    except OSError as error:
        raise InputError("path", str(path), error.strerror or "can not be read") from None
    history = _merge_rows(content.rows)
    folders = (file.parent,)
    return WandbRun(
        file, content.run_id, content.config, content.summary, history, content.alerts, content.finished, folders
    )


def merge_wandb_runs(runs: Sequence[WandbRun]) -> WandbRun:
    """The parts of one training as one run, oldest first: resuming offline makes another folder for every part.

    Rows of one ``trainer/global_step`` are merged; where both parts hold a value the later one counts, as for config
    and summary.
    """
    if not runs:
        raise InputError("runs", [], "must hold at least one run")
    rows = [row for run in runs for row in run.history]
    merged = _merge_rows(sorted(rows, key=lambda row: row.get(STEP, -1)))
    return WandbRun(
        path=runs[-1].path,
        run_id=runs[-1].run_id,
        config={key: value for run in runs for key, value in run.config.items()},
        summary={key: value for run in runs for key, value in run.summary.items()},
        history=merged,
        alerts=[alert for run in runs for alert in run.alerts],
        finished=runs[-1].finished,
        folders=tuple(folder for run in reversed(runs) for folder in run.folders),
    )


def counts_from_run(run: WandbRun, name: str = "speedup") -> list[tuple[int, AcceptanceCounts]]:
    """The acceptance counts of every validation with their step, to project them again under another calibration.

    Args:
        run: a run that a ``SpeedupMonitor`` logged to.
        name: the monitor's name; ``name/set`` for one validation set.

    Raises:
        InputError: no such table in the run, or a table with other columns.
    """
    tables = run.tables(f"{name}/counts")
    if not tables:
        raise InputError(f"{name}/counts", str(run.path), "must be a table of the run")
    return [(step, _counts(table, f"{name}/counts")) for step, table in tables]


def _counts(table: WandbTable, key: str) -> AcceptanceCounts:
    columns = table.columns[1:]
    steps = sum(name.startswith("step_valid_") for name in columns)
    depth = max((int(name.split("_")[1][1:]) for name in columns if name.startswith("accepted_d")), default=0)
    flat = np.asarray([row[1:] for row in table.rows])
    if not steps or not depth or flat.ndim != 2 or flat.shape[1] != AcceptanceCounts.width(steps, depth):
        raise InputError(key, list(table.columns), "must have the columns of acceptance counts")
    if np.array_equal(flat, np.rint(flat)):
        flat = flat.astype(np.int64)  # JSON does not say whether 3 is 3.0
    counts = AcceptanceCounts.from_flat(flat, steps, depth)
    if list(columns) != counts.column_names():
        raise InputError(key, list(table.columns), "must have the columns of acceptance counts")
    return counts


class _Content:
    """Adds up records."""

    def __init__(self) -> None:
        self.run_id = ""
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.alerts: list[tuple[str, str]] = []
        self.finished = False

    def add(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.run_id = record.run.run_id
            _update(self.config, record.run.config.update)
        elif kind == "config":
            _update(self.config, record.config.update)
        elif kind == "summary":
            _update(self.summary, record.summary.update)
        elif kind == "history":
            row: dict[str, Any] = {}
            _update(row, record.history.item)
            self.rows.append(row)
        elif kind == "alert":
            self.alerts.append((record.alert.title, record.alert.text))
        elif kind == "exit":
            self.finished = True


def _update(target: dict[str, Any], items: Iterable[Any]) -> None:
    for item in items:
        *path, last = list(item.nested_key) or [item.key]
        place = target
        for key in path:
            inner = place.get(key)
            if not isinstance(inner, dict):
                inner = place[key] = {}
            place = inner
        place[last] = json.loads(item.value_json)


def _merge_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    by_step: dict[Any, dict[str, Any]] = {}
    for row in rows:
        step = row.get(STEP)
        if step is not None and step in by_step:
            by_step[step].update(row)
            continue
        merged.append(dict(row))
        if step is not None:
            by_step[step] = merged[-1]
    return merged


def _run_file(path: Path) -> Path:
    if path.is_dir():
        found = sorted(path.glob("run-*.wandb"))
        if len(found) != 1:
            raise InputError("path", str(path), f"must be the folder of one run (found {len(found)} run-*.wandb files)")
        return found[0]
    if not path.is_file():
        raise InputError("path", str(path), "must be an existing file")
    return path


def _records(data: mmap.mmap) -> Iterator[Any]:
    """Records up to the first one that is cut off or broken."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    for payload in _payloads(data):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        try:
            record.ParseFromString(payload)
        except DecodeError:
            return
        yield record


def _payloads(data: mmap.mmap) -> Iterator[bytes]:
    position = len(_HEADER) + 1
    parts: list[bytes] = []
    while position + _CHUNK.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _CHUNK.size:  # too short for a chunk header: padding
            position += left
            continue
        _, length, kind = _CHUNK.unpack_from(data, position)
        position += _CHUNK.size
        if position + length > len(data) or not _FULL <= kind <= _LAST:
            return
        parts = [] if kind in (_FULL, _FIRST) else parts
        parts.append(data[position : position + length])
        position += length
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
