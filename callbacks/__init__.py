"""Lightning callbacks: the projected speedup at every validation, and early stopping on it."""

from typing import TYPE_CHECKING

from .._lazy import lazy_exports

if TYPE_CHECKING:
    from .hook_source import HookSource
    from .sources import AttributeSource, DraftSource, OutputsSource, TTTBatch
    from .speedup_early_stopping import SpeedupEarlyStopping
    from .speedup_monitor import SpeedupMonitor

__all__ = [
    "AttributeSource",
    "DraftSource",
    "HookSource",
    "OutputsSource",
    "SpeedupEarlyStopping",
    "SpeedupMonitor",
    "TTTBatch",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "AttributeSource": ".sources",
        "DraftSource": ".sources",
        "HookSource": ".hook_source",
        "OutputsSource": ".sources",
        "SpeedupEarlyStopping": ".speedup_early_stopping",
        "SpeedupMonitor": ".speedup_monitor",
        "TTTBatch": ".sources",
    },
)
