"""Calibration files: what is read, what is refused, and the fingerprint."""

import dataclasses

import pytest

from eagle_speedup.errors import InputError
from eagle_speedup.throughput import (
    Calibration,
    MeasuredPoint,
    Prior,
    calibration_names,
    load_calibration,
    load_node,
    load_verifier,
    save_calibration,
)
from eagle_speedup.throughput.specs import config_names

GOOD = """
name: mine
points:
- {depth: 0, tok_s: 90.0}
- {depth: 3, tok_s: 120.0, accept_length: 2.3}
"""


def write(tmp_path, text):
    path = tmp_path / "calibration.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("points", "pionts"), "pionts = [{'depth': 0, 'tok_s': 90.0}, {'depth': 3, 'tok_s': 120.0, "),
        (GOOD.replace("accept_length", "accept_lenght"), "points[1].accept_lenght = 2.3: unknown key; did you mean"),
        (GOOD.replace("90.0", "fast"), "points[0].tok_s = 'fast': must be a finite number > 0"),
        (GOOD.replace("90.0", ".nan"), "points[0].tok_s = nan: must be a finite number > 0"),
        (GOOD.replace("90.0", "92_4"), "points[0].tok_s = '92_4': must be a finite number > 0"),
        (GOOD.replace("90.0", "1:30"), "points[0].tok_s = '1:30': must be a finite number > 0"),
        (GOOD.replace("90.0", "0x5a"), "points[0].tok_s = '0x5a': must be a finite number > 0"),
        (GOOD.replace("90.0", "!!int 92_4"), "value = '92_4': must be a number in plain decimal digits"),
        (GOOD.replace("depth: 3", "depth: 010"), "points[1].depth = '010': must be a whole number >= 0 or null"),
        (GOOD.replace("90.0", "-90.0"), "points[0].tok_s = -90.0: must be a finite number > 0"),
        (GOOD.replace("depth: 0, ", ""), "points[0].depth = None: is required (null = not recorded)"),
        (GOOD.replace("name: mine", ""), "name = None: is required"),
        ("name: mine\npoints: []\n", "points = []: must hold at least one measured point"),
        ("name: mine\npoints: 3\n", "points = 3: must be a list"),
        (GOOD + "engine: ${oc.env:HOME}\n", "engine = '${oc.env:HOME}': interpolation is not accepted"),
        (GOOD + "engine: !!python/object/apply:os.system [id]\n", "file = "),
        (GOOD + "engine: &a vllm\nverifier: *a\n", "file = "),
        (GOOD + "name: again\n", "name = '...': appears twice"),
        (GOOD + "schema: other/9\n", "schema = 'other/9': must be 'eagle-speedup/calibration/1'"),
        (GOOD + "engine: [1]\n", "engine = [1]: must be text or null"),
        (GOOD + "prior: {noise: 0}\n", "prior.noise = 0: must be a finite number > 0"),
        (GOOD + "simple_models: {x: {kind: magic}}\n", "simple_models.x.kind = 'magic': must be one of linear_breakev"),
        (
            GOOD + "simple_models: {x: {kind: [a]}}\n",
            "simple_models.x.kind = ['a']: must be one of linear_breakeven, op",
        ),
        (GOOD.replace("90.0", "9" * 400), f"value = '{'9' * 116}...: is too large a number"),
        (GOOD.replace("90.0", "9" * 5000), f"value = '{'9' * 116}...: is too large a number"),
        (GOOD.replace("90.0", "!!bool maybe"), "file = "),
        ("- 1\n- 2\n", "file = "),
        ("a: [\n", "file = "),
        (b"\x00\xff\x00", "file = "),
        ("x: " + "[" * 60 + "]" * 60, "file = "),
    ],
)
def test_refusals_are_one_line_with_path_value_and_rule(tmp_path, text, message):
    with pytest.raises(InputError) as error:
        load_calibration(write(tmp_path, text))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", ["90", "+90", "90.", "90.0", "9.0e+1", ".9e+2"])
def test_every_plain_way_of_writing_a_number(tmp_path, number):
    assert load_calibration(write(tmp_path, GOOD.replace("90.0", number))).points[0].tok_s == 90


@pytest.mark.parametrize("text", ["010", "1:30", "92_4", "1e5", "12e4567", "2025-01-02", "5", "-.5", "0x1f"])
def test_text_that_looks_like_a_number_comes_back_as_text(tmp_path, text):
    calibration = dataclasses.replace(load_calibration(write(tmp_path, GOOD)), engine_version=text)
    path = save_calibration(calibration, tmp_path / "saved.yaml")
    assert load_calibration(path).engine_version == text


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="unknown name; did you mean 'kimi_k2_5_origin'"):
        load_calibration("kimi_k25_origin")


def test_missing_file_and_wrong_type():
    with pytest.raises(InputError, match="No such file"):
        load_calibration("/nowhere/x.yaml")
    with pytest.raises(InputError, match="must be a name, a path, a mapping or a Calibration"):
        load_calibration(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("load", [load_node, load_verifier, load_calibration])
def test_what_can_not_be_a_name(load):
    for name, rule in (
        ("a" * 300, "unknown name|File name too long"),
        ("a/" + "a" * 300 + ".yaml", "No such file|File name too long"),
        ("a" * 300 + ".yaml", "File name too long"),
        ("a\0.yaml", "can not be the name of a file"),
        ("\ud800.yaml", "can not be the name of a file"),
        (None, "None: must be a name"),
        ([], r"\[\]: must be a name"),
    ):
        with pytest.raises(InputError, match=rule) as error:
            load(name)
        assert "\n" not in str(error.value)


def test_a_number_too_large_for_plain_data():
    with pytest.raises(InputError) as error:
        load_calibration({"name": "x", "points": [{"depth": 0, "tok_s": 10**5000}]})
    assert str(error.value) == "points[0].tok_s = '2^16609 or more': is too large a number"


def test_round_trip_and_fingerprint(tmp_path):
    calibration = load_calibration(write(tmp_path, GOOD))
    again = load_calibration(save_calibration(calibration, tmp_path / "again.yaml"))
    assert again == calibration
    assert again.fingerprint == calibration.fingerprint
    turned = dataclasses.replace(calibration, points=calibration.points[::-1])
    assert turned.fingerprint == calibration.fingerprint
    assert turned.model.fingerprint == calibration.model.fingerprint
    retitled = dataclasses.replace(calibration, title="another title")
    assert retitled.fingerprint == calibration.fingerprint
    other_engine = dataclasses.replace(calibration, engine="vllm")
    assert other_engine.fingerprint != calibration.fingerprint
    more = dataclasses.replace(calibration, points=(*calibration.points, MeasuredPoint(5, 121.0, 2.6)))
    assert more.fingerprint != calibration.fingerprint


@pytest.mark.parametrize("name", calibration_names())
def test_every_shipped_calibration_loads_fits_and_names_its_sources(name):
    calibration = load_calibration(name)
    assert calibration.name == name
    assert calibration.sources
    assert all(p.source for p in calibration.points)
    if calibration.node is not None:
        assert load_node(calibration.node).name == calibration.node
    assert calibration.verifier is not None
    assert load_verifier(calibration.verifier).name == calibration.verifier
    assert calibration.model.round_ms(3).value > calibration.model.step_ms().value > 0


@pytest.mark.parametrize("name", config_names("node"))
def test_every_node_loads_with_sources(name):
    node = load_node(name)
    assert node.name == name and node.gpu_count >= 1
    for constant in node.constants.values():
        assert constant.source and constant.unit and constant.kind in ("measured", "specification", "derived")
    assert 1000 < (node.get("memory_bandwidth_gb_s") or 0) < 10000


@pytest.mark.parametrize("name", config_names("verifier"))
def test_every_verifier_loads_with_sources(name):
    verifier = load_verifier(name)
    assert verifier.name == name
    assert all(constant.source and constant.unit for constant in verifier.constants.values())
    assert (verifier.get("active_params_b") or 0) <= (verifier.get("total_params_b") or 0)


def test_experts_start_from_a_steeper_prior_than_dense_weights():
    points = load_calibration("kimi_k2_5_origin").points
    dense = Calibration("x", points, verifier="llama_3_1_8b")
    experts = Calibration("x", points, verifier="kimi_k2_5")
    assert dense.effective_prior.elasticity < experts.effective_prior.elasticity
    assert dense.fingerprint != experts.fingerprint
    assert Calibration("x", points, verifier="unheard of").effective_prior == Prior()
    assert Calibration("x", points, verifier="kimi_k2_5", prior=Prior(noise=0.02)).effective_prior.noise == 0.02


SPEC = "name: mine\ntitle: t\nmoe: {}\n"


@pytest.mark.parametrize("moe", ["true", "false"])
def test_a_verifier_given_as_a_file_decides_the_prior(tmp_path, monkeypatch, moe):
    (tmp_path / "my.yaml").write_text(SPEC.format(moe))
    path = write(tmp_path, GOOD + "verifier: my.yaml\n")
    calibration = load_calibration(path)  # the file lies beside the calibration, not here
    assert calibration.verifier_moe is (moe == "true") and calibration.warnings == ()
    assert calibration.effective_prior == Prior().for_verifier(moe=moe == "true") != Prior()
    monkeypatch.chdir(tmp_path)
    assert Calibration("x", calibration.points, verifier="my.yaml").fingerprint == calibration.fingerprint


def test_a_saved_calibration_keeps_the_kind_of_a_verifier_given_as_a_file(tmp_path):
    (tmp_path / "my.yaml").write_text(SPEC.format("true"))
    calibration = load_calibration(write(tmp_path, GOOD + "verifier: my.yaml\n"))
    away = tmp_path / "away"
    away.mkdir()
    moved = load_calibration(save_calibration(calibration, away / "c.yaml"))
    assert moved.verifier_moe is True and moved.fingerprint == calibration.fingerprint
    assert "moe" not in save_calibration(load_calibration("kimi_k2_5_origin"), away / "o.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("llama_3_1_8bb", "is no shipped configuration (did you mean 'llama_3_1_8b'?): whether"),
        ("A Model Of Our Own", "is no shipped configuration: whether it is dense"),
        ("gone.yaml", "is a file that is not found"),
    ],
)
def test_a_verifier_of_unknown_kind_is_told(tmp_path, name, says):
    calibration = load_calibration(write(tmp_path, GOOD + f"verifier: {name}\n"))
    assert calibration.effective_prior == Prior() and calibration.verifier_moe is None
    (warning,) = calibration.warnings
    assert warning.startswith(f"the verifier {name!r} {says}") and "the prior is the general one" in warning
    known = load_calibration(write(tmp_path, GOOD + f"verifier: {name}\nmoe: false\n"))
    assert known.warnings == () and known.effective_prior == Prior().for_verifier(moe=False)
    stated = load_calibration(write(tmp_path, GOOD + f"verifier: {name}\nprior: {{elasticity: 0.3}}\n"))
    assert stated.warnings == (), "nothing was left to the kind of verifier"
    partly = load_calibration(write(tmp_path, GOOD + f"verifier: {name}\nprior: {{noise: 0.02}}\n"))
    assert partly.warnings[0].endswith("in the calibration and leave out prior.elasticity and prior.elasticity_spread")


def test_the_kind_of_a_verifier_is_checked(tmp_path):
    for line, message in (
        ("moe: 3", "moe = 3: must be true, false or null"),
        ("verifier: llama_3_1_8b\nmoe: true", "moe = True: contradicts the verifier 'llama_3_1_8b', which is dense"),
        ("verifier: bad.yaml", "verifier.moe = 'yes': must be true or false"),
    ):
        (tmp_path / "bad.yaml").write_text(SPEC.format("'yes'"))
        with pytest.raises(InputError) as error:
            load_calibration(write(tmp_path, GOOD + line + "\n"))
        assert str(error.value) == message


def test_node_and_verifier_files_are_read_strictly(tmp_path):
    path = tmp_path / "n.yaml"
    path.write_text("name: n\ntitle: t\ngpu: g\ngpu_count: 0\ninterconnect: i\n")
    with pytest.raises(InputError, match="gpu_count = 0: must be a whole number >= 1"):
        load_node(path)
    path.write_text(
        "name: n\ntitle: t\nmoe: true\nconstants: {layer: {value: 1, unit: x, kind: measured, source: s}}\n"
    )
    with pytest.raises(InputError, match=r"constants.layer = .*: unknown key; did you mean 'layers'"):
        load_verifier(path)
    path.write_text("name: n\ntitle: t\nmoe: true\nconstants: {layers: {value: 1, unit: x, kind: guess, source: s}}\n")
    with pytest.raises(InputError, match=r"constants.layers.kind = 'guess': must be one of measured, specification"):
        load_verifier(path)


CONSTANT = "{{value: {}, unit: x, kind: measured, source: s}}"


@pytest.mark.parametrize(
    ("load", "constant", "value", "rule"),
    [
        (load_node, "memory_bandwidth_gb_s", "0", "= 0.0: must be a finite number > 0; leave out what is not there"),
        (load_node, "memory_bandwidth_gb_s", "1.0e-300", "= 1e-300: must lie in [1e-09, 1e+15]"),
        (load_verifier, "routed_experts", "0", "= 0.0: must be a finite number > 0; leave out what is not there"),
        (load_verifier, "kv_lora_rank", "0", "= 0.0: must be a finite number > 0; leave out what is not there"),
        (load_verifier, "weight_bits", "0", "= 0.0: must be a finite number > 0; leave out what is not there"),
        (load_verifier, "hidden_size", "1.0e+300", "= 1e+300: must lie in [1e-09, 1e+15]"),
        (load_node, "memory_gb", "9.5e1", "= '9.5e1': must be a finite number or null (write 95 rather than 9.5e1)"),
        (load_verifier, "dense_layers", "-1", "= -1.0: must be a finite number >= 0"),
        (load_verifier, "dense_layers", "9", "= 9.0: must be at most layers = 8"),
        (load_verifier, "dense_layers", "0", None),
        (load_verifier, "shared_experts", "0", None),
    ],
)
def test_constants_that_can_not_be(tmp_path, load, constant, value, rule):
    path = tmp_path / "spec.yaml"
    more = "gpu: g\ngpu_count: 8\ninterconnect: i\n" if load is load_node else "moe: true\n"
    others = f", layers: {CONSTANT.format(8)}" if load is load_verifier else ""
    path.write_text(f"name: n\ntitle: t\n{more}constants: {{{constant}: {CONSTANT.format(value)}{others}}}\n")
    if rule is None:
        assert load(path).get(constant) == 0
        return
    with pytest.raises(InputError) as error:
        load(path)
    assert str(error.value) == f"constants.{constant}.value {rule}"


def test_loading_a_calibration_object_gives_it_back(tmp_path):
    calibration = load_calibration(write(tmp_path, GOOD))
    assert load_calibration(calibration) is calibration
