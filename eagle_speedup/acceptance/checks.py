"""What an update refuses, by field, value and rule: what shapes and types tell at once, and what only values tell."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError

__all__ = ["INTEGERS", "SHAPES", "VALUE_RULES", "check_tensors", "count_broken", "is_integer"]

#: Rules about values. On an accelerator, reading them would wait for it, so they are counted there.
VALUE_RULES = {
    "sequence_index": "must be at least 0, and below sequences where that is given",
    "target_ids": "must be ids of the vocabulary inside an answer (a label of -100 is none)",
    "draft_ids": "must be -1 or ids the drafter can produce, in the verifier's vocabulary (not mapped by d2t?)",
    "accept_prob": "must lie in [0, 1]",
}

#: Types of ids and indices.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
#: What every input of `TTTAcceptance.update` looks like.
SHAPES = {
    "draft_ids": "[K, B, T]",
    "target_ids": "[B, T]",
    "spans": "[S, 3]",
    "sequence_index": "[B]",
    "block_index": "[B]",
    "accept_prob": "[K, B, T]",
    "verifier_ids": "[B, T]",
}


def is_integer(tensor: Tensor) -> bool:
    """Whether a tensor is of any integer type, those included that ``update`` does not take."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def check_tensors(tensors: dict[str, Tensor | None], ttt_steps: int, device: torch.device) -> None:
    """Raise an :class:`InputError` about the first tensor of a wrong type, shape or device. Reads no values.

    Args:
        tensors: by name of the argument of ``update``; None where an optional one was not given.
        ttt_steps: K.
        device: where the counts are. Spans and sequence numbers may be in host memory.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for name in ("draft_ids", "target_ids", "spans"):
        if name not in given:
            raise InputError(name, None, f"must be a tensor {SHAPES[name]}")
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise InputError(name, type(tensor).__name__, f"must be a tensor {SHAPES[name]}")
        if name == "accept_prob":
            if not tensor.is_floating_point():
                raise InputError("accept_prob.dtype", tensor.dtype, "must be a floating-point type")
        elif tensor.dtype not in INTEGERS:
            raise InputError(f"{name}.dtype", tensor.dtype, "must be an integer type (ids, not logits or masks)")
    target = given["target_ids"]
    if target.ndim != 2:
        raise InputError("target_ids.shape", tuple(target.shape), "must be [B, T]")
    if given["spans"].ndim != 2 or given["spans"].shape[1] != 3:
        raise InputError("spans.shape", tuple(given["spans"].shape), "must be [S, 3] rows (row, P, E)")
    sizes = {"K": ttt_steps, "B": target.shape[0], "T": target.shape[1]}
    for name, tensor in given.items():
        if name == "spans":
            continue
        shape = [sizes[axis] for axis in SHAPES[name].strip("[]").split(", ")]
        if list(tensor.shape) != shape:
            raise InputError(f"{name}.shape", tuple(tensor.shape), f"must be {SHAPES[name]} = {shape}")
        if tensor.device != device and name not in ("sequence_index", "block_index"):
            raise InputError(f"{name}.device", tensor.device, f"must be {device}, as the metric (see metric.to)")
    if not target.numel() and len(given["spans"]):
        raise InputError("spans", f"{len(given['spans'])} rows", "must be none where target_ids is empty")


def count_broken(name: str, values: Tensor, broken: Tensor) -> Tensor:
    """Number of values that break their rule, as a tensor; raises at once where they are in host memory."""
    if broken.device.type == "cpu" and broken.numpy().any():
        place = tuple(int(i) for i in np.argwhere(broken.numpy())[0])
        raise InputError(f"{name}[{', '.join(map(str, place))}]", values[place].item(), VALUE_RULES[name])
    return broken.sum()
