"""The list of shipped calibrations."""

from __future__ import annotations

from typing import Any

from ..throughput import calibration_names, load_calibration
from .console import make_console

__all__ = ["list_calibrations", "show_calibrations"]


def list_calibrations() -> list[dict[str, Any]]:
    """One row per shipped calibration."""
    return [_row(name) for name in calibration_names()]


def _row(name: str) -> dict[str, Any]:
    calibration = load_calibration(name)
    points = calibration.points
    return {
        "name": name,
        "title": calibration.title,
        "node": calibration.node,
        "verifier": calibration.verifier,
        "engine": calibration.engine,
        "depths": sorted({p.depth for p in points if p.depth}),
        "batches": sorted({p.batch for p in points}),
        "points": len(points),
        "fingerprint": calibration.fingerprint,
    }


def show_calibrations(rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    for title in ("calibration", "node", "verifier", "engine", "depths", "batch", "points", "fingerprint"):
        table.add_column(title, no_wrap=title in ("calibration", "fingerprint"), overflow="fold")
    for row in rows:
        depths = _span(row["depths"])
        cells = (row["name"], row["node"], row["verifier"], row["engine"], depths, _span(row["batches"]))
        table.add_row(*(str(c or "-") for c in cells), str(row["points"]), row["fingerprint"])
    make_console().print(table)


def _span(values: list[int]) -> str:
    if not values:
        return ""
    return str(values[0]) if len(values) == 1 else f"{values[0]}..{values[-1]}"
