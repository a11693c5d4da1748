"""How well the throughput model predicts published series that were kept from it.

Protocols, each calibrated anew for every fold; the baseline (depth 0) of every predicted condition is known:

* A: calibrate on one data set of a node, predict its other data sets at the same configurations;
* B: calibrate on two depths of a series, predict its other depths;
* C: calibrate on two batch sizes of a series (the lowest and one of the upper half), predict the rest;
* D: calibrate on one drafter's points of a data set, predict those of its other drafters at the same configurations;
* one: calibrate on a single point, predict the rest of the series.

The rule to beat is ``tok_s = AL * baseline / c``, with c = AL * baseline / tok_s of the calibration's points,
interpolated over depth and batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from .calibration import Calibration
from .checks import inconsistency
from .model import ThroughputModel, calibrate
from .points import MeasuredPoint
from .prior import Prior
from .strict_yaml import get_list, get_number, get_text, read_yaml, within

__all__ = [
    "PROTOCOLS",
    "Prediction",
    "Series",
    "Summary",
    "backtest",
    "count_series",
    "covered_series",
    "flagged_series",
    "load_series",
    "series_of",
    "summarise",
]

_COVERED = 0.85  # share of a series inside its intervals from which on it counts as covered
PROTOCOLS = ("A", "B", "C", "D", "one")


@dataclass(frozen=True)
class Row:
    """One measured configuration of a series, with its own baseline."""

    point: MeasuredPoint
    """The speculative measurement."""
    baseline: MeasuredPoint
    """Depth 0 at the same batch, context and workload."""
    drafter: str
    """Which drafter ran."""

    @property
    def config(self) -> tuple[Any, ...]:
        """What two rows must share for the ratio round / step to carry over: depth, tree, batch."""
        p = self.point
        return (p.depth, p.topk, p.nodes, p.batch)


@dataclass(frozen=True)
class Series:
    """Measurements of one node on one data set and context."""

    id: str
    """Identifier in the file."""
    node: tuple[str, ...]
    """Model, hardware and engine: series of one node share a calibration."""
    rows: tuple[Row, ...]
    """Configurations with baseline and accept length."""


@dataclass(frozen=True)
class Prediction:
    """One prediction against its measurement; all in total tok/s."""

    protocol: str
    """One of `PROTOCOLS`."""
    series: str
    """Series of the predicted row."""
    row: Row
    """What was predicted."""
    value: float
    """Predicted."""
    lo: float
    """Lower end of the 90 % interval."""
    hi: float
    """Upper end."""
    rule: float
    """What the simple rule predicts."""
    fold: int
    """Predictions of one fold come from one calibration."""
    flagged: bool
    """Whether the tool calls the node's points inconsistent, all of them and not those of the calibration alone."""

    @property
    def truth(self) -> float:
        """Measured tok/s."""
        return float(self.row.point.total_tok_s or np.nan)


def load_series(path: str | Path) -> tuple[Series, ...]:
    """Series of a benchmark file that hold a baseline and an accept length; others can't be back-tested."""
    data = read_yaml(Path(path))
    if not isinstance(data.get("series"), list):
        raise InputError("series", data.get("series"), "must be a list of series")
    found = get_list(data, "", "series", _series)
    return tuple(s for s in found if s is not None and s.rows)


def series_of(calibration: Calibration) -> tuple[Series, ...]:
    """The points of a calibration as one series per workload and context."""
    groups: dict[tuple[str | None, float | None], list[MeasuredPoint]] = {}
    for point in calibration.points:
        groups.setdefault((point.workload, point.context_tokens), []).append(point)
    out = []
    for (workload, context), points in groups.items():
        plain = {p.batch: p for p in points if p.depth == 0}
        usable = [p for p in points if p.depth and p.accept_length and p.batch in plain]
        name = "/".join([calibration.name, *(str(v) for v in (workload, context) if v is not None)])
        rows = tuple(Row(p, plain[p.batch], "") for p in usable)
        out.append(Series(name, (calibration.name,), rows))
    return tuple(s for s in out if s.rows)


def _series(item: Any, path: str) -> Series | None:
    """One series; None where it measures no throughput."""
    if not isinstance(item, Mapping):
        raise InputError(path, item, "must be a mapping")
    if item.get("kind") != "throughput":
        return None
    hardware = item.get("hardware") or {}
    if not isinstance(hardware, Mapping):
        raise InputError(f"{path}.hardware", hardware, "must be a mapping or null")
    node = [item.get("target_model"), item.get("engine"), item.get("engine_version"), *hardware.values()]
    dataset = str(item.get("dataset"))
    baselines = [p for _, p in get_list(item, path, "baseline", lambda data, at: (data, _point(data, at, dataset, 0)))]
    rows = []
    for data, point in get_list(item, path, "points", lambda data, at: (data, _point(data, at, dataset, None))):
        if point is None or not point.depth or not point.accept_length:
            continue
        for base in baselines:
            if base is not None and (base.batch, base.context_tokens) == (point.batch, point.context_tokens):
                rows.append(Row(point, base, str(data.get("drafter") or item.get("drafter"))))
                break
    return Series(get_text(item, path, "id") or path, tuple(map(str, node)), tuple(rows))


def _point(data: Any, path: str, dataset: str, depth: int | None) -> MeasuredPoint | None:
    """One measurement (``depth`` None: the one it names); None where it holds no total tok/s, or a tree of no size."""
    if not isinstance(data, Mapping):
        raise InputError(path, data, "must be a mapping")
    depth = data.get("k") if depth is None else depth
    topk = data.get("topk") or (1 if depth == 0 else None)
    rate, tpot = get_number(data, path, "output_tok_s"), get_number(data, path, "tpot_ms")
    if not rate and depth == 0 and tpot:
        rate = 1000.0 / tpot
    tree = isinstance(topk, int) and topk > 1  # anything else is refused as any point's would be
    if not rate or topk is None or (tree and not data.get("num_draft_tokens")):
        return None
    return within(
        path,
        lambda: MeasuredPoint(
            depth,
            rate,
            accept_length=data.get("al") if depth else None,
            batch=data.get("batch") or data.get("concurrency") or 1,
            context_tokens=data.get("context_tokens"),
            topk=topk,
            num_draft_tokens=data.get("num_draft_tokens"),
            workload=str(data.get("dataset") or dataset),
        ),
    )


Fold = tuple[str, Sequence[Row], Sequence[tuple[str, Row]]]


def folds(series: Sequence[Series]) -> Iterator[Fold]:
    """All (protocol, calibration rows, (series id, row) to predict)."""
    nodes: dict[tuple[str, ...], list[Series]] = {}
    for s in series:
        nodes.setdefault(s.node, []).append(s)
    for members in nodes.values():
        by_data: dict[Any, list[tuple[str, Row]]] = {}
        for s in members:
            for row in s.rows:
                by_data.setdefault(row.point.workload, []).append((s.id, row))
        for name, known in by_data.items():
            configs = {row.config for _, row in known}
            rest = [(i, r) for w, rows in by_data.items() if w != name for i, r in rows if r.config in configs]
            if rest:
                yield "A", [row for _, row in known], rest
            yield from _drafter_folds(known)
    for s in series:
        chains = [r for r in s.rows if not r.point.is_tree]
        depths = sorted({r.point.depth or 0 for r in chains})
        for pair in itertools.combinations(depths, 2):
            rest = [(s.id, r) for r in chains if r.point.depth not in pair]
            if rest:
                yield "B", [r for r in chains if r.point.depth in pair], rest
        batches = sorted({r.point.batch for r in s.rows})
        for high in batches[max(1, len(batches) // 2) :] if len(batches) > 2 else ():
            pair = (batches[0], high)
            rest = [(s.id, r) for r in s.rows if r.point.batch not in pair]
            yield "C", [r for r in s.rows if r.point.batch in pair], rest
        for row in s.rows if len(s.rows) > 1 else ():
            yield "one", [row], [(s.id, r) for r in s.rows if r is not row]


def _drafter_folds(rows: Sequence[tuple[str, Row]]) -> Iterator[Fold]:
    """Folds of protocol D among the rows of one node and data set: what a new drafter changes is the accept length."""
    for drafter in dict.fromkeys(row.drafter for _, row in rows):
        known = [row for _, row in rows if row.drafter == drafter]
        configs = {row.config for row in known}
        rest = [(i, row) for i, row in rows if row.drafter != drafter and row.config in configs]
        if rest:
            yield "D", known, rest


def backtest(
    series: Sequence[Series], protocols: Sequence[str] = PROTOCOLS, prior: Prior | None = None
) -> list[Prediction]:
    """Predict every fold of every protocol, all from one prior (default: `Prior`)."""
    flagged = flagged_series(series)
    out: list[Prediction] = []
    for number, (protocol, known, wanted) in enumerate(folds(series)):
        if protocol in protocols:
            model = calibrate(_with_baselines(known, wanted), prior=prior)
            out += [_predict(protocol, number, model, known, name, row, name in flagged) for name, row in wanted]
    return out


def flagged_series(series: Sequence[Series]) -> dict[str, str]:
    """Series whose node's points contradict physics or each other, with the reason."""
    points: dict[tuple[str, ...], list[MeasuredPoint]] = {}
    for s in series:
        points.setdefault(s.node, []).extend(p for row in s.rows for p in (row.point, row.baseline))
    reasons = {node: inconsistency(found) for node, found in points.items()}
    return {s.id: reason for s in series if (reason := reasons[s.node]) is not None}


def _with_baselines(known: Sequence[Row], wanted: Sequence[tuple[str, Row]]) -> list[MeasuredPoint]:
    points = [r.point for r in known] + [r.baseline for r in known] + [r.baseline for _, r in wanted]
    return list(dict.fromkeys(points))


def _predict(
    protocol: str, fold: int, model: ThroughputModel, known: Sequence[Row], name: str, row: Row, flagged: bool
) -> Prediction:
    p = row.point
    answer = model.tok_s(
        p.accept_length or 1.0, p.depth or 0, p.batch, p.context_tokens, p.workload,
        topk=p.topk, num_draft_tokens=p.num_draft_tokens,
    )  # fmt: skip
    rule = (p.accept_length or 1.0) * (row.baseline.total_tok_s or np.nan) / simple_ratio(known, row)
    return Prediction(protocol, name, row, answer.value, answer.lo, answer.hi, rule, fold, flagged)


def simple_ratio(known: Sequence[Row], row: Row) -> float:
    """The ratio c of the simple rule: the mean at the same configuration, else interpolated over depth or batch."""
    same = [_ratio(r) for r in known if r.config == row.config]
    if same:
        return float(np.mean(same))
    near = [r for r in known if r.point.topk == row.point.topk] or list(known)
    axis = _depth if len({_depth(r) for r in near}) > 1 else _log_batch
    found: dict[float, list[float]] = {}
    for r in near:
        found.setdefault(axis(r), []).append(_ratio(r))
    x = sorted(found)
    y = [float(np.mean(found[v])) for v in x]
    if axis is _depth and len(x) > 1 and not x[0] <= axis(row) <= x[-1]:
        i = 0 if axis(row) < x[0] else len(x) - 2
        return max(1.0, y[i] + (y[i + 1] - y[i]) * (axis(row) - x[i]) / (x[i + 1] - x[i]))
    return float(np.interp(axis(row), x, y))


def _ratio(row: Row) -> float:
    return float((row.point.accept_length or 1.0) * (row.baseline.total_tok_s or 1.0) / (row.point.total_tok_s or 1.0))


def _depth(row: Row) -> float:
    return float(row.point.depth or 0)


def _log_batch(row: Row) -> float:
    return float(np.log(row.point.batch))


@dataclass(frozen=True)
class Summary:
    """Figures of one protocol."""

    n: int
    """Predictions."""
    median: float
    """Median absolute error, relative."""
    p90: float
    """90th percentile of the absolute error."""
    coverage: float
    """Share of measurements inside the 90 % interval."""
    half_width: float
    """Median half-width of the interval, relative to the prediction."""
    rule_median: float
    """Median absolute error of the simple rule."""
    rule_p90: float
    """90th percentile of the simple rule's absolute error."""
    regret: float
    """Mean loss of tok/s by serving the recommended configuration instead of the best measured one; nan where no group
    holds two configurations to choose from."""


def covered_series(predictions: Sequence[Prediction]) -> tuple[int, int]:
    """Series of which at least 85 % of the predictions lie inside their intervals, and all series predicted."""
    inside: dict[str, list[bool]] = {}
    for p in predictions:
        inside.setdefault(p.series, []).append(p.lo <= p.truth <= p.hi)
    return sum(bool(np.mean(found) >= _COVERED) for found in inside.values()), len(inside)


def count_series(path: str | Path) -> int:
    """All series of a file, those that can't be back-tested included."""
    data = read_yaml(Path(path))
    return sum(isinstance(s, Mapping) for s in data.get("series") or ())


def summarise(predictions: Sequence[Prediction]) -> Summary:
    """Figures over predictions; regret over groups of at least two configurations of one fold, series and drafter."""
    truth = np.array([p.truth for p in predictions])
    error = np.abs(np.array([p.value for p in predictions]) / truth - 1)
    rule = np.abs(np.array([p.rule for p in predictions]) / truth - 1)
    inside = np.array([p.lo <= p.truth <= p.hi for p in predictions])
    width = np.array([(p.hi - p.lo) / 2 / p.value for p in predictions])
    return Summary(
        len(predictions), float(np.median(error)), float(np.quantile(error, 0.9)), float(inside.mean()),
        float(np.median(width)), float(np.median(rule)), float(np.quantile(rule, 0.9)), _regret(predictions),
    )  # fmt: skip


def _regret(predictions: Sequence[Prediction]) -> float:
    groups: dict[Any, list[Prediction]] = {}
    for p in predictions:
        key = (p.fold, p.series, p.row.drafter, p.row.point.batch, p.row.point.context_tokens)
        groups.setdefault(key, []).append(p)
    losses = []
    for group in groups.values():
        if len({p.row.config for p in group}) < 2:
            continue  # with one configuration there is nothing to choose from: its regret of 0 would only dilute
        base = float(group[0].row.baseline.total_tok_s or 0.0)
        best = max([base, *(p.truth for p in group)])
        chosen = max(group, key=lambda p: p.value)
        got = chosen.truth if chosen.value > base else base
        losses.append(1 - got / best)
    return float(np.mean(losses)) if losses else float("nan")
