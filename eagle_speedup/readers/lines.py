"""Text of any size, line by line: bounded memory whatever the file holds."""

from __future__ import annotations

import codecs
import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import InputError

__all__ = ["MAX_LINE", "LineStream", "TextPieces", "clean", "fault_of", "head", "stream_lines"]

MAX_LINE = 64 * 1024
"""Bytes of a line that are read; the rest of a longer one is skipped."""

_GZIP = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SAMPLE = 64  # bytes that show an encoding


class TextPieces:
    """A plain or gzip file as UTF-8, piece by piece; text in UTF-16, as Windows shells redirect it, is transcoded.

    A file whose compression breaks off ends there: what came before is good, and ``fault`` says what happened.

    Raises:
        InputError: while iterating: the file can not be opened or read, or its compression is broken from its start.
    """

    def __init__(self, path: str | Path, size: int = 1 << 20) -> None:
        self.fault: str | None = None
        """What broke off, known once iterated over; None where nothing did."""
        self._path, self._size = Path(path), size

    def __iter__(self) -> Iterator[bytes]:
        self.fault, read = None, 0
        try:
            for piece in _decoded(self._raw()):
                yield piece
                read += len(piece)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            what = "cut off" if isinstance(error, EOFError) else "corrupt"
            if not read:
                raise InputError("file", str(self._path), f"is a gzip file that is {what} before any text") from None
            self.fault = f"the gzip file is {what} after {read} bytes of text: only what comes before was read"
        except OSError as error:
            raise InputError("file", str(self._path), error.strerror or "can not be read") from None

    def _raw(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            source = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file
            # read1, since read() would lose what it had gathered when the compression breaks off.
            while piece := source.read1(self._size):
                yield piece


class LineStream:
    """The lines of a file, each cut at ``MAX_LINE`` bytes, without line ends: LF, CRLF, or the CR of progress bars.

    Where compression breaks off, ``fault`` says so afterwards, and the line it broke off in is left out.

    Raises:
        InputError: while iterating, see ``TextPieces``.
    """

    def __init__(self, path: str | Path) -> None:
        self._pieces = TextPieces(path, MAX_LINE)

    @property
    def fault(self) -> str | None:
        """What broke off, known once iterated over; None where nothing did."""
        return self._pieces.fault

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        for piece in self._pieces:
            text = rest + piece
            whole = text.rstrip(b"\r")  # whether a line feed follows, the next piece says
            lines = whole.splitlines()
            rest = b"" if whole.endswith(b"\n") or not lines else lines.pop()
            for line in lines:
                yield line[:MAX_LINE]
            rest = rest[:MAX_LINE] + text[len(whole) :][:MAX_LINE]
        rest = rest.rstrip(b"\r")
        if rest and self.fault is None:
            yield rest


def stream_lines(path: str | Path) -> LineStream:
    """The lines of a plain or gzip file, see ``LineStream``."""
    return LineStream(path)


def fault_of(source: Iterable[bytes]) -> str | None:
    """What broke off in lines or pieces that were iterated over; None for any other iterable."""
    fault = getattr(source, "fault", None)
    return fault if isinstance(fault, str) else None


def head(path: str | Path, size: int = 64 * 1024) -> bytes:
    """The first bytes of a plain or gzip file, as UTF-8 (fewer where it breaks off).

    Raises:
        InputError: see ``TextPieces``.
    """
    start = b""
    for piece in TextPieces(path, size):
        start += piece
        if len(start) >= size:
            break
    return start[:size]


def clean(line: bytes) -> str:
    """Text of a line; undecodable bytes are replaced, terminal colours removed."""
    return _COLOUR.sub("", line.decode("utf-8", "replace"))


def _decoded(pieces: Iterator[bytes]) -> Iterator[bytes]:
    first = next(pieces, b"")
    encoding = _utf16(first)
    if encoding is None:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for piece in itertools.chain([first], pieces):
        yield decoder.decode(piece).encode("utf-8", "replace")


def _utf16(start: bytes) -> str | None:
    """Name of the 16-bit encoding that a text starts in, by its mark or by the zeros of plain letters."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = start[0:_SAMPLE:2], start[1:_SAMPLE:2]
    if len(odd) < _SAMPLE // 4:
        return None
    if not any(odd) and all(even):
        return "utf-16-le"
    return "utf-16-be" if not any(even) and all(odd) else None
