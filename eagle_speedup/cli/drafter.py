"""The drafter that a command's options describe."""

from __future__ import annotations

from argparse import Namespace

from ..errors import InputError
from .inputs import Given, from_accuracies, from_counts, from_log, numbers

__all__ = ["given_drafter"]


def given_drafter(arguments: Namespace) -> Given:
    """From ``--full-acc``, ``--step-acc``, ``--acc``, ``--log`` or ``--counts``, and ``--kind``."""
    kind: str | None = arguments.kind
    if arguments.counts is not None or arguments.log is not None:
        if kind is not None:
            raise InputError("kind", kind, "must be left out: a log or counts say themselves what they hold")
        return from_log(arguments.log) if arguments.counts is None else from_counts(arguments.counts)
    for field, text, implied in (
        ("full_acc", arguments.full_acc, "joint"),
        ("step_acc", arguments.step_acc, "marginal"),
        ("acc", arguments.acc, None),
    ):
        if text is not None:
            chosen = kind or implied
            if chosen is None:
                raise InputError("kind", None, "must be given with --acc: joint, marginal or conditional")
            if implied is not None and chosen != implied:
                option = field.replace("_", "-")
                rule = f"must be left out with --{option}, whose values are {implied}; give them to --acc instead"
                raise InputError("kind", chosen, rule)
            return from_accuracies(field, numbers(field, text), chosen)
    raise InputError("drafter", None, "must be described")
