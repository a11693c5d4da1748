"""A run of the demo on a verifier small enough to take seconds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from eagle_speedup.demo import phases
from eagle_speedup.demo.budget import StepBudget
from eagle_speedup.demo.environment import go_offline
from eagle_speedup.demo.flow import Options, run_demo
from eagle_speedup.demo.subject import Subject
from eagle_speedup.eagle3.data import Conversation
from eagle_speedup.eagle3.decoder import greedy_decode
from eagle_speedup.eagle3.recipe import DemoRecipe
from eagle_speedup.eagle3.verifier import LlamaVerifier
from tests.eagle3.conftest import EOS, prompts_of, train_verifier

# The minutes are never used up: steps and answers end every phase, so that a slow machine runs the same test.
MINUTES = 10.0
STEPS = StepBudget(last_step=45, interval=5)
CHANGES = {
    "budget": {"warm_up_share": 1e-6, "measurement_share": 1e-6},
    "held_out": {"least": 12, "most": 12, "least_served": 5},
    "training": {"patience": 99},  # whether gains stall depends on this machine's timings, so no test may
}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices only wait for each other on more; and no network, as in the command."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    go_offline()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def subject() -> Subject:
    """A verifier that has learned a grammar, with conversations it wrote."""
    verifier = LlamaVerifier.from_hf(train_verifier(steps=60), float16_grid=True, max_positions=256)
    prompts = prompts_of(96, seed=6)
    answers = greedy_decode(verifier, prompts, max_new=32, eos_id=EOS).answers
    return Subject(
        name="tiny",
        verifier=verifier,
        eos_id=EOS,
        recipe=DemoRecipe(tap_layers=(0, 1, 2), draft_vocab_size=32, soft_targets=8, max_new=32, batch_size=8),
        conversations=tuple(Conversation.from_answer(p, a.ids) for p, a in zip(prompts, answers, strict=True)),
        prompts=lambda count, seed: prompts_of(count, 100 + seed),
        prompts_text="sentences of a grammar",
    )


@dataclass(frozen=True)
class Told:
    """A finished run and what it printed."""

    found: Any
    """`Findings`; None where a finished run was only shown again."""
    text: str
    out: Path


def run_tiny(subject: Subject, out: Path, *, resume: bool = False, decode: bool = True, seed: int = 0) -> Told:
    """Run the whole demo on it."""
    page = io.StringIO()
    patched = pytest.MonkeyPatch()
    patched.setattr(phases, "step_budget", lambda **_: STEPS)
    try:
        found = run_demo(
            Options(minutes=MINUTES, seed=seed, resume=resume, decode=decode, out=out),
            lambda: subject,
            changes=CHANGES,
            console=Console(file=page, width=200),
            memory_gb=16.0,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(page.getvalue()) from None
    finally:
        patched.undo()
    return Told(found, page.getvalue(), out)


@pytest.fixture(scope="session")
def finished(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """One complete run."""
    return run_tiny(subject, tmp_path_factory.mktemp("demo") / "out")
