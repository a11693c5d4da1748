"""Accept length and tok/s over depth, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError
from .answer import Answer

__all__ = ["save_plot"]

_SUFFIXES = (".png", ".svg", ".pdf")


def save_plot(answer: Answer, path: str | Path) -> None:
    """Draw accept length against breakeven, and tok/s against no speculation, over depth.

    Raises:
        InputError: not a known kind of picture, matplotlib missing, or the file can not be written.
    """
    path = Path(path)
    if path.suffix not in _SUFFIXES:
        raise InputError("plot", str(path), f"must end in {', '.join(_SUFFIXES)}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InputError("plot", str(path), "needs matplotlib; run: pip install 'eagle-speedup[plot]'") from None
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    lengths, speeds = figure.subplots(1, 2)
    _draw_lengths(lengths, answer)
    _draw_speeds(speeds, answer)
    figure.suptitle(answer.calibration.title or answer.calibration.name, fontsize=10)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError("plot", str(path), error.strerror or "can not be written") from None


def _draw_lengths(axes: Any, answer: Answer) -> None:
    rows = answer.projection.by_depth
    depths = [row.depth for row in rows]
    label = "bracket of the accept length, and if independent" if answer.is_bracket else "accept length"
    _band(axes, depths, [row.accept_length for row in rows], label, "C0")
    _band(axes, depths, [row.breakeven for row in rows], "breakeven", "C3")
    axes.set(xlabel="draft depth", ylabel="tokens per round")
    _mark_measured(axes, answer)


def _draw_speeds(axes: Any, answer: Answer) -> None:
    rows = answer.projection.by_depth
    depths = [row.depth for row in rows]
    known = "calibrated" if answer.calibration.is_measured else "simulated"
    label = f"{known} bracket, and if independent" if answer.is_bracket else f"{known}, 90 %"
    _band(axes, depths, [row.tok_s for row in rows], label, "C0")
    baseline = answer.baseline
    label = "no speculation" if baseline.measured else "no speculation, estimated"
    axes.axhline(baseline.tok_s.value, color="C3", label=label)
    axes.axhspan(baseline.tok_s.lo, baseline.tok_s.hi, color="C3", alpha=0.1)
    axes.set(xlabel="draft depth", ylabel=f"tok/s at batch {answer.projection.batch}", ylim=(0, None))
    _mark_measured(axes, answer)


def _band(axes: Any, depths: list[int], estimates: list[Any], label: str, color: str) -> None:
    axes.plot(depths, [e.value for e in estimates], marker=".", color=color, label=label)
    axes.fill_between(depths, [e.lo for e in estimates], [e.hi for e in estimates], color=color, alpha=0.2)


def _mark_measured(axes: Any, answer: Answer) -> None:
    steps = answer.given.lengths.ttt_steps
    axes.axvline(steps + 0.5, color="0.7", linestyle=":", label=f"beyond the {steps} steps given")
    axes.legend(fontsize=8)
