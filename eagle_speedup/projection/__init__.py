"""From accept length, with a calibration, to tok/s and speedup (numpy only)."""

from .speedup import AcceptLengths, SpeedupProjection, project
from .textbook import AcceptLengthCurve

__all__ = ["AcceptLengthCurve", "AcceptLengths", "SpeedupProjection", "project"]
