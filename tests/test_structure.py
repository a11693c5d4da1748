"""Promises about the code itself: imports point one way, modules and functions stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(p for top in ("eagle_speedup", "callbacks", "configs") for p in (ROOT / top).rglob("*.py"))
SOURCES = [
    p
    for p in SOURCES
    if not (p.relative_to(ROOT).parts[0] == "eagle_speedup" and p.is_relative_to(ROOT / "eagle_speedup/callbacks"))
]
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# What each package may import of the project; a package may always import itself. Values know nothing of callbacks,
# callbacks nothing of the CLI.
BASE = {"errors", "estimate", "intervals", "_lazy"}
ALLOWED = {
    "errors": set(),
    "_lazy": set(),
    "estimate": {"errors"},
    "intervals": {"estimate"},
    "acceptance": BASE,
    "configs": set(),
    "throughput": BASE | {"configs"},
    "projection": BASE | {"acceptance", "throughput"},
    "training": BASE | {"acceptance", "throughput", "projection"},
    "readers": BASE | {"acceptance", "throughput", "projection"},
    "callbacks": BASE | {"acceptance", "throughput", "projection", "training"},
    "eagle3": BASE | {"acceptance"},
    "demo": BASE | {"acceptance", "throughput", "projection", "training", "readers", "callbacks", "eagle3"},
    "cli": BASE | {"acceptance", "throughput", "projection", "training", "readers", "configs", "demo"},
}
HEAVY = {"lightning", "pytorch_lightning", "wandb", "torchmetrics", "torch", "transformers", "matplotlib"}
MAY_IMPORT = {
    "acceptance": {"torch", "torchmetrics"},
    "callbacks": {"torch", "lightning", "wandb"},
    "eagle3": {"torch", "lightning", "transformers"},
    "demo": {"torch", "lightning", "wandb", "matplotlib"},
    "readers": {"wandb"},
    "cli": {"matplotlib"},
}


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] != "eagle_speedup" else (parts[1] if len(parts) > 1 else "")


def imports_of(path: Path) -> set[str]:
    """Absolute names of all imported modules, also those inside functions and type-checking blocks."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in ("callbacks", "configs"):
        parts.insert(0, "eagle_speedup")
    package = parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names} if node.level else {module}
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    package = package_of(path)
    if package in ("", "__init__", "__main__"):
        return
    for name in imports_of(path):
        top, *rest = name.split(".")
        if top == "eagle_speedup" and rest:
            assert rest[0] == package or rest[0] in ALLOWED[package] or rest[0] == "__version__", (
                f"{path} imports {name}"
            )
        if top in HEAVY:
            assert top in MAY_IMPORT.get(package, set()), f"{path} imports {name}"


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or node.lineno) - node.lineno < 60, f"{path}: {node.name}"


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import eagle_speedup.cli", {"torch", "lightning", "wandb", "transformers", "matplotlib"}),
        ("import eagle_speedup.projection, eagle_speedup.training", {"torch", "lightning", "wandb"}),
        ("from eagle_speedup import TTTAcceptance", {"lightning", "wandb"}),
        ("from eagle_speedup import SpeedupMonitor", {"wandb"}),
    ],
)
def test_nothing_heavy_is_imported_early(statement, absent):
    assert not modules_after(statement) & absent


def test_callbacks_are_reached_through_the_package_only():
    result = subprocess.run(
        [sys.executable, "-c", "import callbacks.speedup_monitor"], cwd=ROOT, capture_output=True, text=True
    )
    assert "attempted relative import beyond top-level package" in result.stderr
