"""From measurement files to a calibration."""

from __future__ import annotations

import datetime
import filecmp
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..readers.measurements import FORMATS, read_measurements
from ..readers.reading import Hints, Reading
from ..throughput import Calibration, MeasuredPoint, Prior, Source, load_node, load_verifier
from ..throughput.calibration import check_draft_sampling, parse_calibration
from ..throughput.checks import WHAT_TO_MEASURE
from ..throughput.simulated import simulated_prior
from ..throughput.specs import tensor_parallel
from ..throughput.strict_yaml import read_yaml, suggest
from .parser import positive, whole

__all__ = ["Gathered", "gather", "parse_source"]

_HINTS = ("depth", "batch", "context", "topk", "num_draft_tokens", "workload", "format")
_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Gathered:
    """A calibration and what each of its files gave."""

    calibration: Calibration
    readings: tuple[tuple[str, Reading], ...]
    """(file name, reading), in the order given; files of points are left out."""


def gather(sources: Sequence[str], setup: Mapping[str, str | None], *, simulate: bool = False) -> Gathered:
    """Read all sources and put their points into one calibration.

    Args:
        sources: files, each with hints after ``@`` where it does not say everything itself.
        setup: ``name``, ``node``, ``verifier``, ``engine``, ...; what is None is taken from the files.
        simulate: take the prior from a simulation of the node and verifier; points may then be missing.

    Raises:
        InputError: a file that can not be used or is given twice, hints that are none, a setup that does not exist, or
            no point at all.
    """
    data: dict[str, Any] = {"name": "calibration"}
    points: list[MeasuredPoint] = []
    origins: list[Source] = []
    readings: list[tuple[str, Reading]] = []
    found: dict[str, str] = {}
    parsed = [parse_source(text) for text in sources]
    _refuse_repeats([path for path, _, _ in parsed])
    _check_setup(setup)
    for path, hints, format in parsed:
        if path.suffix in _YAML:
            given = _from_yaml(path, data, len(origins))
            points += given.points
            origins += given.sources
            continue
        reading = read_measurements(path, hints, format=format)
        readings.append((path.name, reading))
        for key, value in reading.setup.items():
            if found.setdefault(key, value) != value:
                raise InputError(key, value, f"of {path.name} differs from {found[key]!r} of the files before it")
        if reading.points:
            origins.append(_source(path, reading, len(origins) + 1))
            points += [replace(point, source=origins[-1].id) for point in reading.points]
    if not points and not simulate:
        if not sources:
            raise InputError("sources", [], "must name at least one file: " + WHAT_TO_MEASURE)
        reasons = "; ".join(f"{name}: {reading.summary()}" for name, reading in readings)
        raise InputError("sources", [Path(s).name for s in sources], f"gave no point ({reasons})")
    chosen = {**data, **found, **{key: value for key, value in setup.items() if value is not None}}
    if simulate:
        chosen["prior"], origin = _simulated(chosen)
        origins.append(origin)
    known = {key: value for key, value in chosen.items() if key in Calibration.__dataclass_fields__}
    return Gathered(Calibration(**{**known, "points": tuple(points), "sources": tuple(origins)}), tuple(readings))


def _simulated(setup: Mapping[str, Any]) -> tuple[Prior, Source]:
    """The prior of a simulated node, and where it comes from."""
    for field in ("node", "verifier"):
        if setup.get(field) is None:
            raise InputError(field, None, "must be given with --simulate")
    shared = tensor_parallel(setup.get("parallelism"))
    prior, origin = simulated_prior(
        setup["node"],
        setup["verifier"],
        engine=setup.get("engine") or "sglang",
        gpus=load_node(setup["node"]).gpu_count if shared is None else shared,
        base=setup.get("prior") or Prior().for_verifier(moe=load_verifier(setup["verifier"]).moe),
    )
    return prior, Source("simulation", f"prior simulated by {origin}", "specification", None)


def parse_source(text: str) -> tuple[Path, Hints, str | None]:
    """``FILE@depth=3,batch=8`` as path, hints and format. A file whose name holds an @ is found first."""
    if Path(text).is_file() or "@" not in text:
        return Path(text), Hints(), None
    name, _, words = text.rpartition("@")
    values: dict[str, str] = {}
    for word in words.split(","):
        key, equals, value = word.partition("=")
        if not equals or key not in _HINTS:
            raise InputError("source", text, f"has no hint {key!r}{suggest(key, _HINTS)}")
        values[key] = value
    if values.get("format", FORMATS[0]) not in FORMATS:
        raise InputError("format", values["format"], f"must be one of {', '.join(FORMATS)}")
    hints = Hints(
        depth=whole("depth", values.get("depth"), 0),
        batch=whole("batch", values.get("batch"), 1),
        context_tokens=positive("context", values.get("context"), or_zero=True),
        topk=whole("topk", values.get("topk"), 1) or 1,
        num_draft_tokens=whole("num_draft_tokens", values.get("num_draft_tokens"), 1),
        workload=values.get("workload"),
    )
    return Path(name), hints, values.get("format")


def _from_yaml(path: Path, data: dict[str, Any], taken: int) -> Calibration:
    """Points and sources of a YAML file; its other keys go to ``data``. A name is not required."""
    content = read_yaml(path)
    content.setdefault("name", re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem))
    given = parse_calibration(content, path.parent)
    about = ("name", "title", "notes", "folder", "engine", "engine_version", "parallelism", "draft_sampling")
    names = (*about, "node", "verifier", "moe")
    data.update({key: getattr(given, key) for key in names if getattr(given, key) is not None})
    data.update(prior=given.prior, simple_models=given.simple_models)
    if given.sources:
        return given
    source = Source(f"s{taken + 1}", path.name)
    return replace(given, points=tuple(replace(p, source=source.id) for p in given.points), sources=(source,))


def _refuse_repeats(paths: Sequence[Path]) -> None:
    """Refuse a file that is given twice, under whatever name: its points would count twice."""
    for index, path in enumerate(paths):
        for earlier in paths[:index]:
            try:
                same = path.samefile(earlier)
                alike = same or (path.stat().st_size > 0 and filecmp.cmp(path, earlier, shallow=False))
            except OSError:  # told where it is read
                continue
            if alike:
                what = "is given twice" if same else f"holds the same as {earlier}"
                raise InputError("source", str(path), f"{what}: its points would count twice")


def _check_setup(setup: Mapping[str, str | None]) -> None:
    """Refuse names that no later command could look up."""
    for field, load in (("node", load_node), ("verifier", load_verifier)):
        name = setup.get(field)
        if name is not None:
            load(name)
    check_draft_sampling(setup.get("draft_sampling"))


def _source(path: Path, reading: Reading, number: int) -> Source:
    """With the day the file itself names; the file's own only where it names none, and said so."""
    written = datetime.date.fromtimestamp(path.stat().st_mtime)
    text, date = f"{path.name}: {reading.summary()}", reading.date
    if date is None:
        return Source(f"s{number}", f"{text}; undated, day of the file", "measured", written.isoformat())
    if len(date) == len("10-22"):
        year = written.year if date <= written.strftime("%m-%d") else written.year - 1
        return Source(f"s{number}", f"{text}; prints no year, the file's taken", "measured", f"{year}-{date}")
    return Source(f"s{number}", text, "measured", date)
