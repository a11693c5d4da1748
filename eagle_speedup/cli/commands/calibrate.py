"""``eagle-speedup calibrate``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ..parser import Parser, add_command

__all__ = ["add", "run"]

_DETAILS = """Sources, told apart by their content, of any size, plain or gzip:
  vLLM and SGLang server logs        steady intervals only: same requests throughout, no prefill
  Prometheus text of their metrics   one scrape, or two around a steady load: cat before after > file
  results of vllm bench serve, SGLang bench_serving and bench_one_batch, GuideLLM (JSON)
  .yaml                              points as a calibration file holds them
Batch and tok/s are the node's: engines and data-parallel ranks are summed, servers in one log kept apart.

What a file does not say is added after @, separated by commas:
  depth= (0 = no speculation)  batch=  context=  topk=  num_draft_tokens=  workload=  format=
A hint that contradicts its file is refused, and so is a file given twice.

Give a run without speculation and at least two depths; batch sizes as they will be served.

A node nobody has measured: --simulate takes a prior (step time, its growth with batch and context) from
the simulator of pip install 'eagle-speedup[aisimulate]'; about ten simulations of some seconds. Files
correct it; without any, every figure says that it rests on a simulation."""

_EXAMPLES = (
    "eagle-speedup calibrate baseline.log spec.log --name my_node --out my_node.yaml",
    "eagle-speedup calibrate base.json@depth=0 k1.json@depth=1 k5.json@depth=5 --engine vllm --out c.yaml",
    "eagle-speedup calibrate metrics.txt@batch=8,depth=3 points.yaml --node rtx_pro_6000_x8 --verifier kimi_k2_5",
    "eagle-speedup calibrate sglang.log@depth=3,workload=chat --json",
    "eagle-speedup calibrate --simulate --node h100_x8 --verifier llama_3_3_70b --parallelism tp8 --out prior.yaml",
)

_SETUP = (
    ("name", "short name"),
    ("title", "one line for people"),
    ("node", "node configuration: a shipped name, such as rtx_pro_6000_x8, or a file"),
    ("verifier", "verifier configuration: a shipped name, such as kimi_k2_5, or a file"),
    ("engine", "serving engine"),
    ("engine-version", "its version or commit"),
    ("parallelism", "such as tp8"),
    ("draft-sampling", "greedy, onehot or rejection"),
    ("notes", "what a reader must know"),
)


def add(commands: Any) -> Parser:
    """Declare the options."""
    parser = add_command(
        commands, "calibrate", "From server logs and benchmark results to a calibration.", _DETAILS, _EXAMPLES
    )
    parser.add_argument("sources", metavar="SOURCE[@HINTS]", nargs="*", help="log, metrics, result or points")
    parser.add_argument("--simulate", action="store_true", help="take the prior from a simulation of the node")
    for name, meaning in _SETUP:
        parser.add_argument(f"--{name}", metavar="TEXT", help=meaning)
    parser.add_argument("-o", "--out", metavar="FILE.yaml", help="write the calibration here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def run(arguments: Namespace) -> None:
    """Read, fit, show, write."""
    from ..calibrating import gather
    from ..calibration_report import report, save, show_report

    setup = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name, _ in _SETUP}
    gathered = gather(arguments.sources, setup, simulate=arguments.simulate)
    path = None if arguments.out is None else save(gathered.calibration, arguments.out)
    if arguments.json:
        from ..plain import print_json

        print_json({**report(gathered), "written": None if path is None else str(path)})
    else:
        show_report(gathered, path)
