"""Configurations as OmegaConf's structured configs."""

from __future__ import annotations

import types
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ReadonlyConfigError, ValidationError

from eagle_speedup.callbacks import SpeedupMonitor
from eagle_speedup.errors import InputError
from eagle_speedup.throughput import (
    Calibration,
    CalibrationConfig,
    MeasuredPoint,
    NodeSpec,
    Prior,
    Source,
    VerifierSpec,
    compose,
    load_calibration,
    load_node,
    load_verifier,
    save_calibration,
)
from eagle_speedup.throughput.specs import config_names

LOAD: dict[str, Any] = {"node": load_node, "verifier": load_verifier, "calibration": load_calibration}
ORIGIN = "kimi_k2_5_origin"


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in LOAD for name in config_names(group)])
def test_a_shipped_configuration_is_the_same_through_omegaconf(group, name):
    plain = LOAD[group](name)
    config = compose(group, name)
    assert LOAD[group](config) == plain
    assert LOAD[group](OmegaConf.create(OmegaConf.to_yaml(config))) == plain
    assert LOAD[group](plain) is plain


def test_layout_of_the_file_is_that_of_the_value():
    layout = {f.name for f in fields(CalibrationConfig)}
    assert layout - {"schema"} == {f.name for f in fields(Calibration)} - {"folder"}


def test_a_structured_config_is_typed_closed_and_read_only():
    config: Any = compose("calibration", ORIGIN)
    with pytest.raises(ReadonlyConfigError):
        config.points[0].tok_s = 91.0
    with pytest.raises(ReadonlyConfigError):
        config.engine = "vllm"
    with pytest.raises(ConfigAttributeError, match="Key 'point' not in 'CalibrationConfig'"):
        _ = config.point
    OmegaConf.set_readonly(config.points[0], False)
    with pytest.raises(ValidationError, match="'fast' of type 'str' could not be converted to Float"):
        config.points[0].tok_s = "fast"


def test_changes_are_applied_in_order_and_the_file_is_not_touched():
    changed = compose("calibration", ORIGIN, ["points[1].depth=4", "prior.noise=0.05", "points[1].depth=5"])
    calibration = load_calibration(changed)
    assert calibration.points[1].depth == 5
    assert calibration.prior == Prior(noise=0.05, elasticity=0.20, elasticity_spread=0.7)
    assert load_calibration(ORIGIN).points[1].depth is None
    assert load_node(compose("node", "h100_x8", ["gpu_count=4"])).gpu_count == 4
    assert load_verifier(compose("verifier", "kimi_k2_5", ["constants.layers.value=30"])).get("layers") == 30


@pytest.mark.parametrize(
    ("group", "change", "line"),
    [
        ("node", "gpucount=4", "gpucount = 4: unknown key; did you mean 'gpu_count'?"),
        ("node", "gpu_count=4.5", "gpu_count = 4.5: must be a whole number >= 1"),
        ("node", "constants.memory_gbs.value=1", "unknown key; did you mean 'memory_gb'?"),
        ("node", "constants.memory_gb.value=-1", "constants.memory_gb.value = -1.0: must be a finite number > 0;"),
        ("node", "constants.memory_gb.unt=GB", "constants.memory_gb.unt = 'GB': unknown key; did you mean 'unit'?"),
        ("verifier", "moe=1", "moe = 1: must be true or false"),
        ("verifier", "title=", "title = None: is required"),
        ("calibration", "name=${oc.env:HOME}", "interpolation is not accepted"),
        ("calibration", "points[7].depth=1", "set = 'points[7].depth': must name one of the 2 items by its number"),
        ("calibration", "engine", "set = 'engine': must have the form a.b=value"),
        ("node", f"gpu_count=1{'0' * 299}", "000...: must be at most 1e+06"),
        (
            "node",
            "all_reduce=[{message_bytes: 0, latency_us: 9, variant: v, kind: measured, source: s}]",
            "all_reduce[0].message_bytes = 0.0: must be a finite number > 0",
        ),
        ("calibration", 5, "set = 5: must have the form a.b=value"),
        (None, "a=1", "group = None: unknown group"),
        ("calibrations", "a=1", "group = 'calibrations': unknown group; did you mean 'calibration'?"),
    ],
)
def test_changes_that_are_refused(group, change, line):
    names = {"node": "h100_x8", "verifier": "kimi_k2_5"}
    with pytest.raises(InputError) as error:
        compose(group, names.get(group, ORIGIN), [change])
    assert line in str(error.value)


@pytest.mark.parametrize("changes", [None, 5, "gpu_count=4"])
def test_changes_that_are_no_list(changes):
    with pytest.raises(InputError, match=r"changes = .*: must be a list of assignments"):
        compose("node", "h100_x8", changes)


def test_what_is_no_configuration():
    with pytest.raises(InputError, match="node = None: must be a name or a file"):
        compose("node", None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="config = None: must be a mapping"):
        load_node(DictConfig(None))


def test_text_does_not_become_a_number():
    """OmegaConf alone takes it: an underscore would make a tenfold error of a typing slip."""
    tempting = OmegaConf.merge(OmegaConf.structured(MeasuredPoint), {"depth": 0, "tok_s": "92_4"})
    assert tempting.tok_s == 924.0
    with pytest.raises(InputError, match="'92_4': must be a finite number > 0"):
        compose("calibration", ORIGIN, ["points[0].tok_s='92_4'"])


def test_a_config_may_not_read_the_environment(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "seen")
    config = OmegaConf.create({"name": "${oc.env:SECRET_OF_THE_TEST}", "title": "t", "moe": True})
    with pytest.raises(InputError) as error:
        load_verifier(config)
    assert "interpolation is not accepted" in str(error.value) and "seen" not in str(error.value)
    OmegaConf.resolve(config)  # the caller's own decision
    assert load_verifier(config) == VerifierSpec("seen", "t", True)


def test_a_config_inside_plain_data_may_not_read_the_environment_either(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "seen")
    point = {"depth": 0, "tok_s": 90.0, "workload": "${oc.env:SECRET_OF_THE_TEST}"}
    for points in ([OmegaConf.create(point)], OmegaConf.create([point]), (point,), [types.MappingProxyType(point)]):
        with pytest.raises(InputError) as error:
            load_calibration({"name": "x", "points": points})
        said = (
            "points[0].workload = '${oc.env:SECRET_OF_THE_TEST}': interpolation is not accepted, write the value itself"
        )
        assert str(error.value) == said


def test_a_plain_dict_of_a_config_is_taken_as_the_config_is():
    config: Any = OmegaConf.create({"name": "x", "points": [{"depth": 0, "tok_s": 90.0}], "prior": {"noise": 0.05}})
    assert load_calibration(dict(config)) == load_calibration(config)
    incomplete = OmegaConf.create({"name": "x", "points": [{"depth": 0, "tok_s": "???"}]})
    for config in (incomplete, dict(incomplete)):
        with pytest.raises(InputError, match=r"points\[0\].tok_s = None: is required"):
            load_calibration(config)


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match="name = None: is required"):
        load_node(OmegaConf.structured(NodeSpec))
    config: Any = OmegaConf.merge(OmegaConf.structured(CalibrationConfig), {"name": "x", "points": [{"tok_s": 90.0}]})
    with pytest.raises(InputError, match=r"points\[0\].depth = None: is required"):
        load_calibration(config)


def test_the_monitor_takes_the_config_of_an_application(tmp_path):
    """As a training script composes it: a file of its own, then the command line."""
    path = save_calibration(load_calibration(ORIGIN), tmp_path / "mine.yaml")
    line = OmegaConf.from_dotlist(["calibration.prior.noise=0.05"])
    config: Any = OmegaConf.merge({"batch": 1, "calibration": OmegaConf.load(path)}, line)
    monitor = SpeedupMonitor(calibration=config.calibration)
    by_option = load_calibration(compose("calibration", path, ["prior.noise=0.05"]))
    assert monitor.calibration == by_option
    assert by_option.prior == Prior(noise=0.05, elasticity=0.20, elasticity_spread=0.7)
    assert monitor.calibration.fingerprint == by_option.fingerprint != load_calibration(ORIGIN).fingerprint


def test_the_kind_of_a_verifier_beside_the_file_goes_along(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "v.yaml").write_text("name: v\ntitle: t\nmoe: true\n")
    file = tmp_path / "there" / "c.yaml"
    file.write_text("name: c\nverifier: v.yaml\npoints:\n- {depth: 0, tok_s: 90.0}\n")
    monkeypatch.chdir(tmp_path)
    composed, direct = load_calibration(compose("calibration", file)), load_calibration(file)
    assert composed.effective_prior == direct.effective_prior == Prior().for_verifier(moe=True)
    assert composed.fingerprint == direct.fingerprint


POINTS = [{"depth": 0, "tok_s": 90.0}]


@pytest.mark.parametrize(
    ("setup", "elasticity"),
    [
        ({"verifier": "llama_3_1_8b"}, 0.08),
        ({"verifier": "kimi_k2_5"}, 0.20),
        ({"verifier": "unheard of"}, 0.14),
        ({"moe": False}, 0.08),
        ({}, 0.14),
    ],
)
def test_a_prior_that_names_one_field_leaves_the_others_to_the_kind_of_verifier(setup, elasticity):
    data = {"name": "x", "points": POINTS, **setup}
    schema = OmegaConf.structured(CalibrationConfig)
    for prior in ({"noise": 0.05}, {"noise": 0.05, "elasticity": None}):
        for source in ({**data, "prior": prior}, OmegaConf.merge(schema, {**data, "prior": prior})):
            calibration = load_calibration(source)  # type: ignore[arg-type]
            assert calibration.effective_prior.noise == 0.05
            assert calibration.effective_prior.elasticity == elasticity
            assert calibration.effective_prior.elasticity_spread == (1.0 if elasticity == 0.14 else 0.7)
    whole = load_calibration({**data, "prior": Prior().as_dict()})
    assert whole.effective_prior == Prior()
    assert load_calibration(OmegaConf.structured(CalibrationConfig(name="x", points=[], prior=Prior(step_ms=9.0)))) == (
        Calibration("x", (), prior=Prior(step_ms=9.0))
    )


positive = st.floats(min_value=0.1, max_value=1e5, allow_nan=False)
points = st.builds(
    MeasuredPoint,
    depth=st.integers(1, 20) | st.none(),
    tok_s=positive,
    accept_length=st.floats(min_value=1.0, max_value=2.0) | st.none(),
    batch=st.integers(1, 512),
    context_tokens=st.floats(min_value=0, max_value=2e5) | st.none(),
    per_user=st.booleans(),
    workload=st.text(st.characters(categories=("L", "N")), max_size=8) | st.none(),
    weight=st.floats(min_value=0.1, max_value=10) | st.none(),
    source=st.just("s") | st.none(),
)


@settings(max_examples=30, deadline=None)
@given(
    points=st.lists(points, min_size=1, max_size=4),
    prior=st.builds(Prior, noise=st.floats(min_value=0.001, max_value=0.3), curve=st.just((0.2, 0.3)) | st.none())
    | st.none(),
    moe=st.booleans() | st.none(),
)
def test_any_calibration_survives_the_way_through_omegaconf(tmp_path_factory, points, prior, moe):
    calibration = Calibration("c", tuple(points), sources=(Source("s", "a log"),), prior=prior, moe=moe)
    path = save_calibration(calibration, tmp_path_factory.mktemp("any") / "c.yaml")
    assert load_calibration(compose("calibration", path)) == load_calibration(path) == calibration
