"""``eagle-speedup estimate``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ..parser import Parser, add_command, add_context, add_drafter, positive, whole, wholes

__all__ = ["add", "run"]

_DETAILS = """What is known of the drafter, one of:
  --full-acc   joint: share of anchors with steps 1..k all right
  --step-acc   marginal: share with step k right; leaves a bracket open
  --acc        either of these or conditional accuracies; say which with --kind
  --log        a log of speculators, SpecForge, TorchSpec, Model-Optimizer, EAGLE
  --counts     counts of a validation (exact): JSON, or the folder of an offline W&B run

The answer comes in layers: what was measured, the textbook accept length, an upper bound, simple
linear rules, and the calibrated figure with its 90 % interval, which is the one to use.

keys of --json (an estimate is {value, lo, hi}, 90 %; null = not known):
  depth, batch, context_tokens, workload, calibration,
    fingerprint                                              what was asked
  given {kind, values, source}, full_acc, conditionals       what was measured
  accept_length                                              textbook value at depth
  bracket {independence, frechet}                            for marginals; every other value is then
                                                             that of independent steps: use lo and hi
  optimistic {overhead, ratio, tok_s, accept_length, note}   an upper bound, at accept_length.hi
  linear {stated: {breakeven, ratio, tok_s, ratio_range, tok_s_range}, inferred: ..}   simple rules
  calibrated {tok_s, tok_s_per_user, ratio, round_ms, breakeven, baseline_tok_s,
    baseline {tok_s, measured}, is_bracket, is_measured}     the headline; is_measured: else simulated
  verdict {decision: go|no-go|unclear, reason}
  by_depth [{depth, accept_length, round_ms, tok_s, ratio, breakeven, measured}]
  best_depth                                                 of the steps given; 0 = do not speculate
  best_depth_bracket {independence, frechet}                 for marginals, the same at both ends
  best_beyond {as by_depth}                                  a deeper one that might give more: extrapolated
  by_batch [{batch, best_depth, baseline_tok_s, baseline {tok_s, measured}, tok_s, ratio, breakeven,
    tok_s_by_depth, best_depth_bracket, warnings}]           with --batches
  limit {accept_length, tail_conditional, reason, hi}        what more depth can give
  worth_of_a_point [{step, accept_length, tok_s}]            of +0.01 full_acc, by step
  wish {tok_s, depth, accept_length, reachable, conditional} with --want-tok-s
  served {ratio, alarm, message}                             with --served-acc
  what_would_change_it, warnings                             sentences"""

_EXAMPLES = (
    "eagle-speedup estimate --full-acc .742,.47,.29,.15,.097 --calibration kimi_k2_5_origin",
    "eagle-speedup estimate --full-acc .742,.47,.29,.15,.097 -c kimi_k2_5_origin --depth 3 --json",
    "eagle-speedup estimate --step-acc .74,.6,.5 -c my_node.yaml --batches 1,2,4,8 --plot out.png",
    "eagle-speedup estimate --acc .74,.63,.62 --kind conditional -c my_node.yaml --want-tok-s 150",
    "eagle-speedup estimate --log train.log -c my_node.yaml --batch 8 --context 4096",
    "eagle-speedup estimate --full-acc .8,.6 -c kimi_k2_5_origin --set points[0].tok_s=95",
)


def add(commands: Any) -> Parser:
    """Declare the options."""
    parser = add_command(
        commands, "estimate", "From per-step accuracies to tok/s, speedup, and go or no-go.", _DETAILS, _EXAMPLES
    )
    add_drafter(parser)
    add_context(parser)
    parser.add_argument("-d", "--depth", metavar="N", help="draft depth of the headline (default: the steps given)")
    parser.add_argument(
        "--workload", metavar="NAME", help="traffic, as the calibration names it: its prefill counts in"
    )
    parser.add_argument("--batches", metavar="A,B,..", help="find the best depth at each of these batch sizes")
    parser.add_argument("--want-tok-s", metavar="X", help="say what this tok/s of the whole batch would take")
    parser.add_argument(
        "--served-acc", metavar="A[,B,..]", help="per-position acceptance an engine printed: warn if it can not fit"
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw accept length and tok/s over depth")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def run(arguments: Namespace) -> None:
    """Answer."""
    from ...projection.bracket import check_accuracies
    from ..answer import answer
    from ..drafter import given_drafter
    from ..inputs import numbers
    from ..overrides import calibration_with

    served = numbers("served_acc", arguments.served_acc) if arguments.served_acc else []
    result = answer(
        given_drafter(arguments),
        calibration_with(arguments.calibration, arguments.set),
        depth=whole("depth", arguments.depth),
        batch=whole("batch", arguments.batch) or 0,
        context_tokens=positive("context", arguments.context, or_zero=True),
        workload=arguments.workload,
        batches=wholes("batches", arguments.batches),
        want_tok_s=positive("want_tok_s", arguments.want_tok_s),
        served_first_step=check_accuracies("served_acc", served)[0] if served else None,
    )
    if arguments.plot:
        from ..plot import save_plot

        save_plot(result, arguments.plot)
    if arguments.json:
        from ..plain import print_json

        print_json(result.as_dict())
    else:
        from ..layers import show_answer

        show_answer(result)
        if arguments.plot:
            print(f"\nplot written to {arguments.plot}")
