"""What speedup does an EAGLE-3 drafter give at its current accuracy, and is it worth training on?"""

from typing import TYPE_CHECKING

from ._lazy import lazy_exports

if TYPE_CHECKING:
    from .acceptance import AcceptanceCounts, AcceptanceProfile, TTTAcceptance
    from .callbacks import SpeedupEarlyStopping, SpeedupMonitor
    from .errors import InputError
    from .estimate import Estimate
    from .projection import AcceptLengthCurve, SpeedupProjection, project
    from .throughput import Calibration, MeasuredPoint, ThroughputModel, calibrate, load_calibration

__version__ = "0.1.0"

_EXPORTS = {
    "AcceptLengthCurve": ".projection",
    "AcceptanceCounts": ".acceptance",
    "AcceptanceProfile": ".acceptance",
    "Calibration": ".throughput",
    "Estimate": ".estimate",
    "InputError": ".errors",
    "MeasuredPoint": ".throughput",
    "SpeedupEarlyStopping": ".callbacks",
    "SpeedupMonitor": ".callbacks",
    "SpeedupProjection": ".projection",
    "TTTAcceptance": ".acceptance",
    "ThroughputModel": ".throughput",
    "calibrate": ".throughput",
    "load_calibration": ".throughput",
    "project": ".projection",
}

__all__ = [
    "AcceptLengthCurve",
    "AcceptanceCounts",
    "AcceptanceProfile",
    "Calibration",
    "Estimate",
    "InputError",
    "MeasuredPoint",
    "SpeedupEarlyStopping",
    "SpeedupMonitor",
    "SpeedupProjection",
    "TTTAcceptance",
    "ThroughputModel",
    "calibrate",
    "load_calibration",
    "project",
]

__getattr__ = lazy_exports(__name__, _EXPORTS)
