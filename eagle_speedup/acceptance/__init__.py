"""From TTT predictions to acceptance counts: spans, hits, the walk, and the metric that adds them up."""

from typing import TYPE_CHECKING

from .._lazy import lazy_exports
from .counts import AcceptanceCounts
from .profile import AcceptanceProfile

if TYPE_CHECKING:
    from .metric import TTTAcceptance

__all__ = ["AcceptanceCounts", "AcceptanceProfile", "TTTAcceptance"]

__getattr__ = lazy_exports(__name__, {"TTTAcceptance": ".metric"})
