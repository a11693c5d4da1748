"""The additive integers every estimate is made from (numpy only, so that readers need no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError

__all__ = ["AcceptanceCounts"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class AcceptanceCounts:
    """Counts of one validation, in G blocks of sequences (the independent units of the jackknife).

    K is the number of TTT steps that were run, D the largest depth that was walked. All arrays are int64, or float64
    where rounds are expectations (``rejection`` mode).

    Attributes:
        tokens: [G] tokens after the first of each answer, sum of E - P.
        answers: [G] spans with at least one such token.
        covered: [G] of ``tokens``, those inside the draft vocabulary (equal to ``tokens`` where it is not known).
        compared: [G] of ``tokens``, those for which the verifier's argmax was given too.
        disagreed: [G] of ``compared``, those whose argmax is another token: text the verifier would not have written.
        step_valid: [G, K] anchors whose step k has a target inside the span.
        step_hits: [G, K] of those, step k right (marginal).
        prefix_hits: [G, K] of those, steps 0..k all right (joint).
        prefix_valid: [G, K] of those, steps 0..k-1 all right; equals ``step_valid`` at k = 0.
        accepted: [G, D, D + 1] rounds of the walk at depth index + 1 that accept exactly j drafts.
    """

    tokens: Array
    answers: Array
    covered: Array
    compared: Array
    disagreed: Array
    step_valid: Array
    step_hits: Array
    prefix_hits: Array
    prefix_valid: Array
    accepted: Array

    def __post_init__(self) -> None:
        for name, expected in self._shapes(self.blocks, self.ttt_steps, self.max_depth).items():
            array = np.asarray(getattr(self, name))
            if array.shape != expected:
                raise InputError(f"counts.{name}.shape", array.shape, f"must be {expected}")
            object.__setattr__(self, name, _read_only(array))

    def __setstate__(self, state: Mapping[str, Array]) -> None:
        for name, array in state.items():  # pickle does not keep arrays from being written to
            object.__setattr__(self, name, _read_only(array))

    @staticmethod
    def _shapes(blocks: int, ttt_steps: int, max_depth: int) -> dict[str, tuple[int, ...]]:
        per_block = dict.fromkeys(("tokens", "answers", "covered", "compared", "disagreed"), (blocks,))
        per_step = dict.fromkeys(("step_valid", "step_hits", "prefix_hits", "prefix_valid"), (blocks, ttt_steps))
        return {**per_block, **per_step, "accepted": (blocks, max_depth, max_depth + 1)}

    @property
    def blocks(self) -> int:
        """G."""
        return int(np.shape(self.tokens)[0])

    @property
    def ttt_steps(self) -> int:
        """K."""
        return int(np.shape(self.step_valid)[1])

    @property
    def max_depth(self) -> int:
        """D."""
        return int(np.shape(self.accepted)[1])

    @classmethod
    def width(cls, ttt_steps: int, max_depth: int) -> int:
        """Number of columns of the flat form: 5 + 4 K + D (D + 1)."""
        return sum(int(np.prod(shape[1:])) for shape in cls._shapes(1, ttt_steps, max_depth).values())

    @classmethod
    def from_flat(cls, flat: Array, ttt_steps: int, max_depth: int) -> AcceptanceCounts:
        """Rebuild from the flat form, ``[G, width(K, D)]``."""
        flat = np.asarray(flat)
        width = cls.width(ttt_steps, max_depth)
        if flat.ndim != 2 or flat.shape[1] != width:
            raise InputError("counts.shape", flat.shape, f"must be (blocks, {width})")
        columns: dict[str, Array] = {}
        start = 0
        for name, shape in cls._shapes(flat.shape[0], ttt_steps, max_depth).items():
            size = int(np.prod(shape[1:]))
            columns[name] = flat[:, start : start + size].reshape(shape)
            start += size
        return cls(**columns)

    def flat(self) -> Array:
        """``[G, width(K, D)]``, the columns named by :meth:`column_names`."""
        return np.concatenate([getattr(self, f.name).reshape(self.blocks, -1) for f in fields(self)], axis=1)

    def column_names(self) -> list[str]:
        """Names of the flat form's columns, as ``tokens``, ``step_hits_0``, ``accepted_d3_j1``."""
        names = ["tokens", "answers", "covered", "compared", "disagreed"]
        for name in ("step_valid", "step_hits", "prefix_hits", "prefix_valid"):
            names += [f"{name}_{k}" for k in range(self.ttt_steps)]
        return names + [f"accepted_d{d}_j{j}" for d in range(1, self.max_depth + 1) for j in range(self.max_depth + 1)]

    def to_dict(self) -> dict[str, Any]:
        """Plain Python lists and numbers, safe in a checkpoint and in JSON."""
        return {"ttt_steps": self.ttt_steps, "max_depth": self.max_depth, "flat": self.flat().tolist()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> AcceptanceCounts:
        """Inverse of :meth:`to_dict`."""
        return cls.from_flat(np.asarray(state["flat"]), int(state["ttt_steps"]), int(state["max_depth"]))

    def scaled(self, factor: float) -> AcceptanceCounts:
        """All counts times a positive weight, for mixes of validation sets; float64."""
        if not factor > 0:
            raise InputError("factor", factor, "must be positive")
        return AcceptanceCounts.from_flat(self.flat() * float(factor), self.ttt_steps, self.max_depth)

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        if not isinstance(other, AcceptanceCounts):
            return NotImplemented
        shapes = [(c.blocks, c.ttt_steps, c.max_depth) for c in (self, other)]
        if shapes[0] != shapes[1]:
            raise InputError("counts (blocks, ttt_steps, max_depth)", shapes[1], f"must be {shapes[0]} to be added")
        return AcceptanceCounts.from_flat(self.flat() + other.flat(), self.ttt_steps, self.max_depth)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AcceptanceCounts):
            return NotImplemented
        return self.max_depth == other.max_depth and np.array_equal(self.flat(), other.flat())

    __hash__ = None  # type: ignore[assignment]


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
