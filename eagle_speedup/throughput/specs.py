"""Specifications of nodes and verifiers: constants that carry their unit, source, date and kind.

The dataclasses are the layout of the files, and OmegaConf's structured configs of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import InputError
from .strict_yaml import (
    check_fields,
    check_keys,
    get_list,
    get_number,
    get_text,
    is_file,
    plain_data,
    read_yaml,
    suggest,
)

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


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Latency of one all-reduce."""

    message_bytes: float
    """Size of the message."""
    latency_us: float
    """Time of the operation."""
    variant: str
    """Algorithm and link, such as ``nccl, switches``."""
    kind: str
    """As of a `Quantity`."""
    source: str
    """Where it was read."""
    date: str | None = None
    """Day of the source, ISO format; None = undated."""


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
    constants: dict[str, Quantity] = field(default_factory=dict)
    """Constants by name; see ``NODE_CONSTANTS``."""
    all_reduce: tuple[AllReduce, ...] = ()
    """Latency of all-reduces over the node, by message size."""

    def get(self, name: str) -> float | None:
        """Value of a constant, or None where it is not known."""
        quantity = self.constants.get(name)
        return None if quantity is None else quantity.value


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """A verifier model: the shapes that decide what a step reads."""

    name: str
    """Name of the configuration."""
    title: str
    """One line for people."""
    moe: bool
    """Whether it is a mixture of experts."""
    constants: dict[str, Quantity] = field(default_factory=dict)
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
# All others are divided by, or their zero would pass for something that takes no time.
_MAY_BE_ZERO = (
    "dense_layers", "shared_experts", "qk_rope_head_dim", "qk_nope_head_dim", "all_reduces_per_step",
    "drafter_params_b", "drafter_head_params_b", "peer_latency_us",
)  # fmt: skip
_LEAST, _MOST = 1e-9, 1e15  # no constant in its unit is beyond, and no product of a few of them overflows
_MOST_GPUS = 10**6


def config_names(group: str) -> tuple[str, ...]:
    """Names of the shipped configurations of a group: ``node``, ``verifier`` or ``calibration``."""
    folder = files("eagle_speedup.configs") / group
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml")))


def config_path(group: str, name_or_path: str | Path) -> Path:
    """File of a shipped configuration, or the path itself when it names a file."""
    if not isinstance(name_or_path, (str, Path)):
        raise InputError(group, name_or_path, "must be a name or a file")
    text = str(name_or_path)
    if not text.strip() or name_or_path == Path():
        raise InputError(group, text, "must be a name or a file")
    if _NAME.match(text) and not text.endswith((".yaml", ".yml")):
        if text in config_names(group):
            return Path(str(files("eagle_speedup.configs") / group / f"{text}.yaml"))
        if not is_file(Path(text)):
            raise InputError(group, text, f"unknown name{suggest(text, config_names(group))}")
    if os.path.isdir(text):  # False where the name is too long, which the reader then tells
        raise InputError(group, text, "is a folder, must be a name or a file")
    return Path(text)


def tensor_parallel(parallelism: str | None) -> int | None:
    """Accelerators that share the verifier, by a text such as ``tp8`` or ``tp = 4, dp2``; None where it says none."""
    match = _TENSOR_PARALLEL.search(parallelism or "")
    return None if match is None else int(match.group(1))


def load_node(source: str | Path | Mapping[str, Any] | NodeSpec) -> NodeSpec:
    """A node by name, from a YAML file, from plain data or an OmegaConf config of that layout, or itself.

    Raises:
        InputError: in one line, for anything wrong in it.
    """
    if isinstance(source, NodeSpec):
        return source
    return parse_node(plain_data(source) if isinstance(source, Mapping) else read_yaml(config_path("node", source)))


def load_verifier(source: str | Path | Mapping[str, Any] | VerifierSpec) -> VerifierSpec:
    """A verifier, as `load_node` loads a node."""
    if isinstance(source, VerifierSpec):
        return source
    data = plain_data(source) if isinstance(source, Mapping) else read_yaml(config_path("verifier", source))
    return parse_verifier(data)


def parse_node(data: Mapping[str, Any]) -> NodeSpec:
    """A node from plain data in the layout of `NodeSpec`."""
    check_fields(data, "", NodeSpec)
    count = data["gpu_count"]
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError("gpu_count", count, "must be a whole number >= 1")
    if count > _MOST_GPUS:
        raise InputError("gpu_count", count, f"must be at most {_MOST_GPUS:g}")
    texts = {key: get_text(data, "", key) or "" for key in ("name", "title", "gpu", "interconnect")}
    all_reduce = get_list(data, "", "all_reduce", _all_reduce)
    return NodeSpec(**texts, gpu_count=count, constants=_constants(data, NODE_CONSTANTS), all_reduce=all_reduce)


def parse_verifier(data: Mapping[str, Any]) -> VerifierSpec:
    """A verifier from plain data in the layout of `VerifierSpec`."""
    check_fields(data, "", VerifierSpec)
    if not isinstance(data["moe"], bool):
        raise InputError("moe", data["moe"], "must be true or false")
    name, title = (get_text(data, "", key) or "" for key in ("name", "title"))
    verifier = VerifierSpec(name, title, data["moe"], _constants(data, VERIFIER_CONSTANTS))
    for part, whole in (("active_experts", "routed_experts"), ("dense_layers", "layers")):
        some, of = verifier.get(part), verifier.get(whole)
        if some is not None and of is not None and some > of:
            raise InputError(f"constants.{part}.value", some, f"must be at most {whole} = {of:g}")
    return verifier


def _constants(data: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Quantity]:
    found = check_keys(data.get("constants") or {}, "constants", known)
    return {key: _quantity(value, f"constants.{key}", key in _MAY_BE_ZERO) for key, value in found.items()}


def _quantity(data: Any, path: str, may_be_zero: bool) -> Quantity:
    data = check_fields(data, path, Quantity)
    return Quantity(_size(data, path, "value", may_be_zero), get_text(data, path, "unit") or "", *_origin(data, path))


def _all_reduce(data: Any, path: str) -> AllReduce:
    data = check_fields(data, path, AllReduce)
    size, latency = (_size(data, path, key) for key in ("message_bytes", "latency_us"))
    return AllReduce(size, latency, get_text(data, path, "variant") or "", *_origin(data, path))


def _size(data: Mapping[str, Any], path: str, key: str, may_be_zero: bool = False) -> float:
    value = get_number(data, path, key)
    if may_be_zero and value == 0:
        return value
    if value is None or value <= 0:
        rule = (
            "must be a finite number >= 0"
            if may_be_zero
            else "must be a finite number > 0; leave out what is not there"
        )
        raise InputError(f"{path}.{key}", value, rule)
    if not _LEAST <= value <= _MOST:
        raise InputError(f"{path}.{key}", value, f"must lie in [{_LEAST:g}, {_MOST:g}]")
    return value


def _origin(data: Mapping[str, Any], path: str) -> tuple[str, str, str | None]:
    """Kind, source and date of a constant."""
    kind = get_text(data, path, "kind") or ""
    if kind not in _KINDS:
        raise InputError(f"{path}.kind", kind, f"must be one of {', '.join(_KINDS)}")
    return kind, get_text(data, path, "source") or "", get_text(data, path, "date")
