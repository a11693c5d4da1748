"""The run folder: what each phase leaves behind, so that an interrupted run can go on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from ..eagle3.data import Conversation, FeatureRow
from ..errors import InputError

__all__ = ["Journal", "RunFolder", "RunState", "write_json"]

_FORMAT = 1


@dataclass(frozen=True)
class RunState:
    """What a run must remember of itself."""

    minutes: float
    """Budget of the whole demo."""
    seed: int
    decode: bool
    subject: str = ""
    """Name of the verifier, once loaded."""
    elapsed_s: float = 0.0
    """Seconds spent so far, over all parts."""
    threads: int = 0
    """Threads the calibration was measured with; 0 before."""
    plan: Mapping[str, Any] | None = None
    """The plan, once made."""
    warm_up: Mapping[str, Any] | None = None
    """What the first steps were like, once done."""
    steps: Mapping[str, Any] | None = None
    """Step budget of the main fit, once set."""
    finished: bool = False


class RunFolder:
    """Paths and files of one run.

    Args:
        path: the folder; made when missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.features = path / "cache" / "features.pt"
        self.held_out = path / "cache" / "held_out.pt"
        self.early_checkpoint = path / "checkpoints" / "early.ckpt"
        self.checkpoints = path / "checkpoints"
        self.trained = path / "checkpoints" / "trained.pt"
        self.calibration = path / "this_machine.yaml"
        self.report = path / "report.txt"
        self.results = path / "results.json"
        self.plot = path / "training.png"
        self._state = path / "demo.json"

    @property
    def last_checkpoint(self) -> Path:
        """Of the main fit's last validation."""
        return self.checkpoints / "last.ckpt"

    def begin(self, state: RunState) -> RunState:
        """Start afresh: an earlier demo's files go, anything else is left alone and refused."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("out", str(self.path), "must be a folder")
        try:
            if self.path.is_dir() and any(self.path.iterdir()) and self._kept() is None:
                raise InputError("out", str(self.path), "must be new, empty, or the folder of an earlier demo")
            for name in ("cache", "checkpoints", "wandb"):
                shutil.rmtree(self.path / name, ignore_errors=True)
            for file in (self.calibration, self.report, self.results, self.plot):
                file.unlink(missing_ok=True)
            for folder in (self.features.parent, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
            return self.save(state)
        except OSError as error:
            raise InputError("out", str(self.path), f"can not be written: {error.strerror}") from None

    def resume(self) -> RunState:
        """The state of an earlier run; InputError where there is none."""
        if not self._state.is_file():
            raise InputError("resume", str(self.path), "holds no earlier run to go on with")
        state = self._kept()
        if state is None:
            raise InputError("resume", str(self._state), "is damaged or of another version; start a new run")
        return state

    def _kept(self) -> RunState | None:
        """The state on disk; None where there is none that this version wrote."""
        try:
            data = json.loads(self._state.read_text(encoding="utf-8"))
            return RunState(**data) if data.pop("format") == _FORMAT else None
        except (FileNotFoundError, ValueError, TypeError, AttributeError, KeyError):
            return None

    def save(self, state: RunState) -> RunState:
        """Keep the state; the file appears whole or not at all."""
        write_json(self._state, {"format": _FORMAT, **asdict(state)})
        return state

    def save_rows(self, path: Path, rows: Sequence[FeatureRow]) -> None:
        """Keep features as plain tensors and numbers."""
        names = [f.name for f in fields(FeatureRow)]
        _save_tensors(path, [{name: getattr(row, name) for name in names} for row in rows])

    def load_rows(self, path: Path) -> list[FeatureRow] | None:
        """What `save_rows` kept; None where nothing was."""
        if not path.is_file():
            return None
        entries = torch.load(path, weights_only=True)
        return [FeatureRow(**{**entry, "spans": tuple(map(tuple, entry["spans"]))}) for entry in entries]

    def save_answers(self, conversations: Sequence[Conversation]) -> None:
        """Keep the held-out conversations."""
        _save_tensors(self.held_out, [{"ids": c.ids, "spans": c.spans} for c in conversations])

    def load_answers(self) -> list[Conversation] | None:
        """The held-out conversations; None where none were kept."""
        if not self.held_out.is_file():
            return None
        entries = torch.load(self.held_out, weights_only=True)
        return [Conversation(entry["ids"], tuple(map(tuple, entry["spans"]))) for entry in entries]

    def drop_caches(self) -> None:
        """Remove what only a resume would need (hundreds of MB)."""
        shutil.rmtree(self.features.parent, ignore_errors=True)


class Journal:
    """The run's state as it changes; every change is on disk at once.

    Args:
        folder: where.
        state: to begin with.
        elapsed: seconds of the run so far.
    """

    def __init__(self, folder: RunFolder, state: RunState, elapsed: Callable[[], float]) -> None:
        self.state, self._folder, self._elapsed = state, folder, elapsed

    def note(self, **changes: Any) -> None:
        """Keep changes, and the time."""
        self.state = self._folder.save(replace(self.state, elapsed_s=self._elapsed(), **changes))


def write_json(path: Path, data: Any) -> None:
    """JSON, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def _save_tensors(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save([dict(entry) for entry in entries], part)
    os.replace(part, path)
