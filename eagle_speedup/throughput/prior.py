"""What is believed of a serving node before it is measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..errors import InputError

__all__ = ["Prior"]


@dataclass(frozen=True, slots=True)
class Prior:
    """Medians, and spreads as standard deviations of a natural logarithm (of the logit for the elasticity).

    The defaults are rounded from fits to published series of nine models on four kinds of node, by the interval score
    of the back-test averaged over models: wide enough that two or three points of a new node outweigh them. What they
    owe to those series, ``benchmarks/backtest.py --leave-out`` tells. A "share" is a share of a plain step.
    """

    elasticity: float = 0.14
    """d log V / d log T at the first octave of tokens per step; 0 = verification is free, 1 = it costs per token."""
    elasticity_spread: float = 1.0
    """Spread of ``elasticity``."""
    elasticity_walk: float = 0.6
    """How far the elasticity moves from one octave to the next."""
    elasticity_beyond: float = 2.1
    """The same beyond the tokens per step of plain steps (and beyond 64 of rounds), where compute may take over or
    experts run out."""
    draft_share: float = 0.04
    """Time of one draft step at batch 1."""
    draft_spread: float = 0.7
    """Spread of ``draft_share``."""
    overhead_share: float = 0.22
    """Fixed time of a round (sampling, bookkeeping, launches) at batch 1."""
    overhead_spread: float = 1.1
    """Spread of ``overhead_share``."""
    growth: float = 0.5
    """Power of V(batch) by which draft steps and fixed time grow with the batch: below 1."""
    growth_spread: float = 1.0
    """Spread of its logit."""
    attention_share: float = 0.01
    """Time per 1,000 tokens of context at batch 1."""
    attention_spread: float = 1.0
    """Spread of ``attention_share``."""
    attention_batch: float = 4.0
    """Requests beyond which attention costs in proportion to the batch."""
    attention_batch_spread: float = 0.8
    """Spread of ``attention_batch``."""
    attention_nodes: float = 0.6
    """Power of the tokens a round verifies by which its attention grows: 0 = a kernel reads a request's cache once for
    all of them, 1 = once for each. Kernels do either, so its spread holds both."""
    attention_nodes_spread: float = 3.5
    """Spread of its logit."""
    outside_share: float = 0.008
    """Time per token outside decoding at batch 1, of a data set or traffic that is named."""
    outside_unnamed: float = 0.0016
    """The same where no point names its workload: such figures are of steady decoding, as a log or a decode benchmark
    shows it. A larger share would pass the bend of a mixture of experts over the batch for time outside."""
    outside_spread: float = 1.0
    """Spread of ``outside_share``, over nodes and again over the workloads of a node."""
    outside_crowding: float = 0.8
    """Power of the batch size (up to 16) by which ``outside_share`` grows: each request waits for all prefills. Two
    drafters of Qwen3-235B on the same data sets at batch 8 want 1, steady decoding of the first node less."""
    tree_factor: float = 1.03
    """Round of a tree over the round of a chain of the same depth and number of nodes."""
    tree_spread: float = 0.09
    """Spread of ``tree_factor``."""
    workload_spread: float = 0.012
    """Scatter of round times between workloads of one node; scaled with ``noise``."""
    config_spread: float = 0.017
    """Scatter of a configuration (depth, tree, batch, context) around the smooth form, as kernels switch and graphs
    pad; scaled with ``noise``."""
    unknown_depth: float = 4.0
    """Depth assumed where a point did not record it."""
    unknown_depth_spread: float = 0.35
    """Spread of ``unknown_depth``."""
    curve: tuple[float, ...] | None = None
    """Elasticities of the octaves of tokens per step, as simulated; None = by ``elasticity`` alone."""
    step_ms: float | None = None
    """Time of a plain step at batch 1 as simulated; None = left to the points."""
    step_spread: float = 0.2
    """Spread of ``step_ms``."""
    noise: float = 0.012
    """Scatter of one measurement; re-estimated from the points."""
    noise_single: float = 0.028
    """By how much more the next run of a single request differs; over the batch size. No calibration tells it, as runs
    are seldom repeated. The first node's runs vary by 4..10 % at concurrency 1, by less than 0.7 % from 8 on."""

    def __post_init__(self) -> None:
        if self.curve is not None:
            if not isinstance(self.curve, (list, tuple)) or not self.curve:
                raise InputError("prior.curve", self.curve, "must be a list of numbers > 0, or null")
            object.__setattr__(self, "curve", tuple(self.curve))
            for i, value in enumerate(self.curve):
                _check_positive(f"prior.curve[{i}]", value)
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name != "curve" and not (f.name == "step_ms" and value is None):
                _check_positive(f"prior.{f.name}", value)
        for name in ("growth", "attention_nodes"):
            if getattr(self, name) >= 1:
                raise InputError(f"prior.{name}", getattr(self, name), "must be below 1")

    def for_verifier(self, *, moe: bool) -> Prior:
        """The belief once the kind of verifier is known: experts make verification dearer, dense weights are shared."""
        return replace(self, elasticity=0.20 if moe else 0.08, elasticity_spread=0.7)

    def as_dict(self) -> dict[str, Any]:
        """All fields that are set, ready for YAML or JSON."""
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {key: value for key, value in plain.items() if value is not None}


def _check_positive(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise InputError(field, value, "must be a finite number > 0")
