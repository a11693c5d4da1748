"""Figures of a backtest, per protocol and over all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..throughput.backtest import Prediction, backtest, load_series, summarise
from .console import make_console

__all__ = ["rows", "show_rows"]

_COLUMNS = (
    ("predictions", "n", "{}"),
    ("median error", "median", "{:.1%}"),
    ("90th pct.", "p90", "{:.1%}"),
    ("coverage of 90 %", "coverage", "{:.1%}"),
    ("half-width", "half_width", "{:.1%}"),
    ("rule median", "rule_median", "{:.1%}"),
    ("rule 90th pct.", "rule_p90", "{:.1%}"),
    ("regret", "regret", "{:.1%}"),
)


def rows(path: str, protocols: Sequence[str]) -> list[dict[str, Any]]:
    """One row per protocol, one over all of them, and one over those the model itself flagged as inconsistent."""
    predictions = backtest(load_series(path), tuple(protocols))
    if not predictions:
        raise InputError("file", path, "holds no series with a baseline and accept lengths to predict from")
    sound = [p for p in predictions if not p.flagged]
    groups = [(name, [p for p in sound if p.protocol == name]) for name in protocols]
    groups += [("all", sound), ("flagged", [p for p in predictions if p.flagged])]
    return [_row(name, group) for name, group in groups if group]


def show_rows(found: Sequence[dict[str, Any]]) -> None:
    """Print them as a table."""
    from rich.table import Table

    table = Table("protocol", *(title for title, _, _ in _COLUMNS), box=None, padding=(0, 2, 0, 0))
    for row in found:
        cells = ("-" if math.isnan(row[key]) else form.format(row[key]) for _, key, form in _COLUMNS)
        table.add_row(row["protocol"], *cells)
    make_console().print(table)


def _row(name: str, predictions: list[Prediction]) -> dict[str, Any]:
    return {"protocol": name, **vars(summarise(predictions))}
