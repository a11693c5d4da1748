"""Where text goes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["make_console"]

_PIPED_WIDTH = 110
_MAX_WIDTH = 120


def make_console() -> Console:
    """A console on standard output: the terminal's width up to 120 columns, 110 columns into a pipe or file."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, emoji=False)
    width = min(console.width, _MAX_WIDTH) if console.is_terminal else _PIPED_WIDTH
    return Console(file=sys.stdout, highlight=False, emoji=False, width=width)
