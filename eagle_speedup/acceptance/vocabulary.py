"""Draft vocabularies: from the drafter's ids to the verifier's."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError

__all__ = ["D2T_FORMS", "absolute_d2t", "to_verifier_ids"]

#: ``offset``: verifier id = i + d2t[i] (as EAGLE, SpecForge and vLLM store it); ``absolute``: verifier id = d2t[i].
D2T_FORMS = ("offset", "absolute")


def absolute_d2t(d2t: Tensor, *, form: str | None = None, vocab_size: int | None = None) -> Tensor:
    """The verifier id of every draft id. Reads values: call it once, not per batch.

    Both stored forms list the verifier ids in rising order. Then an offset table never falls and, as frequent tokens
    are neighbours, holds the same offset many times over, while an absolute table never repeats. A table that fits
    neither pattern must come with its ``form``; so must offsets of a vocabulary without two neighbouring tokens.

    Args:
        d2t: int64 [V_draft].
        form: ``offset`` or ``absolute``; None = detect.
        vocab_size: V, to check the result against.

    Raises:
        InputError: the form can not be told, or an id is repeated or outside [0, V).
    """
    if d2t.ndim != 1 or d2t.numel() == 0 or d2t.is_floating_point():
        raise InputError("d2t", (tuple(d2t.shape), d2t.dtype), "must be a non-empty int64 vector")
    if form is None:
        form = _detect(d2t)
    if form not in D2T_FORMS:
        raise InputError("form", form, f"must be one of {', '.join(D2T_FORMS)}")
    ids = d2t.long()
    if form == "offset":
        ids = ids + torch.arange(ids.shape[0], device=ids.device)
    smallest, largest = int(ids.min()), int(ids.max())
    if smallest < 0 or (vocab_size is not None and largest >= vocab_size):
        raise InputError("d2t", (smallest, largest), f"verifier ids must lie in [0, {vocab_size}) under form {form!r}")
    if ids.unique().shape[0] != ids.shape[0]:
        raise InputError("d2t", form, "two draft ids may not stand for one verifier id; is this the form?")
    return ids


def _detect(d2t: Tensor) -> str:
    repeats = d2t.unique().shape[0] < d2t.shape[0]
    falls = bool((d2t[1:] < d2t[:-1]).any())
    if not repeats:
        # Rising without one repetition: as offsets this would be a vocabulary without two neighbouring tokens.
        return "absolute"
    if not falls:
        return "offset"
    raise InputError("d2t", d2t.tolist()[:8], "falls and repeats: neither an offset nor an absolute table; state form")


def to_verifier_ids(draft_ids: Tensor, d2t: Tensor) -> Tensor:
    """Map drafted ids to the verifier's vocabulary; negative ids (no draft) become -1.

    Args:
        draft_ids: int64 [...] in the draft vocabulary.
        d2t: absolute table of :func:`absolute_d2t`.

    Raises:
        InputError: an id beyond the table, for tensors in host memory (an accelerator's own assertion stops others).
    """
    if draft_ids.is_floating_point() or draft_ids.dtype == torch.bool:
        raise InputError("draft_ids.dtype", draft_ids.dtype, "must be an integer type")
    if draft_ids.device.type == "cpu" and (draft_ids.numpy() >= len(d2t)).any():
        raise InputError("draft_ids", int(draft_ids.max()), f"must be below {len(d2t)}, the length of d2t")
    return torch.where(draft_ids >= 0, d2t[draft_ids.clamp(min=0)], -1)
