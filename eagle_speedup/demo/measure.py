"""Serving by real decoding, timed."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..eagle3.data import Conversation
from ..eagle3.decoder import DecodeResult, ReadPrompts, Rounds, greedy_rounds, read_prompts, speculative_rounds
from ..eagle3.engine import DraftEngine
from ..eagle3.verifier import LlamaVerifier
from ..errors import InputError

__all__ = ["Decode", "Served", "Totals", "decoder", "prompts_of", "serve", "total"]

Decode = Callable[[int, int], Rounds]
"""Decode a held-out answer at a draft depth (0 = plain), a round at a time."""


_WARM_UP_ROUNDS = 8


@dataclass(frozen=True)
class Served:
    """One answer, decoded once at one depth."""

    answer: int
    """Index of the held-out answer."""
    depth: int
    """Draft tokens a round; 0 = plain decoding."""
    tokens: int
    """Decoded tokens: all but the first, which prefill makes."""
    rounds: int
    """Verifier calls after prefill (one a token in plain decoding)."""
    seconds: float
    """Of those rounds alone; prefill is not timed."""
    ids: tuple[int, ...]
    """The whole answer."""

    @classmethod
    def of(cls, answer: int, result: DecodeResult) -> Served:
        """From a run of the decoder on one prompt."""
        return cls(answer, result.depth, result.tokens, result.steps, result.seconds, tuple(result.answers[0].ids))


@dataclass(frozen=True)
class Totals:
    """Sums over answers at one depth."""

    tokens: int
    rounds: int
    seconds: float

    @property
    def accept_length(self) -> float:
        """Tokens a round: a ratio of sums."""
        return self.tokens / self.rounds

    @property
    def round_ms(self) -> float:
        """Milliseconds a round."""
        return 1000 * self.seconds / self.rounds

    @property
    def tok_s(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def prompts_of(conversations: Sequence[Conversation]) -> list[list[int]]:
    """The prompts of one-turn conversations."""
    return [c.ids[: c.spans[0][0]] for c in conversations]


def decoder(
    verifier: LlamaVerifier, engine: DraftEngine, prompts: Sequence[Sequence[int]], *, max_new: int, eos_id: int
) -> Decode:
    """The real decoder; it reads a prompt once for all depths."""

    @functools.lru_cache(maxsize=1)
    def read(answer: int) -> ReadPrompts:
        return read_prompts(verifier, [prompts[answer]], engine.tap_layers)

    def decode(answer: int, depth: int) -> Rounds:
        prompt = read(answer)
        if depth == 0:
            return greedy_rounds(verifier, prompt, max_new=max_new, eos_id=eos_id)
        return speculative_rounds(verifier, engine, prompt, depth=depth, max_new=max_new, eos_id=eos_id)

    return decode


def serve(
    decode: Decode,
    answers: Sequence[int],
    depths: Sequence[int],
    *,
    progress: Callable[[int, int], None] | None = None,
    go_on: Callable[[int], bool] = lambda answers: True,
) -> tuple[Served, ...]:
    """Decode every answer at every depth, all depths taking turns round by round.

    Shared machines change speed by a third within seconds; so all depths write their answer side by side, the one that
    is behind goes next, and the noise hits all alike. Every depth runs a few rounds beforehand that do not count, and
    the garbage collector is off meanwhile.

    Args:
        decode: does it.
        answers: which.
        depths: of drafting; 0 = plain decoding.
        progress: called with (done, all) answers.
        go_on: asked with the number of answers done; once it says no, the rest is left out.
    """
    for depth in depths:
        for _ in zip(range(_WARM_UP_ROUNDS), decode(answers[0], depth), strict=False):
            pass
    out: list[Served] = []
    with _no_garbage_collection():
        for done, answer in enumerate(answers, 1):
            out += [Served.of(answer, result) for result in _side_by_side([decode(answer, d) for d in depths])]
            if progress:
                progress(done, len(answers))
            if not go_on(done):
                break
    return tuple(out)


def _side_by_side(runs: Sequence[Rounds]) -> list[DecodeResult]:
    """Results of runs that take turns: always a round of the one with the fewest tokens."""
    tokens = [-1] * len(runs)  # prefill of all comes first
    results: list[DecodeResult | None] = [None] * len(runs)
    while open_runs := [i for i, result in enumerate(results) if result is None]:
        behind = min(open_runs, key=tokens.__getitem__)
        try:
            tokens[behind] = next(runs[behind])
        except StopIteration as stop:
            results[behind] = stop.value
    return [result for result in results if result is not None]


def total(served: Sequence[Served], depth: int, answers: Sequence[int] | None = None) -> Totals:
    """Sums at one depth over all answers, or over some.

    Raises:
        InputError: nothing was decoded there.
    """
    chosen = [s for s in served if s.depth == depth and (answers is None or s.answer in answers) and s.tokens]
    if not chosen:
        raise InputError("depth", depth, "has no decoded answers")
    return Totals(sum(s.tokens for s in chosen), sum(s.rounds for s in chosen), sum(s.seconds for s in chosen))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
