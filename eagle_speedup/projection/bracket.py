"""Accept length over depth where only accuracies are known and they leave a range open."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import InputError
from ..estimate import Estimate
from .textbook import AcceptLengthCurve

__all__ = ["OVERSTATEMENT", "BracketCurve", "check_accuracies", "conditional_curve", "joint_curve", "marginal_curve"]

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
    return BracketCurve(product, product, rarest, OVERSTATEMENT["marginal", targets])


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
