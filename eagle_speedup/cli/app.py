"""The commands, joined; and the promise that bad input gets one line and exit code 2."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import InputError
from .parser import Parser, UsageError

__all__ = ["COMMANDS", "main"]

COMMANDS = ("estimate", "calibrations", "calibrate", "explain", "export", "backtest", "demo")
"""Command names; each is a module of ``commands`` with ``add(commands)`` and ``run(arguments)``."""

_EXAMPLES = """examples:
  eagle-speedup estimate --full-acc .742,.47,.29,.15,.097 --calibration kimi_k2_5_origin
  eagle-speedup calibrate baseline.log spec.log --name my_node --out my_node.yaml
  eagle-speedup explain -c kimi_k2_5_origin --depth 3
  eagle-speedup demo --minutes 6
  eagle-speedup estimate --help"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on ``argv`` (default: the process's) and return its exit code.

    0 = answered; 2 = input refused, told in one line on standard error; 1 = output not writable; 130 = interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments, unknown = _parser(words).parse_known_args(_joined(words))
        if unknown:
            arguments.parser.error("unrecognized arguments: " + " ".join(unknown))
        arguments.run(arguments)
        sys.stdout.flush()
        return 0
    except (InputError, UsageError) as error:
        return _say(str(error), 2)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except OSError as error:
        # Output that can not be written: its reader has left, or the disk is full. Files named by the user are refused
        # where they are opened. The interpreter shall not complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if isinstance(error, BrokenPipeError) else _say(f"output: {error.strerror or error}", 1)
    except SystemExit as finished:  # argparse leaves this way after --help and --version
        return finished.code if isinstance(finished.code, int) else 0


def _parser(words: Sequence[str]) -> Parser:
    """The parser; where a command is named first, only that command's options are built."""
    parser = Parser(
        prog="eagle-speedup",
        description="What speedup does an EAGLE-3 drafter give at its current accuracy?",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"eagle-speedup {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        module = importlib.import_module(f"{__package__}.commands.{name}")
        command = module.add(commands)
        command.set_defaults(run=module.run, parser=command)
    if not words:
        parser.error("no command given; choose from " + ", ".join(COMMANDS))
    return parser


def _joined(words: Sequence[str]) -> list[str]:
    """``--option -1,2`` as ``--option=-1,2``: argparse would take the negative number for an option."""
    out: list[str] = []
    for word in words:
        if out and re.fullmatch(r"--[a-z-]+", out[-1]) and re.match(r"-[.\d]", word):
            out[-1] += f"={word}"
        else:
            out.append(word)
    return out


def _say(message: str, code: int) -> int:
    print(f"eagle-speedup: {message}", file=sys.stderr)
    return code
