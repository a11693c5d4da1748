"""From measurement files to a calibration."""

from __future__ import annotations

import datetime
import filecmp
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..readers.measurements import FORMATS, read_measurements
from ..readers.reading import Hints, Reading
from ..throughput import Calibration, MeasuredPoint, Prior, Source, load_node, load_verifier
from ..throughput.calibration import SETUP, check_draft_sampling, parse_calibration, parse_simple_models, prior_of
from ..throughput.checks import WHAT_TO_MEASURE
from ..throughput.simulated import simulated_prior
from ..throughput.specs import tensor_parallel
from ..throughput.strict_yaml import is_file, read_yaml, suggest
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
    merged = _Merged(setup)
    readings: list[tuple[str, Reading]] = []
    parsed = [parse_source(text) for text in sources]
    _refuse_repeats([path for path, _, _ in parsed])
    _check_setup(setup)
    for path, hints, format in parsed:
        if path.suffix in _YAML:
            if hints != Hints() or format is not None:
                raise InputError("source", f"{path}@...", "takes no hints: its points say themselves what they are of")
            merged.add_yaml(path)
            continue
        reading = read_measurements(path, hints, format=format)
        readings.append((path.name, reading))
        merged.add_reading(path, reading)
    if not merged.points and not simulate:
        if not sources:
            raise InputError("sources", [], "must name at least one file: " + WHAT_TO_MEASURE)
        reasons = "; ".join(f"{name}: {reading.summary()}" for name, reading in readings)
        raise InputError("sources", [Path(s).name for s in sources], f"gave no point ({reasons})")
    return Gathered(merged.calibration(simulate=simulate), tuple(readings))


class _Merged:
    """What the files say together: nothing that one of them says is lost, and where two differ they are refused."""

    def __init__(self, setup: Mapping[str, str | None]) -> None:
        self.points: list[MeasuredPoint] = []
        self._stated = {key: value for key, value in setup.items() if value is not None}
        self._setup: dict[str, Any] = {}
        self._about: dict[str, Any] = {"name": "calibration"}
        self._prior: dict[str, Any] = {}
        self._rules: dict[str, Any] = {}
        self._sources: dict[str, Source] = {}

    def add_reading(self, path: Path, reading: Reading) -> None:
        """Points of a log or a benchmark, with their source."""
        # Two paths may be one model, which --verifier says.
        setup = {key: value for key, value in reading.setup.items() if key != "model" or "verifier" not in self._stated}
        self._agree(path, setup, self._setup)
        if reading.points:
            source = _source(path, reading, self._free("s", len(self._sources) + 1))
            self._add(reading.points, (source,), everything=True)

    def add_yaml(self, path: Path) -> None:
        """Points of a calibration's file and what it says besides. A name is not required."""
        content = read_yaml(path)
        content.setdefault("name", re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem))
        given = parse_calibration(content, path.parent)
        self._agree(path, {key: getattr(given, key) for key in SETUP}, self._setup)
        if given.verifier in (None, self._stated.get("verifier", given.verifier)):  # else of a verifier not in use
            self._agree(path, {"moe": given.portable_moe}, self._setup)
        named = {key: value for key, value in (content.get("prior") or {}).items() if value is not None}
        self._agree(path, named, self._prior, "prior.")
        rules = {key: rule.as_dict() for key, rule in given.simple_models.items()}
        self._agree(path, rules, self._rules, "simple_models.")
        notes = [text for text in (self._about.get("notes"), given.notes) if text is not None]
        self._about.update(name=given.name, notes=" ".join(dict.fromkeys(notes)) or None)
        self._about.update({} if given.title is None else {"title": given.title})
        if given.verifier is not None and "verifier" not in self._stated:
            self._about.setdefault("folder", given.folder)
        named_here = given.sources or (Source(self._free("s", len(self._sources) + 1), path.name),)
        self._add(given.points, named_here, everything=not given.sources)

    def calibration(self, *, simulate: bool) -> Calibration:
        """All of it; with ``simulate``, the prior is that of a simulated node."""
        chosen = {**self._about, **self._setup, **self._stated}
        known = {key: value for key, value in chosen.items() if key in Calibration.__dataclass_fields__}
        if simulate:
            known["prior"], origin = _simulated(chosen, self._prior)
            self._add((), (origin,))
        known.update(simple_models=parse_simple_models(self._rules))
        known.update(points=tuple(self.points), sources=tuple(self._sources.values()))
        merged = Calibration(**known)
        if simulate or not self._prior:
            return merged
        return replace(merged, prior=prior_of(self._prior, merged.verifier_moe))

    def _agree(self, path: Path, values: Mapping[str, Any], known: dict[str, Any], prefix: str = "") -> None:
        """Put what a file says to what is ``known``; what an option says, or no file, is not compared."""
        for key, value in values.items():
            if value is not None and (prefix or key not in self._stated) and known.setdefault(key, value) != value:
                option = {"model": "verifier"}.get(key, key.replace("_", "-"))
                decide = "" if prefix or key == "moe" else f"; --{option} says which one holds"
                rule = f"of {path.name} differs from {known[key]!r} of the files before it{decide}"
                raise InputError(f"{prefix}{key}", value, rule)

    def _add(self, points: Sequence[MeasuredPoint], sources: Sequence[Source], *, everything: bool = False) -> None:
        """Points and their sources (``everything``: all points are of the one source), under names not yet taken."""
        own = {source.id for source in sources}
        renamed: dict[str, str] = {}
        earlier = dict(self._sources)
        for source in sources:
            name = source.id
            if self._sources.get(name, source) != source:
                name = self._free(f"{source.id}_", 2, own)
            if source.id in earlier:
                renamed.setdefault(source.id, name)
            self._sources[name] = replace(source, id=name)
        for point in points:
            origin = sources[0].id if everything else point.source
            self.points.append(replace(point, source=renamed.get(origin, origin) if origin else None))

    def _free(self, stem: str, number: int, reserved: Collection[str] = ()) -> str:
        """A name for a source that none has yet."""
        return next(name for n in count(number) if (name := f"{stem}{n}") not in {*self._sources, *reserved})


def _simulated(setup: Mapping[str, Any], named: Mapping[str, Any]) -> tuple[Prior, Source]:
    """The prior of a simulated node, and where it comes from. What a simulation does not tell is as ``named``."""
    for field in ("node", "verifier"):
        if setup.get(field) is None:
            raise InputError(field, None, "must be given with --simulate")
    shared = tensor_parallel(setup.get("parallelism"))
    prior, origin = simulated_prior(
        setup["node"],
        setup["verifier"],
        engine=setup.get("engine") or "sglang",
        gpus=load_node(setup["node"]).gpu_count if shared is None else shared,
        base=prior_of(named, load_verifier(setup["verifier"]).moe),
    )
    return prior, Source("simulation", f"prior simulated by {origin}", "specification", None)


def parse_source(text: str) -> tuple[Path, Hints, str | None]:
    """``FILE@depth=3,batch=8`` as path, hints and format. A file whose name holds an @ is found first."""
    if is_file(Path(text)) or "@" not in text:
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


def _source(path: Path, reading: Reading, name: str) -> Source:
    """With the day the file itself names; the file's own only where it names none, and said so."""
    written = datetime.date.fromtimestamp(path.stat().st_mtime)
    text, date = f"{path.name}: {reading.summary()}", reading.date
    if date is None:
        return Source(name, f"{text}; undated, day of the file", "measured", written.isoformat())
    if len(date) == len("10-22"):
        year = written.year if date <= written.strftime("%m-%d") else written.year - 1
        return Source(name, f"{text}; prints no year, the file's taken", "measured", f"{year}-{date}")
    return Source(name, text, "measured", date)
