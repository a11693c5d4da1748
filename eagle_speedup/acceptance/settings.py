"""Options of the metric: their rules, and what must agree for counts to add up."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import InputError
from .checks import INTEGERS

__all__ = ["check_settings", "settings_state", "vocabulary_table", "whole"]

_BITS = 32
_LARGEST_VOCABULARY = 1 << 26  # hundreds of times the largest there is; beyond it the ids are something else


def whole(name: str, value: int, least: int = 1) -> int:
    """The value, if it is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(name, value, f"must be a whole number of at least {least}")
    return value


def vocabulary_table(draft_vocab: Tensor | None, vocab_size: int | None) -> Tensor:
    """Whether an id is in ``draft_vocab``: bool [largest id + 1], in host memory.

    Raises:
        InputError: no integers, a repeated id, or one that is not in [0, vocab_size).
    """
    if draft_vocab is None:
        return torch.zeros(1, dtype=torch.bool, device="cpu")
    if not isinstance(draft_vocab, Tensor) or draft_vocab.dtype not in INTEGERS:
        given = draft_vocab.dtype if isinstance(draft_vocab, Tensor) else type(draft_vocab).__name__
        raise InputError("draft_vocab", given, "must be a tensor of integers, [V_draft] verifier ids")
    ids = draft_vocab.detach().cpu().long().flatten()
    limit = _LARGEST_VOCABULARY if vocab_size is None else vocab_size
    if ids.numel() == 0 or int(ids.min()) < 0 or int(ids.max()) >= limit:
        raise InputError("draft_vocab", ids.tolist()[:8], f"must hold at least one id, all in [0, {limit})")
    if ids.unique().numel() < ids.numel():
        rule = "must name each verifier id once (offsets become ids by absolute_d2t)"
        raise InputError("draft_vocab", ids.tolist()[:8], rule)
    table = torch.zeros(int(ids.max()) + 1, dtype=torch.bool, device="cpu")
    table[ids] = True
    return table


def settings_state(settings: Mapping[str, int | str | Tensor | None]) -> Tensor:
    """Settings as bits, int64 [n, 32]: collections compare the states of metrics with a tolerance that bits exceed.

    Args:
        settings: by name; text and tensors stand by their hash.
    """
    rows = [[_number(value) >> i & 1 for i in range(_BITS)] for value in settings.values()]
    return torch.tensor(rows, dtype=torch.int64, device="cpu")


def _number(value: int | str | Tensor | None) -> int:
    if isinstance(value, str | Tensor):
        content = value.encode() if isinstance(value, str) else value.numpy().tobytes()
        return int.from_bytes(hashlib.sha256(content).digest()[: _BITS // 8], "little")
    return value or 0


def check_settings(settings: Mapping[str, int | str | Tensor | None], other: object) -> None:
    """Refuse a state that was counted with other settings, naming the first that differs."""
    own = settings_state(settings)
    if not isinstance(other, Tensor) or other.shape != own.shape:
        raise InputError("settings", "missing", "must be in the state: these are no counts of such a metric")
    differs = (other.cpu() != own).any(dim=1).tolist()
    for (name, value), found in zip(settings.items(), differs, strict=True):
        if found:
            shown = "another" if isinstance(value, Tensor) else value
            raise InputError(name, shown, "must be what the counts of the state were made with")
