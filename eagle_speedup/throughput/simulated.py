"""A prior for a node that nobody has measured, from the simulator ``aiconfigurator`` (its successor: ``aisimulate``).

The simulator adds up measured times of operators. Used are its plain steps: their shape over the batch size, which is
the verification curve over tokens per step, their growth with the context, and their level with a wide spread. Its own
estimates of speculative rounds are not used: at batch 8 it prices verification at 2.4 plain steps where 1.6 were
measured. Whatever points exist correct all of it.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import InputError
from .checks import WHAT_TO_MEASURE
from .prior import Prior

__all__ = ["prior_from_steps", "simulated_prior", "simulator"]

_INSTALL = "is not installed (pip install 'eagle-speedup[aisimulate]')"
_MODULES = ("aiconfigurator", "aisimulate")
_SYSTEMS = {
    "b200_x8": "b200_sxm",
    "h100_x8": "h100_sxm",
    "h200_x8": "h200_sxm",
    "rtx_pro_6000_x8": "rtx_pro_6000_server",
}
# Models of the simulator with the shapes of our verifiers; a release with the same shapes stands in for one it lacks.
_MODELS = {
    "kimi_k2_5": "moonshotai/Kimi-K2.5",
    "kimi_k2_6": "moonshotai/Kimi-K2.5",
    "llama_3_1_8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama_3_3_70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3_235b_a22b": "Qwen/Qwen3-235B-A22B",
}
_ENGINES = ("sglang", "vllm", "trtllm")
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_SHORT, _LONG = 512, 16384  # tokens of context
_SHAPE_SPREAD = 0.3  # of the simulated elasticities; the prior without a simulation has 0.7 to 1
_SHAPE_WALK = 0.3  # around the simulated curve; without one the elasticity wanders by more
_ATTENTION_SPREAD = 0.6

Step = Callable[[int, int], float]
"""Milliseconds of a plain step at a batch size and context."""


def prior_from_steps(steps: Mapping[int, float], long_step: float | None = None, base: Prior | None = None) -> Prior:
    """The prior that simulated plain steps give.

    Args:
        steps: milliseconds by batch size: powers of two from 1 on, at a short context (512 tokens).
        long_step: milliseconds at batch 1 and 16,384 tokens of context; None = not simulated.
        base: beliefs for everything else.

    >>> prior_from_steps({1: 10.0, 2: 12.0, 4: 15.0}).curve
    (0.263, 0.3219)
    """
    sizes = sorted(steps)
    if len(sizes) < 2 or sizes != [2**i for i in range(len(sizes))]:
        raise InputError("steps", sizes, "must hold the batch sizes 1, 2, 4, .. without a gap")
    for size in sizes:
        if not (math.isfinite(steps[size]) and steps[size] > 0):
            raise InputError(f"steps[{size}]", steps[size], "must be a finite number > 0")
    growth = [math.log2(steps[b] / steps[a]) for a, b in itertools.pairwise(sizes)]
    prior = replace(
        base or Prior(),
        curve=tuple(round(max(g, 0.01), 4) for g in growth),
        elasticity_spread=_SHAPE_SPREAD,
        elasticity_walk=_SHAPE_WALK,
        step_ms=round(steps[1], 4),
    )
    if long_step is None or long_step <= steps[1]:
        return prior
    share = (long_step / steps[1] - 1) / ((_LONG - _SHORT) / 1000.0)
    return replace(prior, attention_share=round(share, 6), attention_spread=_ATTENTION_SPREAD)


def simulated_prior(
    node: str,
    verifier: str,
    *,
    engine: str = "sglang",
    gpus: int = 8,
    base: Prior | None = None,
    step: Step | None = None,
) -> tuple[Prior, str]:
    """The prior of a shipped node and verifier, and what it was simulated with; about ten simulations.

    Args:
        node: name of a shipped node.
        verifier: name of a shipped verifier.
        engine: serving engine: sglang, vllm or trtllm.
        gpus: tensor parallelism.
        base: beliefs for everything else.
        step: replaces the simulator (for tests).

    Raises:
        InputError: the simulator is missing, or knows no such node or verifier, or fails.
    """
    for field, value, known in (
        ("node", node, _SYSTEMS),
        ("verifier", verifier, _MODELS),
        ("engine", engine, _ENGINES),
    ):
        if value not in known:
            raise InputError(field, value, f"can not be simulated; choose from {', '.join(known)}")
    if step is None:
        step, version = simulator(_MODELS[verifier], _SYSTEMS[node], engine, gpus)
    else:
        version = "given steps"
    steps = {batch: step(batch, _SHORT) for batch in _BATCHES}
    prior = prior_from_steps(steps, step(1, _LONG), base)
    return prior, f"{version}: {_MODELS[verifier]} on {_SYSTEMS[node]}, {engine}, tp {gpus}, plain steps"


def simulator(model: str, system: str, engine: str, gpus: int) -> tuple[Step, str]:
    """Plain steps by the installed simulator, and its name and version."""
    api, version = _find()

    def step(batch: int, context: int) -> float:
        try:
            with _Quiet():
                found = api.cli_estimate(
                    model, system, mode="static_gen", backend_name=engine, database_mode="HYBRID", isl=context, osl=2,
                    batch_size=batch, tp_size=gpus, moe_tp_size=gpus,
                )  # fmt: skip
            return float(found.tpot)
        except Exception as error:  # the simulator's own errors share no base class
            raise InputError("simulation", f"{model} on {system}", f"failed: {error}") from None

    return step, version


def _find() -> tuple[Any, str]:
    for name in _MODULES:
        try:
            api = importlib.import_module(f"{name}.cli.api")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != name:
                raise InputError("simulate", error.name, "is missing, which the simulator needs") from None
            continue
        from importlib.metadata import version

        return api, f"{name} {version(name)}"
    raise InputError("simulate", "aiconfigurator", f"{_INSTALL}; without it: {WHAT_TO_MEASURE}")


class _Quiet:
    """The simulator logs every guess it makes: kept from the user's terminal while it runs."""

    def __enter__(self) -> None:
        self._before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)

    def __exit__(self, *error: object) -> None:
        logging.disable(self._before)
