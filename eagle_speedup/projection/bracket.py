"""Accept length over depth where only accuracies are known and they leave a range open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import InputError
from ..estimate import Estimate
from ..throughput import ThroughputModel
from ..throughput.grid import Band, Grid
from .textbook import AcceptLengthCurve

__all__ = [
    "OVERSTATEMENT",
    "BracketCurve",
    "check_accuracies",
    "conditional_curve",
    "grid_over",
    "joint_curve",
    "marginal_curve",
    "open_bracket",
]

# By how much textbook accept lengths exceeded real decoding over six drafters, at most: by kind of accuracy, and by
# what was done with targets outside the draft vocabulary.
OVERSTATEMENT = {
    ("joint", "miss"): 0.096,
    ("joint", "invisible"): 0.27,
    ("joint", "left out"): 0.38,
    ("marginal", "miss"): 0.035,
    ("marginal", "invisible"): 0.22,
    ("marginal", "left out"): 0.38,
}


@dataclass(frozen=True)
class BracketCurve:
    """Three textbook curves: the lowest and the highest that the accuracies allow, and the one between.

    The interval's lower end is the lowest curve, less what such figures were found to overstate.
    """

    low: AcceptLengthCurve
    middle: AcceptLengthCurve
    high: AcceptLengthCurve
    overstated_at_most: float
    is_open: bool = False
    """Whether between the curves lies ignorance rather than scatter: no value there is likelier than another."""

    @property
    def ttt_steps(self) -> int:
        """Number of steps that were given."""
        return self.middle.ttt_steps

    @property
    def max_depth(self) -> int:
        """Largest depth that is extrapolated to."""
        return self.middle.max_depth

    def accept_length(self, depth: int) -> Estimate:
        """Tokens per round at a depth, bonus token included."""
        value = self.middle.accept_length(depth).value
        lo = _length(self.low, depth, self.low.tail.lo) / (1 + self.overstated_at_most)
        hi = max(value, _length(self.high, depth, self.high.tail.hi))
        return Estimate(value, min(value, max(1.0, lo)), hi, self.middle.level)


def joint_curve(full_acc: list[float], targets: str = "miss") -> BracketCurve:
    """From joint accuracies over all anchors."""
    curve = AcceptLengthCurve.from_full_acc(full_acc)
    return BracketCurve(curve, curve, curve, OVERSTATEMENT["joint", targets])


def conditional_curve(cond_acc: list[float], targets: str = "miss") -> BracketCurve:
    """From conditional accuracies: their running products are the joint ones."""
    return joint_curve(_products(check_accuracies("cond_acc", cond_acc)), targets)


def marginal_curve(step_acc: list[float], targets: str = "miss") -> BracketCurve:
    """From marginal accuracies, which do not determine the joint ones.

    Hits at successive steps go together (stretches of text are easy or hard), so steps 1..k are all right at least as
    often as if they were independent (the product), and never more often than the rarest of them (the Frechet bound).
    The value is the product, which came closest to real decoding.
    """
    values = check_accuracies("step_acc", step_acc)
    product = AcceptLengthCurve.from_full_acc(_products(values))
    rarest = AcceptLengthCurve.from_full_acc([min(values[: k + 1]) for k in range(len(values))])
    return BracketCurve(product, product, rarest, OVERSTATEMENT["marginal", targets], is_open=True)


def open_bracket(lengths: object) -> BracketCurve | None:
    """The accept lengths, where they are an open bracket; None for all others."""
    return lengths if isinstance(lengths, BracketCurve) and lengths.is_open else None


def grid_over(
    model: ThroughputModel,
    lengths: Mapping[int, Estimate],
    batches: Sequence[int],
    context_tokens: float | None = None,
    workload: str | None = None,
    *,
    is_open: bool = False,
) -> Grid:
    """Everything over the depths of ``lengths`` (accept length by depth) and batch sizes, [depth, batch].

    The model takes the accept length's interval for scatter, which its own joins in quadrature. The ends of an open
    bracket are no scatter: tok/s and speedup then reach from the lower end at the lowest accept length to the upper end
    at the highest.
    """
    depths = list(lengths)
    grid = model.grid(depths, batches, context_tokens, lengths, workload)
    if not is_open:
        return grid
    low, high = (
        model.grid(depths, batches, context_tokens, ends, workload)
        for ends in ([length.lo for length in lengths.values()], [length.hi for length in lengths.values()])
    )
    return replace(
        grid,
        tok_s=Band(grid.tok_s.value, low.tok_s.lo, high.tok_s.hi),
        speedup=Band(grid.speedup.value, low.speedup.lo, high.speedup.hi),
    )


def check_accuracies(field: str, values: list[float]) -> list[float]:
    """``values`` if there are some and all lie in [0, 1]."""
    if not values:
        raise InputError(field, values, "must hold at least one accuracy")
    for index, value in enumerate(values):
        if math.isnan(value) or not 0 <= value <= 1:
            raise InputError(f"{field}[{index}]", value, "must lie in [0, 1]")
    return values


def _products(values: list[float]) -> list[float]:
    return [math.prod(values[: k + 1]) for k in range(len(values))]


def _length(curve: AcceptLengthCurve, depth: int, tail: float) -> float:
    """Textbook accept length with a constant conditional beyond the given steps."""
    beyond = range(1, max(0, depth - curve.ttt_steps) + 1)
    return 1 + math.fsum(curve.full_acc[:depth]) + curve.full_acc[-1] * math.fsum(tail**i for i in beyond)
