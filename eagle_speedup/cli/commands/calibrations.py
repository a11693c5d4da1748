"""``eagle-speedup calibrations``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ..parser import Parser, add_command

__all__ = ["add", "run"]


def add(commands: Any) -> Parser:
    """Declare the options."""
    parser = add_command(
        commands,
        "calibrations",
        "List the calibrations that ship with the package.",
        "Node, verifier, engine, measured depths and batch sizes, and fingerprint of each.",
        ("eagle-speedup calibrations", "eagle-speedup calibrations --json"),
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def run(arguments: Namespace) -> None:
    """List."""
    from ..listing import list_calibrations, show_calibrations

    rows = list_calibrations()
    if arguments.json:
        from ..plain import print_json

        print_json({"calibrations": rows})
    else:
        show_calibrations(rows)
