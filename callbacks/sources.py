"""Where the per-step draft tokens of a validation batch come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..acceptance.checks import SHAPES
from ..errors import InputError

__all__ = ["AttributeSource", "DraftSource", "OutputsSource", "TTTBatch"]


@dataclass(frozen=True)
class TTTBatch:
    """What one validation batch says, all integer tensors on one device.

    Attributes:
        draft_ids: [K, B, T]; entry (k, b, t) is the token (verifier's vocabulary, -1 = none) that TTT step k drafts
            from anchor t, for position t + 1 + k.
        target_ids: [B, T] the text: the verifier's own tokens.
        spans: [S, 3] rows (row, P, E): indices of the first and the last token of each answer.
        sequence_index: [B] which sequence of the validation set each row is; None = its place in the data loader.
        accept_prob: float [K, B, T] = min(1, q(x) / p(x)) of the token x at t + 1 + k; ``rejection`` mode needs it.
        verifier_ids: [B, T] the verifier's argmax at each position, to notice text it did not write; optional.
    """

    draft_ids: Tensor
    target_ids: Tensor
    spans: Tensor
    sequence_index: Tensor | None = None
    accept_prob: Tensor | None = None
    verifier_ids: Tensor | None = None


class DraftSource:
    """Base class of the sources. A source that needs the forward pass (hooks) overrides the first three methods.

    Order of calls: ``attach`` once before the first validation batch of a run, then for every batch ``start_batch``
    (before ``validation_step``) and ``read`` (after it), ``detach`` when the run ends. During training the source
    must be idle.
    """

    def attach(self, pl_module: nn.Module) -> None:
        """Get ready, for example install hooks."""

    def start_batch(self, pl_module: nn.Module, batch: object) -> None:
        """A validation batch is about to run."""

    def detach(self) -> None:
        """Undo ``attach``."""

    def read(self, pl_module: nn.Module, outputs: object) -> TTTBatch:
        """The batch that just ran. Must not wait for the device and must keep no reference."""
        raise NotImplementedError


class OutputsSource(DraftSource):
    """Takes the ids from the dict that ``validation_step`` returns.

    Args:
        draft_ids: key of the drafts [K, B, T].
        target_ids: key of the text [B, T].
        spans: key of the answer spans [S, 3].
        sequence_index: key of the optional sequence numbers [B].
        accept_prob: key of the acceptance probabilities [K, B, T], for ``rejection`` mode.
        verifier_ids: key of the verifier's argmax [B, T], optional.
    """

    def __init__(
        self,
        draft_ids: str = "draft_ids",
        target_ids: str = "target_ids",
        spans: str = "spans",
        sequence_index: str = "sequence_index",
        accept_prob: str = "accept_prob",
        verifier_ids: str = "verifier_ids",
    ) -> None:
        self.keys = {"draft_ids": draft_ids, "target_ids": target_ids, "spans": spans}
        self.keys.update(sequence_index=sequence_index, accept_prob=accept_prob, verifier_ids=verifier_ids)

    def read(self, pl_module: nn.Module, outputs: object) -> TTTBatch:
        """InputError when it is no dict, lacks a key, or holds something of a wrong type or shape."""
        return self._batch(outputs, "validation_step output")

    def _batch(self, outputs: object, where: str) -> TTTBatch:
        if not isinstance(outputs, Mapping):
            needed = ", ".join(repr(key) for key in (self.keys[name] for name in _REQUIRED))
            raise InputError(where, type(outputs).__name__, f"must be a dict with {needed}")
        found = {name: self._tensor(outputs, name, where) for name in self.keys}
        return TTTBatch(**found)  # type: ignore[arg-type]

    def _tensor(self, outputs: Mapping[Any, Any], name: str, where: str) -> Tensor | None:
        key = self.keys[name]
        value = outputs.get(key)
        if value is None:
            if name not in _REQUIRED:
                return None
            raise InputError(where, sorted(map(str, outputs)), f"must hold the key {key!r}: {SHAPES[name]}")
        if not isinstance(value, Tensor):
            raise InputError(f"{where}[{key!r}]", type(value).__name__, f"must be a tensor {SHAPES[name]}")
        if value.ndim != SHAPES[name].count(",") + 1:
            raise InputError(f"{where}[{key!r}].shape", tuple(value.shape), f"must be {SHAPES[name]}")
        return value.detach()


class AttributeSource(OutputsSource):
    """Takes the same dict from an attribute of the module, for a ``validation_step`` that returns something else.

    Args:
        name: the attribute, dots allowed (``drafter.last_drafts``); the module sets it in every ``validation_step``.
        keys: as for :class:`OutputsSource`.
    """

    def __init__(self, name: str, **keys: str) -> None:
        super().__init__(**keys)
        self.name = name

    def start_batch(self, pl_module: nn.Module, batch: object) -> None:
        """Clear the attribute, so that a batch which does not set it is not counted as the one before."""
        owner, attribute = self._owner(pl_module)
        if hasattr(owner, attribute):
            setattr(owner, attribute, None)

    def read(self, pl_module: nn.Module, outputs: object) -> TTTBatch:
        """InputError when the attribute is missing or not as :class:`OutputsSource` wants it."""
        owner, attribute = self._owner(pl_module)
        if not hasattr(owner, attribute):
            raise InputError("source.name", self.name, f"must be an attribute of {type(owner).__name__}")
        batch = self._batch(getattr(owner, attribute), f"module.{self.name}")
        setattr(owner, attribute, None)
        return batch

    def _owner(self, pl_module: nn.Module) -> tuple[Any, str]:
        *path, attribute = self.name.split(".")
        owner: Any = pl_module
        for part in path:
            if not hasattr(owner, part):
                raise InputError("source.name", self.name, f"must name an attribute: there is no {part!r}")
            owner = getattr(owner, part)
        return owner, attribute


_REQUIRED = ("draft_ids", "target_ids", "spans")
