"""``eagle-speedup demo``: train a real drafter on this machine, then compare projected with served speed."""

from __future__ import annotations

from pathlib import Path

__all__ = ["run"]


def run(
    *, minutes: float = 6.0, seed: int = 0, resume: bool = False, decode: bool = True, out: str | Path = "demo_out"
) -> None:
    """Run the demo with SmolLM2-135M-Instruct on the CPU, without any network.

    Args:
        minutes: budget of the whole demo.
        seed: of everything random.
        resume: go on with the interrupted run in ``out``.
        decode: calibrate this machine and measure at the end, by real decoding.
        out: run folder: checkpoints, logs, calibration, table, plot.

    Raises:
        InputError: something is not installed, too little memory, or ``out`` holds something else.
    """
    from .environment import go_offline, require_packages

    go_offline()
    require_packages()
    from .flow import Options, run_demo
    from .subject import load_smollm2_subject

    run_demo(Options(minutes=minutes, seed=seed, resume=resume, decode=decode, out=Path(out)), load_smollm2_subject)
