"""From measured points of a serving node to round time and tok/s."""

from .advice import Advice, Option
from .calibration import Calibration, CalibrationConfig, Source, calibration_names, load_calibration, save_calibration
from .checks import mismatch_alarm
from .compose import compose
from .grid import Band, Grid
from .model import ThroughputModel, calibrate
from .points import MeasuredPoint
from .prior import Prior
from .simple import LinearBreakeven, OptimisticOverhead, affine_round
from .specs import NodeSpec, Quantity, VerifierSpec, load_node, load_verifier

__all__ = [
    "Advice",
    "Band",
    "Calibration",
    "CalibrationConfig",
    "Grid",
    "LinearBreakeven",
    "MeasuredPoint",
    "NodeSpec",
    "OptimisticOverhead",
    "Option",
    "Prior",
    "Quantity",
    "Source",
    "ThroughputModel",
    "VerifierSpec",
    "affine_round",
    "calibrate",
    "calibration_names",
    "compose",
    "load_calibration",
    "load_node",
    "load_verifier",
    "mismatch_alarm",
    "save_calibration",
]
