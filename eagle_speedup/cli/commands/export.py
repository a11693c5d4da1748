"""``eagle-speedup export``."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from ...errors import InputError
from ..parser import Parser, add_command, add_context, add_drafter, positive, whole, wholes

__all__ = ["add", "run"]

FORMATS = ("vllm", "sglang", "table", "json")

_DETAILS = """vllm     the value of --speculative-config; with --batches also the schedule of draft tokens over batch
         sizes that recent versions accept (num_speculative_tokens_per_batch_size)
sglang   --speculative-num-steps and its companions
table    accept length per depth as CSV, for simulators
json     all of it

The depth is the best one unless --depth names another. Warnings go to standard error."""

_EXAMPLES = (
    "eagle-speedup export --full-acc .742,.47,.29,.15,.097 -c kimi_k2_5_origin --format vllm --drafter path/to/drafter",
    "eagle-speedup export --full-acc .8,.6,.45 -c my_node.yaml --batches 1,4,16,64 --format json",
    "eagle-speedup export --counts counts.json -c my_node.yaml --format table > accept_length.csv",
)


def add(commands: Any) -> Parser:
    """Declare the options."""
    parser = add_command(commands, "export", "Serving flags and accept-length tables.", _DETAILS, _EXAMPLES)
    add_drafter(parser)
    add_context(parser)
    parser.add_argument("-d", "--depth", metavar="N", help="draft depth (default: the best one)")
    parser.add_argument("--batches", metavar="A,B,..", help="batch sizes for a schedule")
    parser.add_argument("--drafter", metavar="PATH", default="DRAFTER", help="drafter's path or name for the flags")
    parser.add_argument("--format", metavar="NAME", default="vllm", help=f"one of {', '.join(FORMATS)} (default: vllm)")
    return parser


def run(arguments: Namespace) -> None:
    """Print the export."""
    from ..drafter import given_drafter
    from ..exports import build_export
    from ..overrides import calibration_with

    if arguments.format not in FORMATS:
        raise InputError("format", arguments.format, f"must be one of {', '.join(FORMATS)}")
    export = build_export(
        given_drafter(arguments),
        calibration_with(arguments.calibration, arguments.set),
        drafter=arguments.drafter,
        depth=whole("depth", arguments.depth),
        batch=whole("batch", arguments.batch) or 0,
        context_tokens=positive("context", arguments.context, or_zero=True),
        batches=wholes("batches", arguments.batches),
    )
    if arguments.format == "json":
        from ..plain import print_json

        print_json(export.as_dict())
    else:
        print(getattr(export, arguments.format)())
        for warning in export.warnings:
            print(f"warning: {warning}", file=sys.stderr)
