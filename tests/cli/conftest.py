from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from eagle_speedup.cli import main

from ..readers.test_engine_logs import spec, stats

ORIGIN = ".742,.47,.29,.15,.097"


class Cli:
    """Commands run in this process, through the function that the console script calls."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def text(self, *words: str) -> str:
        code, out, err = self(*words)
        assert (code, err) == (0, "")
        return out

    def output(self, *words: str) -> str:
        """Standard output of a command whose warnings go to standard error."""
        code, out, err = self(*words)
        assert code == 0
        assert all(line.startswith("warning: ") for line in err.splitlines())
        return out

    def json(self, *words: str) -> dict[str, Any]:
        return json.loads(self.text(*words, "--json"))

    def refusal(self, *words: str) -> str:
        """The one line that bad input gets."""
        code, out, err = self(*words)
        assert (code, out) == (2, "")
        assert err.startswith("eagle-speedup: ") and err.endswith("\n") and err.count("\n") == 1
        return err[len("eagle-speedup: ") : -1]


@pytest.fixture
def cli(capsys) -> Cli:
    return Cli(capsys)


@pytest.fixture
def program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The console script, in its own process."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        code = "import sys; from eagle_speedup.cli import main; sys.exit(main())"
        return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture
def logs(tmp_path):
    """A baseline of 50 tok/s, and depth 3 at accept length 2.667 and 80 tok/s: rounds of 20 and 33.3 ms."""
    base, drafted = tmp_path / "base.log", tmp_path / "spec.log"
    base.write_text("\n".join(stats(s, 50.0, 1) for s in range(0, 50, 10)))
    rates = [0.8, 0.5, 0.367]
    drafted.write_text(
        "\n".join(line for s in range(0, 50, 10) for line in (stats(s, 80.0, 1), spec(s, 500, 900, rates)))
    )
    return base, drafted
