"""What this machine can do: free memory, threads that are really ours, kernels, speed of the verifier."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..eagle3.linear import ranked_kernels
from ..eagle3.verifier import LlamaVerifier
from ..errors import InputError
from .settings import MachineSettings

__all__ = [
    "Machine",
    "Speeds",
    "busy_note",
    "check_memory",
    "free_memory_gb",
    "inspect_machine",
    "is_busy",
    "kernel_note",
    "use_threads",
]

_CONTEXT = 96  # tokens of context in the probes, about what an answer's middle has
_ROWS = 3  # tokens a step in the probes: between plain decoding and a deep draft
_PREFILL = 256
_BULK_PROBES = 3
_PAUSE_S = 2.0  # before a second look at a busy machine
_WORTH_IT = 1.25  # how much faster several threads must be; less is the noise of a shared machine


@dataclass(frozen=True)
class Machine:
    """Measured at the start of a run."""

    memory_gb: float
    """Free memory."""
    threads: int
    """Threads that PyTorch uses from here on."""
    decode_threads: int
    """Threads for decoding one answer at a time: one, unless more are faster, since one waits for no other."""
    kernels: tuple[str, ...]
    """Few-row kernels that work here, fastest first."""
    step_ms: float
    """One decoding step of a few tokens, batch 1, with ``decode_threads``."""
    positions_s: float
    """Positions a second that the verifier reads in bulk (prefill)."""
    notes: tuple[str, ...] = ()
    """What the user should know, in plain sentences."""


def free_memory_gb(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Free memory in GB (1e9 bytes); infinite where the system does not say."""
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 / 1e9
    except OSError:
        pass
    return float("inf")


def check_memory(free_gb: float, settings: MachineSettings) -> str | None:
    """A note where memory is scarce; InputError where it can not be enough."""
    if free_gb < settings.least_memory_gb:
        rule = f"must be at least {settings.least_memory_gb:g} GB; close other programs and try again"
        raise InputError("free memory", f"{free_gb:.1f} GB", rule)
    if free_gb < settings.low_memory_gb:
        return f"only {free_gb:.1f} GB of memory are free: the training set is cut to what fits"
    return None


def is_busy(seconds: Sequence[float], factor: float) -> bool:
    """Whether a forward pass took ``factor`` times the best of the first three, twice or more.

    A neighbour on our cores makes every multi-threaded operation wait for the thread that lost its core: a few passes
    then take ten times longer. One slow pass alone is a hiccup.
    """
    best = min(seconds[:3])
    return sum(s > factor * best for s in seconds) >= 2


def kernel_note(kernels: Sequence[str]) -> str | None:
    """A note where no packed kernel beats the plain one: verifying several tokens then costs several steps."""
    if kernels[0] != "plain":
        return None
    why = "work on this machine" if len(kernels) == 1 else "are faster than it"
    consequence = "plain ones are used, and speculation may be a slow-down here"
    return f"no packed few-row kernels (oneDNN, FBGEMM) {why}: {consequence}"


@dataclass(frozen=True)
class Speeds:
    """Seconds of forward passes: of a few rows (decoding) and of many (prefill, and training is like it)."""

    few: Sequence[float]
    """With all threads."""
    few_alone: Sequence[float]
    """With one thread."""
    many: Sequence[float]
    """With all threads."""
    many_alone: Sequence[float]
    """With one thread."""


def inspect_machine(verifier: LlamaVerifier, settings: MachineSettings, memory_gb: float) -> Machine:
    """Time the verifier, fall back to one thread where the cores are not ours, and collect the notes."""
    notes = [note for note in (check_memory(memory_gb, settings), kernel_note(ranked_kernels())) if note]
    all_threads = torch.get_num_threads()
    speeds, busy = _look(verifier, settings, all_threads)
    if busy is not None:
        time.sleep(_PAUSE_S)  # a neighbour's burst is over by then, and one thread would cost the whole run
        speeds, busy = _look(verifier, settings, all_threads)
    if busy is not None:
        notes.append(busy)
        torch.set_num_threads(1)
    worth_it = busy is None and _median(speeds.few_alone) > _WORTH_IT * _median(speeds.few)
    return Machine(
        memory_gb=memory_gb,
        threads=torch.get_num_threads(),
        decode_threads=all_threads if worth_it else 1,
        kernels=tuple(ranked_kernels()),
        step_ms=1000 * _median(speeds.few if worth_it else speeds.few_alone),
        positions_s=_PREFILL / _median(speeds.many if busy is None else speeds.many_alone),
        notes=tuple(notes),
    )


def _look(verifier: LlamaVerifier, settings: MachineSettings, all_threads: int) -> tuple[Speeds, str | None]:
    """Speeds, and a note where the machine is busy."""
    few, many = _stepper(verifier), _prefiller(verifier)
    together = timed(few, settings.probes), timed(many, _BULK_PROBES)
    with use_threads(1):
        alone = (timed(few, settings.probes), timed(many, _BULK_PROBES)) if all_threads > 1 else together
    speeds = Speeds(together[0], alone[0], together[1], alone[1])
    return speeds, busy_note(speeds, settings.busy_factor) if all_threads > 1 else None


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let PyTorch use so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def busy_note(speeds: Speeds, factor: float) -> str | None:
    """A note where another program has our cores, so that one thread is the better choice.

    Args:
        speeds: of this machine.
        factor: see `is_busy`.
    """
    many, alone = _median(speeds.many), _median(speeds.many_alone)
    if is_busy(speeds.few, factor):
        seen = f"a forward pass took {1000 * max(speeds.few):.0f} ms, the best {1000 * min(speeds.few):.0f} ms"
    elif many * _WORTH_IT > alone:
        seen = f"{_PREFILL} tokens at once take {1000 * many:.0f} ms, with one thread {1000 * alone:.0f} ms"
    else:
        return None
    return f"another program uses this machine's cores ({seen}): one thread from here on, and figures will scatter"


def _median(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of several calls, after one that does not count."""
    call()
    out = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        out.append(time.perf_counter() - start)
    return out


def _stepper(verifier: LlamaVerifier) -> Callable[[], object]:
    cache = verifier.new_cache(1, _CONTEXT + _ROWS)
    verifier.forward(torch.ones(1, _CONTEXT, dtype=torch.long), cache, logits="none")
    tokens = torch.ones(1, _ROWS, dtype=torch.long)

    def step() -> None:
        cache.rollback(min(_CONTEXT, cache.lengths[0]))
        verifier.forward(tokens, cache)

    return step


def _prefiller(verifier: LlamaVerifier) -> Callable[[], object]:
    length = min(_PREFILL // 4, verifier.config.max_positions)
    ids = torch.ones(_PREFILL // length, length, dtype=torch.long)
    last = verifier.config.layers - 1  # nothing deeper than the deepest tap would be computed
    return lambda: verifier.forward(ids, verifier.new_cache(*ids.shape), taps=(last,), logits="none")
