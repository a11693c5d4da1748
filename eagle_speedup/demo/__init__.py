"""``eagle-speedup demo``: train a real drafter on this machine, then compare projected with served speed."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["run"]


def run(
    *,
    minutes: float = 6.0,
    seed: int = 0,
    resume: bool = False,
    decode: bool = True,
    out: str | Path = "demo_out",
    begin: float | None = None,
) -> None:
    """Run the demo with SmolLM2-135M-Instruct on the CPU, without any network.

    Args:
        minutes: budget of the whole demo.
        seed: of everything random.
        resume: go on with the interrupted run in ``out``.
        decode: calibrate this machine and measure at the end, by real decoding.
        out: run folder: checkpoints, logs, calibration, table, plot.
        begin: `time.monotonic()` from which the minutes count: imports take some seconds of them; default: now.

    Raises:
        InputError: something is not installed, too little memory, or ``out`` holds something else.
    """
    from .environment import go_offline, require_packages

    begin = time.monotonic() if begin is None else begin
    go_offline()
    require_packages()
    print("loading PyTorch and Lightning ...", flush=True)
    from .flow import Options, run_demo
    from .subject import load_smollm2_subject

    options = Options(minutes=minutes, seed=seed, resume=resume, decode=decode, out=Path(out))
    run_demo(options, load_smollm2_subject, begin=begin)
