"""The demo's findings as plain values, for ``results.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..training import Validation
from .comparing import Comparison
from .report import Findings

__all__ = ["plain_results"]


def plain_results(found: Findings, seconds: Mapping[str, float]) -> dict[str, Any]:
    """Everything the report tells, and the curve of the training.

    Args:
        found: the findings.
        seconds: of every phase, by title.
    """
    fit, profile = found.fit, found.profile
    return {
        "verifier": found.verifier,
        "seconds": {title: round(value, 2) for title, value in seconds.items()},
        "stop": {"reason": fit.reason, "message": fit.message, "step": fit.steps, "best_step": fit.best.global_step},
        "history": [_validation(v) for v in fit.history],
        "answers": profile.answers,
        "tokens": profile.tokens,
        "accept_length": {str(d): profile.accept_length(d).as_dict() for d in range(1, profile.max_depth + 1)},
        "full_acc": profile.full_acc,
        "draft_vocab_coverage": profile.draft_vocab_coverage,
        "served": None if found.comparison is None else _comparison(found.comparison),
        "estimators": [asdict(row) for row in found.estimators],
        "illustration": {key: getattr(found.illustration, key).as_dict() for key in ("tok_s", "ratio")},
    }


def _validation(validation: Validation) -> dict[str, Any]:
    projection = validation.projected
    estimates = {key: getattr(projection, key).as_dict() for key in ("accept_length", "tok_s", "ratio", "breakeven")}
    return {"step": validation.global_step, "depth": projection.depth, **estimates}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    rows = [{**asdict(row), "error": row.error} for row in comparison.rows]
    derived = {
        key: getattr(comparison, key)
        for key in ("mean_error", "mean_error_as_calibrated", "pace", "speedup", "rounds_all_equal")
    }
    return {**asdict(comparison), **derived, "best_depth": comparison.best.depth, "rows": rows}
