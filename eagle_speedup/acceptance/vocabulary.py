"""Draft vocabularies: from the drafter's ids to the verifier's."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..errors import InputError
from .checks import is_integer

__all__ = ["D2T_FORMS", "absolute_d2t", "check_absolute", "to_verifier_ids"]

#: ``offset``: verifier id = i + d2t[i] (as EAGLE, SpecForge and vLLM store it); ``absolute``: verifier id = d2t[i].
D2T_FORMS = ("offset", "absolute")

#: Tables found to hold distinct ids: (version of the values that were read, largest id).
_checked = WeakTensorKeyDictionary()


def absolute_d2t(d2t: Tensor, *, form: str | None = None, vocab_size: int | None = None) -> Tensor:
    """The verifier id of every draft id. Reads values: call it once, not per batch.

    Both stored forms list the verifier ids in rising order. Then an offset table never falls and, as frequent tokens
    are neighbours, holds the same offset many times over, while an absolute table rises at every entry. A table that
    fits neither pattern (ids in order of frequency) must come with its ``form``; so must offsets of a vocabulary
    without two neighbouring tokens, which would be read as absolute.

    Args:
        d2t: int64 [V_draft].
        form: ``offset`` or ``absolute``; None = detect.
        vocab_size: V, to check the result against.

    Returns:
        int64 [V_draft].

    Raises:
        InputError: the form can not be told, or an id is repeated or outside [0, V).
    """
    _check_type(d2t)
    if form is None:
        form = _detect(d2t.long())
    if form not in D2T_FORMS:
        raise InputError("form", form, f"must be one of {', '.join(D2T_FORMS)}")
    ids = d2t.long()
    if form == "offset":
        ids = ids + torch.arange(ids.shape[0], device=ids.device)
    _check_ids(ids, vocab_size, f"must give distinct verifier ids in {_range(vocab_size)} under form {form!r}")
    return ids


def check_absolute(d2t: Tensor, vocab_size: int | None = None) -> None:
    """Refuse a table that does not name distinct verifier ids: a table of offsets, which repeat.

    Reads the values of a table at the first call only, as long as it is the same tensor and nobody writes to it.

    Args:
        d2t: int64 [V_draft].
        vocab_size: V; None = not known.

    Raises:
        InputError: it is no vector of integers, or an id is repeated or outside [0, V).
    """
    _check_type(d2t)
    _check_ids(d2t, vocab_size, f"must be absolute ids, see absolute_d2t: each once, in {_range(vocab_size)}")


def _check_ids(ids: Tensor, vocab_size: int | None, rule: str) -> None:
    version = 0 if ids.is_inference() else ids._version  # inference tensors do not count theirs
    known, largest = _checked.get(ids, (None, 0))
    if known != version:
        smallest, largest = int(ids.min()), int(ids.max())
        if smallest < 0:
            raise InputError("d2t", f"from {smallest} to {largest}", rule)
        if ids.unique().shape[0] != ids.shape[0]:
            raise InputError("d2t", ids.tolist()[:8], rule)
        _checked[ids] = (version, largest)
    if vocab_size is not None and largest >= vocab_size:
        raise InputError("d2t", f"up to {largest}", rule)


def _range(vocab_size: int | None) -> str:
    return f"[0, {'V' if vocab_size is None else vocab_size})"


def _check_type(d2t: Tensor) -> None:
    rule = "must be a non-empty int64 vector"
    if not isinstance(d2t, Tensor):
        raise InputError("d2t", type(d2t).__name__, f"{rule}, a tensor")
    if d2t.ndim != 1 or d2t.numel() == 0 or not is_integer(d2t):
        raise InputError("d2t", (tuple(d2t.shape), d2t.dtype), rule)


def _detect(d2t: Tensor) -> str:
    steps = d2t.diff()
    if bool((steps > 0).all()):
        # As offsets this would be a vocabulary without two neighbouring tokens.
        return "absolute"
    if bool((steps >= 0).all()):
        return "offset"
    raise InputError("d2t", d2t.tolist()[:8], "falls, as no table of rising ids does in either form; state form")


def to_verifier_ids(draft_ids: Tensor, d2t: Tensor) -> Tensor:
    """Map drafted ids to the verifier's vocabulary; negative ids (no draft) become -1.

    Args:
        draft_ids: [...] of any integer type, in the draft vocabulary.
        d2t: absolute table of :func:`absolute_d2t`. Its values are checked once: give the same tensor at every batch.

    Returns:
        int64 [...].

    Raises:
        InputError: a table that is not absolute, or an id beyond it (for ids in host memory; an accelerator's own
            assertion stops others).
    """
    check_absolute(d2t)
    if not isinstance(draft_ids, Tensor):
        raise InputError("draft_ids", type(draft_ids).__name__, "must be a tensor of ids")
    if not is_integer(draft_ids):
        raise InputError("draft_ids.dtype", draft_ids.dtype, "must be an integer type")
    ids = draft_ids.long()  # a uint8 index would be read as a mask
    if ids.device.type == "cpu" and (ids.numpy() >= len(d2t)).any():
        raise InputError("draft_ids", int(ids.max()), f"must be below {len(d2t)}, the length of d2t")
    return torch.where(ids >= 0, d2t.long()[ids.clamp(min=0)], -1)
