"""Text of any size, line by line: bounded memory whatever the file holds."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import InputError

__all__ = ["MAX_LINE", "clean", "head", "stream_chunks", "stream_lines"]

MAX_LINE = 64 * 1024
"""Bytes of a line that are read; the rest of a longer one is skipped."""

_GZIP = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def stream_lines(path: str | Path) -> Iterator[bytes]:
    """The lines of a plain or gzip file, without their line ends, each cut at ``MAX_LINE`` bytes.

    A file that breaks off, or whose compression does, ends there: what came before is good.

    Raises:
        InputError: the file can not be opened or read.
    """
    try:
        with _open(Path(path)) as handle:
            while piece := handle.readline(MAX_LINE):
                yield piece.rstrip(b"\r\n")
                while len(piece) == MAX_LINE and not piece.endswith(b"\n"):
                    piece = handle.readline(MAX_LINE)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return
    except OSError as error:
        raise InputError("file", str(path), error.strerror or "can not be read") from None


def stream_chunks(path: str | Path, size: int = 1 << 20, overlap: int = 256) -> Iterator[bytes]:
    """A plain or gzip file piece by piece, each starting with the last ``overlap`` bytes of the one before."""
    kept = b""
    try:
        with _open(Path(path)) as handle:
            while piece := handle.read(size):
                yield kept + piece
                kept = piece[-overlap:] if overlap else b""
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return
    except OSError as error:
        raise InputError("file", str(path), error.strerror or "can not be read") from None


def head(path: str | Path, size: int = 64 * 1024) -> bytes:
    """The first bytes of a plain or gzip file (fewer where it is broken)."""
    try:
        with _open(Path(path)) as handle:
            return handle.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return b""
    except OSError as error:
        raise InputError("file", str(path), error.strerror or "can not be read") from None


def clean(line: bytes) -> str:
    """Text of a line; undecodable bytes are replaced, terminal colours removed."""
    return _COLOUR.sub("", line.decode("utf-8", "replace"))


def _open(path: Path) -> IO[bytes]:
    handle = path.open("rb")
    start = handle.read(2)
    handle.seek(0)
    return gzip.GzipFile(fileobj=handle) if start == _GZIP else handle  # type: ignore[return-value]
