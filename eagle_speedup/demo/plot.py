"""The training as a picture: accept length and tok/s with their bands, breakeven, best checkpoint, stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..estimate import Estimate
from ..projection import SpeedupProjection
from ..throughput import Calibration
from .training import MainFit

__all__ = ["plot_training"]

_OFFSET = {"textcoords": "offset points"}
_SAME_PLACE = 0.012  # accept lengths closer than this share a label
Pick = Callable[[SpeedupProjection], Estimate]


def plot_training(path: Path, fit: MainFit, calibration: Calibration, verifier: str) -> Path:
    """Write the PNG.

    Args:
        path: where.
        fit: its history, best checkpoint and end.
        calibration: that the history was projected with.
        verifier: its name.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(10.5, 6.5), layout="constrained")
    figure.suptitle(f"EAGLE-3 drafter of {verifier}, projected with calibration {calibration.name}", fontsize="medium")
    _accept_lengths(upper, fit)
    _curve(lower, fit, lambda p: p.tok_s, "tab:green", "projected tok/s at the best depth d")
    _name_depths(lower, fit)
    plain = calibration.model.tok_s(1.0, 0).value
    lower.axhline(plain, linestyle="--", color="tab:red", label=f"no speculation, {plain:.0f} tok/s")
    lower.set_xlabel("optimiser step")
    for axis, unit in ((upper, "accept length"), (lower, "tok/s")):
        axis.axvline(fit.best.global_step, linestyle=":", color="tab:gray", label="best checkpoint")
        axis.axvline(
            fit.steps, linestyle="-.", color="black", linewidth=1, label=f"stop: {fit.reason.replace('_', ' ')}"
        )
        axis.set_ylabel(unit)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))  # beside: it would hide the band
    upper.margins(x=0.08)  # room for the names of the depths
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _curve(axis: Any, fit: MainFit, pick: Pick, color: str, label: str) -> None:
    steps, values = [v.global_step for v in fit.history], [pick(v.projected) for v in fit.history]
    axis.fill_between(steps, [e.lo for e in values], [e.hi for e in values], color=color, alpha=0.2, label="90 % band")
    axis.plot(steps, [e.value for e in values], "o-", color=color, markersize=4, label=label)


def _accept_lengths(axis: Any, fit: MainFit) -> None:
    """One depth throughout, the one the best checkpoint serves fastest at; the others as thin lines."""
    chosen, steps = fit.best.projected.depth, [v.global_step for v in fit.history]
    names: list[tuple[float, str]] = []
    for point in fit.best.projected.by_depth:
        if point.depth != chosen:
            values = [v.projected.by_depth[point.depth - 1].accept_length.value for v in fit.history]
            axis.plot(steps, values, color="tab:blue", linewidth=0.7, alpha=0.5)
            if names and abs(names[-1][0] - values[0]) < _SAME_PLACE:
                names[-1] = (names[-1][0], f"{names[-1][1]}, d{point.depth}")
            else:
                names.append((values[0], f"d{point.depth}"))
    for value, name in names:
        axis.annotate(name, (steps[0], value), fontsize=7, ha="right", xytext=(-3, -2), **_OFFSET)
    _curve(axis, fit, lambda p: p.by_depth[chosen - 1].accept_length, "tab:blue", f"accept length at depth {chosen}")
    breakeven = fit.best.projected.breakeven.value
    axis.axhline(breakeven, linestyle="--", color="tab:red", label=f"breakeven at depth {chosen}, {breakeven:.2f}")


def _name_depths(axis: Any, fit: MainFit) -> None:
    for validation in fit.history:
        place = (validation.global_step, validation.tok_s)
        axis.annotate(f"d{validation.projected.depth}", place, fontsize=7, xytext=(2, 5), **_OFFSET)
