"""What the history of validations says: is it still gaining, and where does it end (numpy only)."""

from .forecast import ForecastCurve, forecast_curve, forecast_final
from .stopping import StopDecision, StopReason, decide
from .validation import Validation, best, comparable, crossed_breakeven, paired_gain

__all__ = [
    "ForecastCurve",
    "StopDecision",
    "StopReason",
    "Validation",
    "best",
    "comparable",
    "crossed_breakeven",
    "decide",
    "forecast_curve",
    "forecast_final",
    "paired_gain",
]
