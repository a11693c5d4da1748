"""Intervals by the delete-one-block jackknife."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .estimate import Estimate

__all__ = ["jackknife", "student_quantile"]

FloatArray = npt.NDArray[np.float64]


def student_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution."""
    from scipy.special import stdtrit  # 0.1 s to import, and `--help` needs none of it

    return float(stdtrit(degrees, probability))


def jackknife(
    block_sums: npt.ArrayLike,
    statistic: Callable[[FloatArray], FloatArray],
    *,
    used: npt.NDArray[np.bool_],
    level: float,
) -> Estimate:
    """Value and interval of a function of additive counts.

    The answers of one block are one independent unit; leaving out one block at a time gives the variance of any smooth
    function of the sums: Var = (g - 1) / g * sum_i (theta_(i) - mean theta_(.))^2 over the g blocks that hold data
    (Efron and Tibshirani, An Introduction to the Bootstrap, section 11.2), with Student's t for g - 1 degrees.

    Args:
        block_sums: [G, F] counts per block.
        statistic: maps sums [..., F] to values [...]; must accept any number of leading axes.
        used: bool [G] blocks that hold data.
        level: level of the interval.

    Returns:
        The estimate; NaN bounds with fewer than two used blocks, NaN throughout with none.
    """
    sums = np.asarray(block_sums, dtype=np.float64)
    total = sums.sum(axis=0)
    groups = int(used.sum())
    if groups == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), level)
    value = float(statistic(total))
    if groups < 2:
        return Estimate(value, float("nan"), float("nan"), level)
    left_out = statistic(total - sums[used])
    spread = (groups - 1) / groups * float(np.square(left_out - left_out.mean()).sum())
    half = student_quantile(0.5 + level / 2, groups - 1) * float(np.sqrt(spread))
    return Estimate.around(value, half, level)
