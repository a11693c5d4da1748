"""What a calibration holds, what its files gave, and how well the model fits it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError
from ..throughput import Calibration, save_calibration
from ..throughput.model import canonical_point
from .calibrating import Gathered
from .console import make_console

__all__ = ["report", "save", "show_report"]


def save(calibration: Calibration, path: str) -> Path:
    """Write the calibration; InputError when that is not possible."""
    if Path(path).suffix not in (".yaml", ".yml"):
        raise InputError("out", path, "must end in .yaml")
    try:
        return save_calibration(calibration, path)
    except OSError as error:
        raise InputError("out", path, error.strerror or "can not be written") from None


def report(gathered: Gathered) -> dict[str, Any]:
    """The keys of ``calibrate --json``."""
    calibration = gathered.calibration
    return {
        "name": calibration.name,
        "fingerprint": calibration.fingerprint,
        "files": [
            {
                "file": name,
                "format": reading.format,
                "points": len(reading.points),
                "used": reading.used,
                "dropped": dict(reading.dropped),
                "notes": reading.notes,
            }
            for name, reading in gathered.readings
        ],
        "points": [
            {**point.as_dict(), "round_ms": point.round_ms, "off_fit": off}
            for point, off in zip(calibration.points, _off_fit(calibration), strict=True)
        ],
        "warnings": calibration.caveats,
    }


def show_report(gathered: Gathered, path: Path | None) -> None:
    """Print it for people."""
    console, calibration = make_console(), gathered.calibration
    for name, reading in gathered.readings:
        console.print(f"{name}: {reading.summary()}", markup=False)
        for note in reading.notes:
            console.print(f"  {note}", markup=False)
    console.print(_points_table(calibration))
    for warning in calibration.caveats:
        console.print(f"- {warning}", markup=False)
    console.print(f"calibration {calibration.name}, fingerprint {calibration.fingerprint}", markup=False)
    written = f"written to {path}" if path else "not written: give --out FILE.yaml"
    console.print(written, markup=False)


def _points_table(calibration: Calibration) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("depth", "batch", "context", "accept length", "tok/s", "round ms", "off fit", "workload", "source"):
        table.add_column(title)
    for p, off in zip(calibration.points, _off_fit(calibration), strict=True):
        cells = (p.depth, p.batch, p.context_tokens, p.accept_length, p.total_tok_s)
        table.add_row(
            *("-" if c is None else f"{c:g}" if isinstance(c, float) else str(c) for c in cells),
            "-" if p.round_ms is None else f"{p.round_ms:.2f}",
            "-" if off is None else f"{off:+.1%}",
            p.workload or "-",
            p.source or "-",
        )
    return table


def _off_fit(calibration: Calibration) -> list[float | None]:
    """The model's residual of every point: measured over fitted time, minus 1; None where a point was not used.

    The residual compares like with like (wall clock with wall clock, engine time with engine time), which a point's
    ``round_ms`` over the model's, that of decoding alone, would not.
    """
    points = calibration.points
    used = [i for i, point in enumerate(points) if point.round_ms is not None]
    used.sort(key=lambda i: canonical_point(points[i]))
    residuals = dict(zip(used, calibration.model.residuals, strict=True))
    return [residuals.get(i) for i in range(len(points))]
