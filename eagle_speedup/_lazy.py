"""Package exports that are imported on first use.

``eagle-speedup estimate`` must answer in half a second, so nothing may import torch before something asks for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(package: str, exports: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the module-level ``__getattr__`` (PEP 562) of ``package``.

    Args:
        package: the package's ``__name__``.
        exports: public name -> submodule (relative, as ``".metric"``) that defines it.
    """

    def __getattr__(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(exports[name], package), name)

    return __getattr__
