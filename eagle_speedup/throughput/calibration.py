"""A calibration: measured points of one serving setup, with where they come from and a fingerprint."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..errors import InputError
from .checks import WHAT_TO_MEASURE
from .model import MODEL_VERSION, ThroughputModel, calibrate, canonical_point
from .points import MeasuredPoint
from .prior import Prior
from .simple import LinearBreakeven, OptimisticOverhead
from .specs import config_names, config_path, load_verifier
from .strict_yaml import check_fields, check_keys, get_list, get_text, is_file, plain_data, read_yaml, within

__all__ = [
    "Calibration",
    "CalibrationConfig",
    "Source",
    "calibration_names",
    "load_calibration",
    "parse_calibration",
    "parse_simple_models",
    "prior_of",
    "save_calibration",
]

SCHEMA = "eagle-speedup/calibration/1"
SimpleModel = LinearBreakeven | OptimisticOverhead
_SIMPLE = {"linear_breakeven": LinearBreakeven, "optimistic_overhead": OptimisticOverhead}
_TEXT = ("name", "title", "node", "verifier", "engine", "engine_version", "parallelism", "draft_sampling", "notes")
DRAFT_SAMPLINGS = ("greedy", "onehot", "rejection")
"""How drafts can be sampled and accepted."""
SETUP = ("node", "verifier", "engine", "engine_version", "parallelism", "draft_sampling")


@dataclass(frozen=True, slots=True)
class Source:
    """Where figures were read."""

    id: str
    """Short name the points refer to."""
    text: str
    """Repository, page, log or person."""
    kind: str = "measured"
    """``measured`` or ``specification``."""
    date: str | None = None
    """ISO day, or None where undated."""


@dataclass(frozen=True)
class Calibration:
    """Measured points of one node, verifier and engine. Frozen; ``model`` is fitted on first use."""

    name: str
    """Short name."""
    points: tuple[MeasuredPoint, ...]
    """What was measured."""
    node: str | None = None
    """Name or file of the node's configuration, or free text; no projection rests on it."""
    verifier: str | None = None
    """Name or file (.yaml) of the verifier's configuration, or free text."""
    engine: str | None = None
    """Serving engine; None = not recorded."""
    engine_version: str | None = None
    """Its version or commit; None = not recorded."""
    parallelism: str | None = None
    """Such as ``tp8``; None = not recorded."""
    draft_sampling: str | None = None
    """How drafts are sampled and accepted: ``greedy``, ``onehot``, ``rejection``; None = not recorded."""
    sources: tuple[Source, ...] = ()
    """Where the figures were read."""
    title: str | None = None
    """One line for people."""
    notes: str | None = None
    """What a reader must know."""
    prior: Prior | None = None
    """Beliefs for what the points do not determine; None = `Prior` for the kind of verifier, where it is known."""
    simple_models: Mapping[str, SimpleModel] = field(default_factory=dict)
    """Simple rules kept beside the model, by name."""
    moe: bool | None = None
    """Whether the verifier is a mixture of experts; None = as its configuration says, where there is one."""
    folder: Path | None = field(default=None, compare=False, repr=False)
    """Where the file it was read from lies: configurations given as files are looked for there, then here."""

    def __post_init__(self) -> None:
        if not (self.moe is None or isinstance(self.moe, bool)):
            raise InputError("moe", self.moe, "must be true, false or null")
        if not self.points and (self.prior is None or self.prior.step_ms is None):
            raise InputError("points", [], "must hold at least one measured point: " + WHAT_TO_MEASURE)
        known = {s.id for s in self.sources}
        for i, point in enumerate(self.points):
            if known and point.source is not None and point.source not in known:
                raise InputError(f"points[{i}].source", point.source, f"must be one of {', '.join(sorted(known))}")

    @property
    def fingerprint(self) -> str:
        """First 12 hex digits of the SHA-256 of everything that decides a projection; text for people is left out."""
        content = {
            "schema": SCHEMA,
            "model": MODEL_VERSION,
            "setup": {key: getattr(self, key) for key in SETUP},
            "points": sorted(map(canonical_point, self.points)),
            "prior": self.effective_prior.as_dict(),
            "simple_models": {key: model.as_dict() for key, model in self.simple_models.items()},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @cached_property
    def effective_prior(self) -> Prior:
        """The prior in use: the given one, else the one for a dense or a mixture-of-experts verifier, else general."""
        return _belief(self.verifier_moe) if self.prior is None else self.prior

    @cached_property
    def verifier_moe(self) -> bool | None:
        """Whether the verifier is a mixture of experts, by its configuration or by ``moe``; None = not known.

        Raises:
            InputError: the configuration is faulty, or contradicts ``moe``.
        """
        name = self.verifier
        shipped = name is not None and name in config_names("verifier")
        path = None if name is None else name if shipped else self.file_of(name)
        if path is None:
            return self.moe
        moe = within("verifier", lambda: load_verifier(path)).moe
        if self.moe not in (None, moe):
            kind = "a mixture of experts" if moe else "dense"
            raise InputError("moe", self.moe, f"contradicts the verifier {name!r}, which is {kind}")
        return moe

    @property
    def portable_moe(self) -> bool | None:
        """``moe``, and the kind of a verifier that is a file: away from ``folder`` it may not be found again."""
        return self.moe if self.verifier in config_names("verifier") else self.verifier_moe

    def as_config(self) -> CalibrationConfig:
        """In the layout of a file, which means the same in another folder."""
        values = {f.name: getattr(self, f.name) for f in fields(CalibrationConfig) if f.name != "schema"}
        values["moe"] = self.portable_moe
        values["simple_models"] = {key: model.as_dict() for key, model in self.simple_models.items()}
        return CalibrationConfig(**{**values, "points": list(self.points), "sources": list(self.sources)})

    def file_of(self, name: str) -> Path | None:
        """The YAML file that a node or verifier of this name is, beside the calibration's own or here; else None."""
        if not name.endswith((".yaml", ".yml")):
            return None
        return next((f / name for f in (self.folder, Path()) if f is not None and is_file(f / name)), None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its setup leaves open: sentences."""
        if self.verifier is None or self.verifier_moe is not None or not self._is_general:
            return ()
        near = difflib.get_close_matches(self.verifier, config_names("verifier"), n=1, cutoff=0.7)
        what = "is no shipped configuration" + (f" (did you mean {near[0]!r}?)" if near else "")
        if self.verifier.endswith((".yaml", ".yml")):
            what = "is a file that is not found"
        instead = "" if self.prior is None else " and leave out prior.elasticity and prior.elasticity_spread"
        return (
            f"the verifier {self.verifier!r} {what}: whether it is dense or a mixture of experts is not known, so the "
            f"prior is the general one; say moe: true or moe: false in the calibration{instead}",
        )

    @property
    def _is_general(self) -> bool:
        """Whether the prior says nothing of the kind of verifier: a stated one may do so, or leave it open."""
        prior, general = self.effective_prior, Prior()
        return (prior.elasticity, prior.elasticity_spread) == (general.elasticity, general.elasticity_spread)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What its fit and its setup leave open: sentences."""
        return (*self.model.warnings, *self.warnings)

    @property
    def is_measured(self) -> bool:
        """Whether any point says how long a step or round takes; where none does, all rests on a simulated prior."""
        return any(point.round_ms is not None for point in self.points)

    @cached_property
    def model(self) -> ThroughputModel:
        """The fitted throughput model."""
        return calibrate(self.points, prior=self.effective_prior)


if TYPE_CHECKING:
    PriorConfig = Prior
else:
    # Every field may be null, as in a file: with the defaults of `Prior`, a config that names one of them would state
    # them all, and what is believed of the kind of verifier would be lost.
    _OPTIONAL = [(f.name, list[float] | None if f.name == "curve" else float | None, None) for f in fields(Prior)]
    PriorConfig = make_dataclass("PriorConfig", _OPTIONAL, namespace={"__module__": __name__})


@dataclass(kw_only=True)
class CalibrationConfig:
    """Layout of a calibration's file, and OmegaConf's structured config of it. Fields are those of `Calibration`."""

    schema: str = SCHEMA
    """Version of the layout."""
    name: str
    """Short name."""
    title: str | None = None
    """One line for people."""
    node: str | None = None
    """Name or file of the node's configuration, or free text."""
    verifier: str | None = None
    """Name or file of the verifier's configuration, or free text."""
    moe: bool | None = None
    """Whether the verifier is a mixture of experts."""
    engine: str | None = None
    """Serving engine."""
    engine_version: str | None = None
    """Its version or commit."""
    parallelism: str | None = None
    """Such as ``tp8``."""
    draft_sampling: str | None = None
    """How drafts are sampled and accepted."""
    notes: str | None = None
    """What a reader must know."""
    prior: PriorConfig | None = None
    """Beliefs for what the points do not determine; null = as for the kind of verifier."""
    sources: list[Source] = field(default_factory=list)
    """Where the figures were read."""
    points: list[MeasuredPoint]
    """What was measured."""
    simple_models: dict[str, Any] = field(default_factory=dict)
    """Simple rules by name: ``kind``, and the fields of `LinearBreakeven` or `OptimisticOverhead`."""

    def __post_init__(self) -> None:
        if isinstance(self.prior, Prior):
            self.prior = PriorConfig(**self.prior.as_dict())


def calibration_names() -> tuple[str, ...]:
    """Names of the calibrations that ship with the package."""
    return config_names("calibration")


def load_calibration(source: str | Path | Mapping[str, Any] | Calibration) -> Calibration:
    """A calibration by name, from a YAML file, from plain data or an OmegaConf config of that layout, or itself.

    Raises:
        InputError: in one line, for anything wrong in it.
    """
    if isinstance(source, Calibration):
        return source
    if isinstance(source, Mapping):
        return parse_calibration(plain_data(source))
    if not isinstance(source, (str, Path)):
        raise InputError("calibration", source, "must be a name, a path, a mapping or a Calibration")
    path = config_path("calibration", source)
    return parse_calibration(read_yaml(path), path.parent)


def parse_calibration(data: Mapping[str, Any], folder: Path | None = None) -> Calibration:
    """A calibration from plain data in the layout of `CalibrationConfig`, as its YAML file in ``folder`` holds it."""
    check_fields(data, "", CalibrationConfig)
    if data.get("schema", SCHEMA) != SCHEMA:
        raise InputError("schema", data["schema"], f"must be {SCHEMA!r}")
    text: dict[str, Any] = {key: get_text(data, "", key) for key in _TEXT}
    check_draft_sampling(text["draft_sampling"])
    prior = data.get("prior")
    calibration = Calibration(
        **text,
        moe=data.get("moe"),
        folder=folder,
        points=get_list(data, "", "points", _point),
        sources=get_list(data, "", "sources", _source),
        prior=prior_of(prior, None),
        simple_models=parse_simple_models(data.get("simple_models") or {}),
    )
    moe = calibration.verifier_moe  # refused here rather than at the first projection
    return calibration if moe is None else replace(calibration, prior=prior_of(prior, moe))


def prior_of(data: Any, moe: bool | None) -> Prior | None:
    """A prior from a file's mapping; what it leaves out is as believed of the kind of verifier. None stays None."""
    if data is None:
        return None
    named = {key: value for key, value in check_fields(data, "prior", Prior).items() if value is not None}
    return within("", lambda: replace(_belief(moe), **named))


def _belief(moe: bool | None) -> Prior:
    """The prior where nothing is stated: for a dense or a mixture-of-experts verifier; None = not known."""
    return Prior() if moe is None else Prior().for_verifier(moe=moe)


def check_draft_sampling(name: str | None) -> None:
    """Refuse what is none of ``DRAFT_SAMPLINGS`` (None = not recorded)."""
    if name is not None and name not in DRAFT_SAMPLINGS:
        near = difflib.get_close_matches(name, DRAFT_SAMPLINGS, n=1, cutoff=0.5)
        rule = f"must be one of {', '.join(DRAFT_SAMPLINGS)}" + (f"; did you mean {near[0]!r}?" if near else "")
        raise InputError("draft_sampling", name, rule)


def save_calibration(calibration: Calibration, path: str | Path) -> Path:
    """Write the YAML that `load_calibration` reads; the file appears whole or not at all."""
    path = Path(path)
    text = f"# Calibration for eagle-speedup, fingerprint {calibration.fingerprint}\n" + _dump(_plain(calibration))
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return path


def _plain(calibration: Calibration) -> dict[str, Any]:
    config = calibration.as_config()
    data = {f.name: getattr(config, f.name) for f in fields(config)}
    data["prior"] = None if calibration.prior is None else calibration.prior.as_dict()
    data["sources"] = [{key: value for key, value in asdict(s).items() if value is not None} for s in config.sources]
    data["points"] = [point.as_dict() for point in config.points]
    return {key: value for key, value in data.items() if key == "points" or value not in (None, [], {})}


def _dump(data: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=118)
    return text


def _point(data: Any, path: str) -> MeasuredPoint:
    known = tuple(f.name for f in fields(MeasuredPoint))
    data = check_keys(data, path, known)
    if "depth" not in data:
        raise InputError(f"{path}.depth", None, "is required (null = not recorded)")
    return within(path, lambda: MeasuredPoint(**{"tok_s": None, **data}))


def _source(data: Any, path: str) -> Source:
    data = check_fields(data, path, Source)
    kind = get_text(data, path, "kind") or "measured"
    if kind not in ("measured", "specification"):
        raise InputError(f"{path}.kind", kind, "must be one of measured, specification")
    return Source(
        str(get_text(data, path, "id")), str(get_text(data, path, "text")), kind, get_text(data, path, "date")
    )


def parse_simple_models(data: object) -> dict[str, SimpleModel]:
    """Simple rules from plain data in the layout of `CalibrationConfig`."""
    if not isinstance(data, Mapping):
        raise InputError("simple_models", data, "must be a mapping")
    out: dict[str, SimpleModel] = {}
    for name, item in data.items():
        path = f"simple_models.{name}"
        kind = item.get("kind") if isinstance(item, Mapping) else None
        if not isinstance(kind, str) or kind not in _SIMPLE:
            raise InputError(f"{path}.kind", kind, f"must be one of {', '.join(_SIMPLE)}")
        cls: Any = _SIMPLE[kind]
        known = [f.name for f in fields(cls)]
        item = check_keys(item, path, ("kind", *known), known)
        values = {key: item[key] for key in known}
        out[str(name)] = within(path, lambda cls=cls, values=values: cls(**values))  # type: ignore[misc]
    return out
