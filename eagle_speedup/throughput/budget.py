"""Where a round's time goes, as far as the node's and the verifier's figures tell; the rest is named as such."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError
from .specs import AllReduce, NodeSpec, VerifierSpec

__all__ = ["Budget", "all_reduce_us", "distinct_experts", "round_budget", "weight_gb"]

_BYTES_16 = 2.0  # activations and drafter weights travel in 16 bits
_DRAFTER_LAYERS = 1
_ALL_REDUCES_PER_LAYER = 2


@dataclass(frozen=True)
class Budget:
    """Floors of one round (depth 0: of a plain step), in milliseconds."""

    depth: int
    batch: int
    tokens: int
    """Tokens the verifier checks: batch * (depth + 1)."""
    weight_gb: float
    """Bytes of weights the verifier reads over all accelerators, 1e9."""
    distinct_experts: float | None
    """Routed experts a layer touches; None for a dense verifier."""
    weights_ms: float
    """Reading them at the memory's full bandwidth."""
    cache_ms: float | None
    """Reading the context's keys and values; None where the context is not known."""
    all_reduces: int
    """Of the verifier and the drafter together."""
    all_reduce_bytes: int
    """Size of one of the verifier's."""
    all_reduce_ms: float | None
    """All of them by the fastest measured variant; None where none was measured."""
    all_reduce_slow_ms: float | None
    """All of them by the slowest measured variant."""
    draft_ms: float | None
    """Reading the drafter's weights, once per draft step; None where its size is not known."""
    measured_ms: float
    """By the calibration."""
    all_reduce_note: str | None = None
    """Why the time of the all-reduces is not known, and so not part of the floor; None where it is, or none run."""

    @property
    def floor_ms(self) -> float:
        """Sum of the floors."""
        return self.weights_ms + (self.cache_ms or 0.0) + (self.all_reduce_ms or 0.0) + (self.draft_ms or 0.0)

    @property
    def rest_ms(self) -> float:
        """What the floors leave: launches, latency, attention, sampling, scheduling."""
        return self.measured_ms - self.floor_ms


def round_budget(
    node: NodeSpec,
    verifier: VerifierSpec,
    *,
    depth: int,
    batch: int,
    measured_ms: float,
    context_tokens: float | None = None,
    gpus: int | None = None,
) -> Budget:
    """Floors of a round of ``depth`` drafts at ``batch``, on ``gpus`` of the node's accelerators (default: all).

    Raises:
        InputError: a constant that is needed is not in the specifications.
    """
    tokens = batch * (depth + 1)
    gpus = node.gpu_count if gpus is None else gpus
    if not 1 <= gpus <= node.gpu_count:
        raise InputError("gpus", gpus, f"must be a whole number in [1, {node.gpu_count}]")
    bandwidth = _need(node, "memory_bandwidth_gb_s") * gpus / 1000  # GB per ms
    hidden = _need(verifier, "hidden_size")
    size = int(tokens * hidden * _BYTES_16)
    of_verifier = int(_get(verifier, "all_reduces_per_step", _ALL_REDUCES_PER_LAYER * _need(verifier, "layers")))
    of_drafter = depth * _DRAFTER_LAYERS * _ALL_REDUCES_PER_LAYER
    measured = node.all_reduce if gpus == node.gpu_count else ()  # latencies of fewer are other latencies
    of_draft_step = int(batch * hidden * _BYTES_16)
    rate = _all_reduce_gb_s(node, gpus)
    fast, slow = _all_reduce_range(measured, size, rate) if gpus > 1 else (0.0, 0.0)
    draft_fast, draft_slow = _all_reduce_range(measured, of_draft_step, rate) if gpus > 1 else (0.0, 0.0)
    weights = weight_gb(verifier, tokens)
    drafter = verifier.get("drafter_params_b") if depth else 0.0
    cache = None if context_tokens is None else _cache_gb(verifier, batch * context_tokens, gpus)
    return Budget(
        depth=depth,
        batch=batch,
        tokens=tokens,
        weight_gb=weights,
        distinct_experts=distinct_experts(verifier, tokens) if verifier.moe else None,
        weights_ms=weights / bandwidth,
        cache_ms=None if cache is None else cache / bandwidth,
        all_reduces=of_verifier + of_drafter if gpus > 1 else 0,
        all_reduce_bytes=size,
        all_reduce_ms=_total_ms(of_verifier, fast, of_drafter, draft_fast),
        all_reduce_slow_ms=_total_ms(of_verifier, slow, of_drafter, draft_slow),
        draft_ms=None if drafter is None else depth * drafter * _BYTES_16 / bandwidth,
        measured_ms=measured_ms,
        all_reduce_note=_all_reduce_note(node, gpus),
    )


def distinct_experts(verifier: VerifierSpec, tokens: int) -> float:
    """Routed experts that ``tokens`` tokens touch in a layer: E * (1 - (1 - k/E)^tokens).

    Routing is taken as uniform and independent, so the count is on the high side. For 384 experts, 8 active:

    tokens 1, 2, 4, 8 -> 8.0, 15.8, 31.0, 59.5
    """
    experts, active = _need(verifier, "routed_experts"), _need(verifier, "active_experts")
    return experts * (1 - (1 - active / experts) ** tokens)


def weight_gb(verifier: VerifierSpec, tokens: int) -> float:
    """1e9 bytes of weights that a step over ``tokens`` tokens reads, the output head included, embeddings left out."""
    hidden, layers = _need(verifier, "hidden_size"), _need(verifier, "layers")
    bytes_each = _need(verifier, "weight_bits") / 8
    dense_layers = _get(verifier, "dense_layers", 0.0) if verifier.moe else layers
    shared = layers * _attention_params(verifier) + hidden * _need(verifier, "vocab_size")
    if dense_layers:
        shared += dense_layers * 3 * hidden * _need(verifier, "intermediate_size")
    total = shared * bytes_each
    if verifier.moe:
        expert = 3 * hidden * _need(verifier, "expert_intermediate_size")
        moe_layers = layers - dense_layers
        always = _get(verifier, "shared_experts", 0.0) * expert + hidden * _need(verifier, "routed_experts")
        expert_bytes = _get(verifier, "expert_weight_bits", 8 * bytes_each) / 8
        total += moe_layers * (always * bytes_each + distinct_experts(verifier, tokens) * expert * expert_bytes)
    return total / 1e9


def all_reduce_us(measured: Sequence[AllReduce], message_bytes: float, gb_s: float | None = None) -> float:
    """Microseconds of one all-reduce, interpolated over the logarithm of the size.

    Above the sizes, only the bytes beyond the largest take more time: at ``gb_s`` (1e9 bytes of message a second), or
    as between the two largest where that is not known. Latency does not grow with the size.
    """
    points = sorted((a.message_bytes, a.latency_us) for a in measured)
    sizes, times = [size for size, _ in points], [time for _, time in points]
    if message_bytes <= sizes[0]:
        return times[0]
    if message_bytes >= sizes[-1]:
        return times[-1] + (message_bytes - sizes[-1]) * _us_per_byte(sizes, times, gb_s)
    right = next(i for i, size in enumerate(sizes) if size >= message_bytes)
    share = math.log(message_bytes / sizes[right - 1]) / math.log(sizes[right] / sizes[right - 1])
    return times[right - 1] + share * (times[right] - times[right - 1])


def _us_per_byte(sizes: Sequence[float], times: Sequence[float], gb_s: float | None) -> float:
    """Microseconds that a byte more takes beyond the largest size."""
    if gb_s is not None:
        return 1 / (1000 * gb_s)
    if len(sizes) < 2 or sizes[-1] == sizes[-2]:
        return 0.0  # one size tells no slope; leaving the growth out keeps a floor a floor
    return max(0.0, times[-1] - times[-2]) / (sizes[-1] - sizes[-2])


def _all_reduce_gb_s(node: NodeSpec, gpus: int) -> float | None:
    """1e9 bytes of message a second; None where the bandwidth is not known.

    The bus figure counts what passes each link, 2 * (n - 1) / n times the message.
    """
    bus = node.get("all_reduce_bus_gb_s")
    return bus * gpus / (2 * (gpus - 1)) if bus and gpus > 1 else None


def _all_reduce_range(
    measured: Sequence[AllReduce], size: int, gb_s: float | None
) -> tuple[float | None, float | None]:
    """Fastest and slowest variant at a size, in microseconds."""
    variants = {a.variant for a in measured}
    times = [all_reduce_us([a for a in measured if a.variant == variant], size, gb_s) for variant in variants]
    return (min(times), max(times)) if times else (None, None)


def _all_reduce_note(node: NodeSpec, gpus: int) -> str | None:
    """Why the all-reduces over ``gpus`` accelerators have no time; None where they have one, or do not happen."""
    if gpus == 1 or (node.all_reduce and gpus == node.gpu_count):
        return None
    if not node.all_reduce:
        return f"no all-reduce of {node.name} was measured, so the floor leaves their time out"
    return (
        f"the all-reduces of {node.name} were measured for {node.gpu_count} accelerators and are not known for {gpus}, "
        "so the floor leaves their time out"
    )


def _total_ms(count: int, each_us: float | None, more: int, more_each_us: float | None) -> float | None:
    if each_us is None or more_each_us is None:
        return None
    return (count * each_us + more * more_each_us) / 1000


def _attention_params(verifier: VerifierSpec) -> float:
    """Parameters of one attention block: multi-head latent attention where its ranks are given, grouped otherwise."""
    hidden, heads = _need(verifier, "hidden_size"), _need(verifier, "attention_heads")
    rank = verifier.get("kv_lora_rank")
    if rank is None:
        width = _need(verifier, "head_dim")
        return hidden * width * 2 * (heads + _need(verifier, "kv_heads"))
    names = ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    q_rank, nope, rope, value = (_need(verifier, name) for name in names)
    queries = hidden * q_rank + q_rank * heads * (nope + rope)
    return queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden


def _cache_gb(verifier: VerifierSpec, tokens: float, gpus: int) -> float:
    """1e9 bytes of 16-bit keys and values of ``tokens`` tokens, read over all accelerators.

    The latent of multi-head latent attention can not be split over heads: under tensor parallelism every accelerator
    reads all of it.
    """
    rank = verifier.get("kv_lora_rank")
    if rank is not None:
        width = (rank + _need(verifier, "qk_rope_head_dim")) * gpus
    else:
        width = 2 * _need(verifier, "kv_heads") * _need(verifier, "head_dim")
    return tokens * _need(verifier, "layers") * width * _BYTES_16 / 1e9


def _need(spec: NodeSpec | VerifierSpec, name: str) -> float:
    value = spec.get(name)
    if value is None:
        raise InputError(f"{spec.name}.constants.{name}", None, "is needed to explain a round")
    return value


def _get(spec: NodeSpec | VerifierSpec, name: str, default: float) -> float:
    value = spec.get(name)
    return default if value is None else value
