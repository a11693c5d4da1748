"""Values as JSON holds them."""

from __future__ import annotations

import json
import math
from typing import Any

from ..estimate import Estimate

__all__ = ["plain", "print_json"]


def plain(value: Any) -> Any:
    """``value`` with estimates as ``{"value", "lo", "hi"}`` and, since JSON has neither, NaN and infinity as null."""
    if isinstance(value, Estimate):
        return {"value": plain(value.value), "lo": plain(value.lo), "hi": plain(value.hi)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_json(data: object) -> None:
    """Print ``data`` as indented JSON."""
    print(json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False))
