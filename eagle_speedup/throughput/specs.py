"""Specifications of nodes and verifiers: constants that carry their unit, source, date and kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import InputError
from .strict_yaml import check_keys, get_list, get_number, get_text, read_yaml, suggest

__all__ = [
    "NodeSpec",
    "Quantity",
    "VerifierSpec",
    "config_names",
    "config_path",
    "load_node",
    "load_verifier",
    "tensor_parallel",
]

_KINDS = ("measured", "specification", "derived")
# Never two runs of blanks with nothing between them: a long run would be cut in two in every way.
_TENSOR_PARALLEL = re.compile(r"\btp(?:\s*=)?\s*(\d{1,4})", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A constant of the real world."""

    value: float
    """The number, in ``unit``."""
    unit: str
    """Such as ``GB/s``; ``1`` for a pure number."""
    kind: str
    """``measured``, ``specification``, or ``derived`` (computed from the two)."""
    source: str
    """Where it was read."""
    date: str | None = None
    """Day of the source, ISO format; None = undated."""

    @classmethod
    def parse(cls, data: Any, path: str) -> Quantity:
        """From the mapping at ``path`` of a configuration."""
        keys = ("value", "unit", "kind", "source", "date")
        data = check_keys(data, path, keys, keys[:4])
        kind = get_text(data, path, "kind")
        if kind not in _KINDS:
            raise InputError(f"{path}.kind", kind, f"must be one of {', '.join(_KINDS)}")
        value = get_number(data, path, "value")
        if value is None or value < 0:
            raise InputError(f"{path}.value", value, "must be a finite number >= 0")
        unit, source = get_text(data, path, "unit"), get_text(data, path, "source")
        return cls(value, unit or "", kind, source or "", get_text(data, path, "date"))


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A serving node: its accelerators and what is known of their links."""

    name: str
    """Name of the configuration."""
    title: str
    """One line for people."""
    gpu: str
    """Accelerator model."""
    gpu_count: int
    """Accelerators in the node."""
    interconnect: str
    """Link between accelerators."""
    constants: Mapping[str, Quantity] = field(default_factory=dict)
    """Constants by name; see ``NODE_CONSTANTS``."""
    all_reduce: tuple[AllReduce, ...] = ()
    """Latency of all-reduces over the node, by message size."""

    def get(self, name: str) -> float | None:
        """Value of a constant, or None where it is not known."""
        quantity = self.constants.get(name)
        return None if quantity is None else quantity.value


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Latency of one all-reduce."""

    message_bytes: float
    """Size of the message."""
    latency: Quantity
    """Time of the operation, unit us."""
    variant: str
    """Algorithm and link, such as ``nccl, switches``."""


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """A verifier model: the shapes that decide what a step reads."""

    name: str
    """Name of the configuration."""
    title: str
    """One line for people."""
    moe: bool
    """Whether it is a mixture of experts."""
    constants: Mapping[str, Quantity] = field(default_factory=dict)
    """Constants by name; see ``VERIFIER_CONSTANTS``."""

    def get(self, name: str) -> float | None:
        """Value of a constant, or None where it is not known."""
        quantity = self.constants.get(name)
        return None if quantity is None else quantity.value


NODE_CONSTANTS = (
    "memory_gb", "memory_bandwidth_gb_s", "power_w", "link_bandwidth_gb_s", "dense_bf16_tflops", "dense_fp8_tflops",
    "peer_write_gb_s", "peer_latency_us", "all_reduce_bus_gb_s", "compute_capability",
)  # fmt: skip
VERIFIER_CONSTANTS = (
    "total_params_b", "active_params_b", "layers", "dense_layers", "hidden_size", "intermediate_size",
    "expert_intermediate_size", "routed_experts", "active_experts", "shared_experts", "attention_heads", "kv_heads",
    "head_dim", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "vocab_size",
    "max_positions", "weight_bits", "expert_weight_bits", "all_reduces_per_step", "drafter_params_b",
    "drafter_head_params_b",
)  # fmt: skip


def config_names(group: str) -> tuple[str, ...]:
    """Names of the shipped configurations of a group: ``node``, ``verifier`` or ``calibration``."""
    folder = files("eagle_speedup.configs") / group
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml")))


def config_path(group: str, name_or_path: str | Path) -> Path:
    """File of a shipped configuration, or the path itself when it names a file."""
    text = str(name_or_path)
    if not text.strip() or name_or_path == Path():
        raise InputError(group, text, "must be a name or a file")
    if _NAME.match(text) and not text.endswith((".yaml", ".yml")):
        if text in config_names(group):
            return Path(str(files("eagle_speedup.configs") / group / f"{text}.yaml"))
        if not Path(text).is_file():
            raise InputError(group, text, f"unknown name{suggest(text, config_names(group))}")
    if Path(text).is_dir():
        raise InputError(group, text, "is a folder, must be a name or a file")
    return Path(text)


def tensor_parallel(parallelism: str | None) -> int | None:
    """Accelerators that share the verifier, by a text such as ``tp8`` or ``tp = 4, dp2``; None where it says none."""
    match = _TENSOR_PARALLEL.search(parallelism or "")
    return None if match is None else int(match.group(1))


def load_node(name_or_path: str | Path) -> NodeSpec:
    """A node by name or file."""
    data = read_yaml(config_path("node", name_or_path))
    required = ("name", "title", "gpu", "gpu_count", "interconnect")
    check_keys(data, "", (*required, "constants", "all_reduce"), required)
    count = data["gpu_count"]
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError("gpu_count", count, "must be a whole number >= 1")
    name, title, gpu, interconnect = (get_text(data, "", key) or "" for key in required if key != "gpu_count")
    constants = _constants(data, NODE_CONSTANTS)
    return NodeSpec(name, title, gpu, count, interconnect, constants, get_list(data, "", "all_reduce", _all_reduce))


def load_verifier(name_or_path: str | Path) -> VerifierSpec:
    """A verifier by name or file."""
    data = read_yaml(config_path("verifier", name_or_path))
    check_keys(data, "", ("name", "title", "moe", "constants"), ("name", "title", "moe"))
    if not isinstance(data["moe"], bool):
        raise InputError("moe", data["moe"], "must be true or false")
    name, title = (get_text(data, "", key) or "" for key in ("name", "title"))
    return VerifierSpec(name, title, data["moe"], _constants(data, VERIFIER_CONSTANTS))


def _constants(data: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Quantity]:
    found = check_keys(data.get("constants") or {}, "constants", known)
    return {key: Quantity.parse(value, f"constants.{key}") for key, value in found.items()}


def _all_reduce(data: Any, path: str) -> AllReduce:
    keys = ("message_bytes", "latency_us", "variant", "kind", "source", "date")
    data = check_keys(data, path, keys, keys[:5])
    latency = {"value": data["latency_us"], "unit": "us", **{k: data.get(k) for k in ("kind", "source", "date")}}
    size = get_number(data, path, "message_bytes") or 0.0
    return AllReduce(size, Quantity.parse(latency, path), get_text(data, path, "variant") or "")
