"""Linear layers for a handful of rows on a CPU, where reading the weights is the whole cost.

A verifier that checks one to eight tokens reads every weight once, so a kernel that streams packed weights is
several times faster than `torch.nn.functional.linear`, and its time hardly depends on the number of rows: without it
speculative decoding on a CPU is a slow-down. Two packed kernels are known here, both private to PyTorch, so each is
tried out before use and plain `linear` remains the fallback:

- `onednn`: oneDNN-prepacked float32 weights, the operators that Inductor emits. Exact for every weight.
- `float16`: FBGEMM's float16 weights with float32 arithmetic, half the memory traffic. Exact, and allowed, only
where every weight is
  representable in float16 (see `to_float16_grid`).
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["FewRowLinear", "fastest_training_dtype", "on_float16_grid", "ranked_kernels", "to_float16_grid"]

_FEW_ROWS = 24
_PROBE_SHAPE = (3072, 576)
_PROBE_COPIES = 8  # 57 MB of float32 weights: more than a cache holds, as in a real model

Linear = Callable[[Tensor], Tensor]


def to_float16_grid(weight: Tensor) -> Tensor:
    """`weight` rounded to values that float16 represents, still float32; values beyond its range are clamped."""
    limit = torch.finfo(torch.float16).max
    return weight.float().clamp(-limit, limit).half().float()


def on_float16_grid(weight: Tensor) -> bool:
    """Whether float16 represents every entry of `weight` exactly."""
    return bool(torch.equal(to_float16_grid(weight), weight))


def _pack_plain(weight: Tensor, rows: int) -> Linear:
    del rows
    return lambda x: F.linear(x, weight)


def _pack_onednn(weight: Tensor, rows: int) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: run(x, packed, None, "none", [], "")


def _pack_float16(weight: Tensor, rows: int) -> Linear:
    del rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is marked for removal; hence the capability check and the fallback
        packed = torch.fbgemm_pack_gemm_matrix_fp16(weight)
        torch.fbgemm_linear_fp16_weight_fp32_activation(
            torch.zeros(1, weight.shape[1]), packed, torch.zeros(weight.shape[0])
        )
    run, no_bias = torch.ops.aten.fbgemm_linear_fp16_weight_fp32_activation.default, torch.zeros(weight.shape[0])
    return lambda x: run(x, packed, no_bias)


_PACKERS: dict[str, Callable[[Tensor, int], Linear]] = {
    "float16": _pack_float16,
    "onednn": _pack_onednn,
    "plain": _pack_plain,
}


def _works(name: str) -> bool:
    weight = to_float16_grid(torch.linspace(-1, 1, 64 * 32).reshape(64, 32))
    x = torch.linspace(-2, 1, 3 * 32).reshape(3, 32)
    try:
        return torch.allclose(_PACKERS[name](weight, 8)(x), F.linear(x, weight), atol=1e-4)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        return False


def _seconds(call: Callable[[], object], repetitions: int = 3) -> float:
    call()
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


@functools.lru_cache(maxsize=8)
@torch.no_grad()
def ranked_kernels(rows: int = 4) -> tuple[str, ...]:
    """Names of the kernels that work on this machine, the fastest for `rows` rows first (measured once a process,
    under a second).
    """
    x, timings = torch.ones(rows, _PROBE_SHAPE[1]), {}
    for name in filter(_works, _PACKERS):
        layers = [_PACKERS[name](torch.full(_PROBE_SHAPE, 0.5), max(rows, 8)) for _ in range(_PROBE_COPIES)]
        timings[name] = _seconds(lambda layers=layers: [layer(x) for layer in layers])  # type: ignore[misc]
    return tuple(sorted(timings, key=timings.__getitem__))


class FewRowLinear:
    """`x @ weight.T` without bias for CPU inference, with the fastest kernel for few rows and another one for many.

    Args:
        weight: float32 [out, in]. The packed kernels keep copies of their own.
        kernel: a name of `ranked_kernels` to force, None for the fastest that is exact for this weight.
        many_rows: whether calls with more than 24 rows will come (costs a second packed copy).
    """

    __slots__ = ("_few", "_many", "kernel", "out_features")

    def __init__(self, weight: Tensor, kernel: str | None = None, *, many_rows: bool = True) -> None:
        weight = weight.detach().float().contiguous()
        self.out_features = weight.shape[0]
        if weight.device.type != "cpu":
            self.kernel, self._few = "plain", _pack_plain(weight, 0)
            self._many = self._few
            return
        self.kernel = kernel or _best_exact(weight)
        self._few = _PACKERS[self.kernel](weight, 8)
        many = "onednn" if self.kernel != "plain" and "onednn" in ranked_kernels() else "plain"
        self._many = _PACKERS[many](weight, 64) if many_rows else self._few

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to x [rows, in] (two dimensions); returns [rows, out]."""
        return self._few(x) if x.shape[0] <= _FEW_ROWS else self._many(x)


def _best_exact(weight: Tensor) -> str:
    exact = on_float16_grid(weight)
    return next(name for name in ranked_kernels() if name != "float16" or exact)


@functools.lru_cache(maxsize=1)
@torch.no_grad()
def fastest_training_dtype(device: str = "cpu") -> torch.dtype:
    """float32 or bfloat16, whichever multiplies matrices faster here (a quick measurement: it differs by 8x either
    way between CPUs).

    On a GPU bfloat16 is taken where it is supported.
    """
    if torch.device(device).type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    timings = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.ones(256, 576, dtype=dtype), torch.ones(576, 1536, dtype=dtype)
        timings[dtype] = _seconds(lambda a=a, b=b: a @ b)  # type: ignore[misc]
    # bfloat16 costs casts of weights and activations, so it has to win clearly.
    return torch.bfloat16 if timings[torch.bfloat16] * 1.5 < timings[torch.float32] else torch.float32
