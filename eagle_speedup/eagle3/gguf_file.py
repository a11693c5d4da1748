"""A reader of the GGUF files this package needs: metadata, and tensors in float32, float16, Q4_1 or Q8_0.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package `gguf` reads every GGUF file, but
takes seconds for a vocabulary of 49,152 tokens; this takes a fraction of one.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagle_speedup.errors import InputError

__all__ = ["GGUFFile"]

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_BLOCK = 32
# Tensor type -> bytes of a block of 32 values.
_BLOCK_BYTES = {0: 4 * _BLOCK, 1: 2 * _BLOCK, 3: 4 + _BLOCK // 2, 8: 2 + _BLOCK}


class GGUFFile:
    """One file, mapped into memory.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        magic, version, tensors, fields = self._data[:4], *self._unpack("<4xIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise InputError("GGUF file", str(path), "must be GGUF of version 2 or 3")
        self.fields: dict[str, Any] = {}
        """Metadata by key."""
        for _ in range(fields):
            key = self._string()
            self.fields[key] = self._value(self._scalar("<I"))
        self._tensors = dict(self._tensor_info() for _ in range(tensors))
        alignment = self.fields.get("general.alignment", 32)
        self._begin = -(-self._at // alignment) * alignment

    def tensor(self, name: str) -> Tensor:
        """The tensor in float32; GGUF lists dimensions fastest first, the result is in PyTorch's order."""
        shape, kind, offset = self._tensors[name]
        if kind not in _BLOCK_BYTES:
            raise InputError(f"tensor {name}", kind, f"must be of a type in {sorted(_BLOCK_BYTES)}")
        size = int(np.prod(shape)) * _BLOCK_BYTES[kind] // _BLOCK
        raw = np.frombuffer(self._data, np.uint8, size, self._begin + offset)
        return torch.from_numpy(_values(raw, kind).reshape(shape[::-1]))

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _scalar(self, layout: str) -> Any:
        return self._unpack(layout)[0]

    def _string(self) -> str:
        length = self._scalar("<Q")
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        kind, count = self._unpack("<IQ")
        if kind in _SCALARS:
            return list(self._unpack(f"<{count}{_SCALARS[kind][1]}"))
        return [self._value(kind) for _ in range(count)]

    def _tensor_info(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name = self._string()
        shape = self._unpack(f"<{self._scalar('<I')}Q")
        return name, (shape, *self._unpack("<IQ"))


def _values(raw: np.ndarray, kind: int) -> np.ndarray:
    if kind in (0, 1):
        return raw.view(np.float32 if kind == 0 else np.float16).astype(np.float32)
    blocks = raw.reshape(-1, _BLOCK_BYTES[kind])
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == 8:
        return blocks[:, 2:].view(np.int8) * scale
    low_high = (blocks[:, 4:] & 15, blocks[:, 4:] >> 4)
    minimum = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    return np.concatenate(low_high, 1) * scale + minimum
