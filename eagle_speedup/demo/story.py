"""What the user sees while the demo runs: numbered phases with their time, plain sentences, progress bars."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["Story", "clock_text", "make_console"]

_PIPED_WIDTH = 110
_MAX_WIDTH = 120
_INDENT = (0, 0, 0, 5)


def make_console() -> Console:
    """Standard output, at most 120 columns wide, 110 into a pipe or file."""
    console = Console(file=sys.stdout, highlight=False)
    width = min(console.width, _MAX_WIDTH) if console.is_terminal else _PIPED_WIDTH
    return Console(file=sys.stdout, highlight=False, width=width)


def clock_text(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock_text(75.4)
    '1:15'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Story:
    """Prints the run.

    Args:
        console: where to.
        phases: number of phases to come.
        elapsed: seconds since the start, shown at every phase.
    """

    def __init__(self, console: Console, phases: int, elapsed: Callable[[], float]) -> None:
        self.console = console
        self.durations: dict[str, float] = {}
        """Seconds of every finished phase, by title."""
        self._phases, self._elapsed = phases, elapsed
        self._number = 0

    @contextlib.contextmanager
    def phase(self, title: str) -> Iterator[None]:
        """A numbered phase: its heading now, its duration at the end."""
        self._number += 1
        self.console.print(
            f"\n[bold cyan]{self._number}/{self._phases}[/]  [bold]{title}[/]  [dim]{clock_text(self._elapsed())}[/]"
        )
        start = time.monotonic()
        yield
        self.durations[title] = time.monotonic() - start
        self.say(f"[dim]{self.durations[title]:.1f} s[/]")

    def say(self, text: str, style: str = "") -> None:
        """A sentence under the current phase."""
        self.console.print(Padding(text, _INDENT, style=style, expand=False))

    def warn(self, text: str) -> None:
        """Something the user should know."""
        self.say(f"[bold yellow]note[/] {text}")

    @contextlib.contextmanager
    def bar(self, unit: str, **fields: Any) -> Iterator[Callable[..., None]]:
        """A progress bar that vanishes at its end, none where the output is no terminal.

        Yields ``update(done, total, **fields)``.
        """
        extra = [TextColumn("{task.fields[" + name + "]}") for name in fields]
        columns = (
            TextColumn("    "),
            BarColumn(30),
            MofNCompleteColumn(),
            TextColumn(unit),
            *extra,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task("", total=None, **fields)

            def update(done: int, total: int, **values: Any) -> None:
                progress.update(task, completed=done, total=total, **values)

            yield update
