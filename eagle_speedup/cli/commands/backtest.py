"""``eagle-speedup backtest``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ...errors import InputError
from ..parser import Parser, add_command

__all__ = ["add", "run"]

_PROTOCOLS = {
    "A": "calibrated on one data set of a node, predicts its other data sets",
    "B": "calibrated on two depths of a series, predicts the other depths",
    "C": "calibrated on two batch sizes, predicts the rest",
    "D": "calibrated on one drafter of a data set, predicts its other drafters",
    "one": "calibrated on a single point, predicts the rest",
}

_DETAILS = f"""Every measured figure is predicted from calibrations it was kept from, by these protocols:
{chr(10).join(f"  {name:<3}  {what}" for name, what in _PROTOCOLS.items())}
The rule to beat: tok/s = accept length * baseline / c(depth, batch), with c interpolated."""

_EXAMPLES = (
    "eagle-speedup backtest series.yaml",
    "eagle-speedup backtest series.yaml --protocols A,B --json",
)


def add(commands: Any) -> Parser:
    """Declare the options."""
    parser = add_command(commands, "backtest", "How well the model predicts published series.", _DETAILS, _EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="YAML file with a list of series")
    parser.add_argument("--protocols", metavar="A,B,..", default=",".join(_PROTOCOLS), help="which ones (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def run(arguments: Namespace) -> None:
    """Predict and print."""
    from ..backtesting import rows, show_rows

    protocols = tuple(arguments.protocols.replace(",", " ").split())
    for protocol in protocols:
        if protocol not in _PROTOCOLS:
            raise InputError("protocols", protocol, f"must be among {', '.join(_PROTOCOLS)}")
    found = rows(arguments.file, protocols)
    if arguments.json:
        from ..plain import print_json

        print_json({"protocols": found})
    else:
        show_rows(found)
