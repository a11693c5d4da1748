"""Argument parsing with one-line errors, and the options that several commands share."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from typing import Any, NoReturn

from ..errors import InputError

__all__ = ["Parser", "UsageError", "add_command", "add_context", "add_drafter", "positive", "whole", "wholes"]


class UsageError(Exception):
    """A command line that can not be understood; the message is one line."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises :class:`UsageError` instead of printing its usage and exiting."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)
        self._words: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, with the words kept: `error` needs them."""
        self._words = tuple(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise, with the nearest known word where one was mistyped."""
        # An option that is missing is often there under a mistyped name, which argparse would name only afterwards.
        mistyped = [w for w in self._words if w.startswith("--") and w.split("=")[0] not in self._option_string_actions]
        if "required" in message and mistyped:
            message = f"unrecognized arguments: {mistyped[0]}"
        raise UsageError(f"{' '.join(message.split())}{self._nearest(message)} (see {self.prog} --help)")

    def _nearest(self, message: str) -> str:
        unknown = re.search(r"unrecognized arguments: (\S+)|invalid choice: '([^']*)'", message)
        if unknown is None:
            return ""
        known = [o for action in self._actions for o in (action.option_strings or action.choices or ())]
        word = next(w for w in unknown.groups() if w is not None)
        near = difflib.get_close_matches(word.split("=")[0], [str(k) for k in known], n=1, cutoff=0.5)
        return f"; did you mean {near[0]}?" if near else ""


def add_command(commands: Any, name: str, summary: str, details: str, examples: tuple[str, ...]) -> Parser:
    """A subcommand whose help is ``summary``, ``details`` and runnable ``examples``."""
    lines = "".join(f"\n  {example}" for example in examples)
    description = f"{summary}\n\n{details}".rstrip()
    parser: Parser = commands.add_parser(name, help=summary, description=description, epilog=f"examples:{lines}")
    return parser


def add_context(parser: Parser, *, batch: bool = True) -> None:
    """``--calibration``, ``--batch`` and ``--context``."""
    parser.add_argument(
        "-c", "--calibration", metavar="NAME|FILE", required=True, help="shipped calibration or YAML file"
    )
    if batch:
        parser.add_argument("-b", "--batch", metavar="N", default="1", help="requests decoded together (default: 1)")
    parser.add_argument("--context", metavar="TOKENS", help="context per request (default: as calibrated)")
    parser.add_argument(
        "--set", metavar="A.B=C", action="append", default=[], help="replace a value of the calibration (repeatable)"
    )


def add_drafter(parser: Parser, *, required: bool = True) -> None:
    """The options that say what is known of a drafter; exactly one of the first five (at most one, if not required)."""
    known = parser.add_mutually_exclusive_group(required=required)
    known.add_argument("--full-acc", metavar="A,B,..", help="joint accuracies: steps 1..k all right, for k = 1, 2, ..")
    known.add_argument("--step-acc", metavar="A,B,..", help="marginal accuracies: step k right, for k = 1, 2, ..")
    known.add_argument("--acc", metavar="A,B,..", help="accuracies of the kind that --kind names")
    known.add_argument("--log", metavar="FILE", help="trainer log; its last validation counts")
    known.add_argument("--counts", metavar="FILE", help="counts of a validation: JSON, or an offline W&B run")
    parser.add_argument("--kind", metavar="KIND", help="joint, marginal or conditional; only with --acc")


def whole(field: str, text: str | None, least: int | None = None) -> int | None:
    """A whole number (not below ``least``) from an option's text; None stays None."""
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        raise InputError(field, text, "must be a whole number") from None
    if least is not None and value < least:
        raise InputError(field, value, f"must be a whole number >= {least}")
    return value


def wholes(field: str, text: str | None) -> list[int]:
    """Whole numbers, at least one, from ``"1,2,4"``; none from None."""
    items = [] if text is None else text.replace(",", " ").split()
    if text is not None and not items:
        raise InputError(field, text, "must hold at least one whole number >= 1")
    return [value for i, item in enumerate(items) if (value := whole(f"{field}[{i}]", item, 1)) is not None]


def positive(field: str, text: str | None, *, or_zero: bool = False) -> float | None:
    """A finite number > 0 (or 0, if that is allowed) from an option's text; None stays None."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and (value > 0 or (or_zero and value == 0))):
        raise InputError(field, text, f"must be a finite number {'>= 0' if or_zero else '> 0'}")
    return value
