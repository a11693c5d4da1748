"""``eagle-speedup explain``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ..parser import Parser, add_command, add_context, add_drafter, positive, whole

__all__ = ["add", "run"]

_DETAILS = """Splits a round into what physics demands of it (reading the verifier's weights: for a mixture of
experts those that batch * (depth + 1) tokens touch; all-reduces; the drafter) and the rest, next to a
plain step, and says what each lever would buy. Floors come from the node's and verifier's figures,
the round itself from the calibration. With accuracies, the levers include accuracy and depth."""

_EXAMPLES = (
    "eagle-speedup explain -c kimi_k2_5_origin --depth 3",
    "eagle-speedup explain -c kimi_k2_5_origin --full-acc .742,.47,.29,.15,.097",
    "eagle-speedup explain -c my_node.yaml --node my_node_spec.yaml --verifier kimi_k2_5 --batch 8 --depth 3 --json",
)


def add(commands: Any) -> Parser:
    """Declare the options."""
    parser = add_command(
        commands, "explain", "Where the time of a round goes, and what each lever buys.", _DETAILS, _EXAMPLES
    )
    add_drafter(parser, required=False)
    add_context(parser)
    parser.add_argument("-d", "--depth", metavar="N", help="draft depth (default: the steps given, else 3)")
    parser.add_argument("--node", metavar="NAME|FILE", help="node (default: the calibration's)")
    parser.add_argument("--verifier", metavar="NAME|FILE", help="verifier (default: the calibration's)")
    parser.add_argument(
        "--gpus", metavar="N", help="accelerators that hold the verifier (default: as calibrated, else all)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def run(arguments: Namespace) -> None:
    """Explain."""
    from ..drafter import given_drafter
    from ..explaining import explain, show_explanation
    from ..overrides import calibration_with

    described = (arguments.full_acc, arguments.step_acc, arguments.acc, arguments.log, arguments.counts)
    explanation = explain(
        calibration_with(arguments.calibration, arguments.set),
        given=given_drafter(arguments) if any(d is not None for d in described) else None,
        node=arguments.node,
        verifier=arguments.verifier,
        depth=whole("depth", arguments.depth),
        batch=whole("batch", arguments.batch) or 0,
        context_tokens=positive("context", arguments.context, or_zero=True),
        gpus=whole("gpus", arguments.gpus, 1),
    )
    if arguments.json:
        from ..plain import print_json

        print_json(explanation.as_dict())
    else:
        show_explanation(explanation)
