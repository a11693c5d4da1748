"""Reference speculative decoder: chain drafts, lossless verification, rounds counted per answer."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle_speedup.errors import InputError

from .cache import KVCache
from .drafter import Eagle3Drafter
from .engine import DraftEngine
from .sampling import Acceptor
from .verifier import LlamaVerifier

__all__ = [
    "Answer",
    "DecodeResult",
    "ReadPrompts",
    "Rounds",
    "finish",
    "greedy_decode",
    "greedy_rounds",
    "read_prompts",
    "speculative_decode",
    "speculative_rounds",
]


@dataclass
class Answer:
    """One generated answer."""

    prompt_tokens: int
    ids: list[int] = field(default_factory=list)
    """Generated tokens, the end-of-turn token included when it came."""
    accepted: list[int] = field(default_factory=list)
    """Drafts accepted in every round that became part of the answer; empty for plain decoding."""
    verified: list[int] = field(default_factory=list)
    """Drafts that passed verification in every round, those past the end of the answer included (what vLLM counts)."""
    finished: bool = False
    """Whether the end-of-turn token came."""

    @property
    def rounds(self) -> int:
        """Verifier calls after prefill."""
        return len(self.accepted)


@dataclass
class DecodeResult:
    """Answers with the time they took; `seconds` is decoding alone, prefill (which yields every first token) is
    `prefill_seconds`.
    """

    answers: list[Answer]
    depth: int
    """Draft tokens a round; 0 for plain decoding."""
    batch: int
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    steps: int = 0
    """Verifier forwards after prefill, each for all rows of the batch that were left."""

    @property
    def tokens(self) -> int:
        """Decoded tokens: all but the first of each answer, which prefill makes."""
        return sum(max(len(a.ids) - 1, 0) for a in self.answers)

    @property
    def rounds(self) -> int:
        """Rounds of all answers."""
        return sum(a.rounds for a in self.answers)

    @property
    def tok_s(self) -> float:
        """Decoded tokens a second."""
        return self.tokens / self.seconds if self.seconds else float("nan")

    @property
    def step_ms(self) -> float:
        """Milliseconds a round (or a plain step)."""
        return 1000 * self.seconds / self.steps if self.steps else float("nan")

    @property
    def accept_length(self) -> float:
        """Decoded tokens a round, bonus token included and prefill token excluded."""
        return self.tokens / self.rounds if self.rounds else float("nan")

    @property
    def vllm_accept_length(self) -> float:
        """What vLLM prints: 1 + accepted drafts / drafting rounds, accepted tokens past the end of an answer
        included.
        """
        return 1 + sum(sum(a.verified) for a in self.answers) / self.rounds if self.rounds else float("nan")

    @property
    def sglang_accept_length(self) -> float:
        """What SGLang prints: completion tokens / verifier calls, the prefill token included."""
        return sum(len(a.ids) for a in self.answers) / self.rounds if self.rounds else float("nan")

    def __add__(self, other: DecodeResult) -> DecodeResult:
        """Both runs together."""
        return DecodeResult(
            self.answers + other.answers, self.depth, self.batch, self.seconds + other.seconds,
            self.prefill_seconds + other.prefill_seconds, self.steps + other.steps,
        )  # fmt: skip


Rounds = Generator[int, None, DecodeResult]
"""Decoding that pauses after prefill and after every round; yields the tokens so far, returns the result.

What happens in the pauses is not timed, so several runs can take turns and meet the same noise of a machine.
"""


def finish(rounds: Rounds) -> DecodeResult:
    """Decode to the end."""
    while True:
        try:
            next(rounds)
        except StopIteration as stop:
            result: DecodeResult = stop.value
            return result


def greedy_decode(
    verifier: LlamaVerifier, prompts: Sequence[Sequence[int]], *, max_new: int, eos_id: int | None = None
) -> DecodeResult:
    """Plain greedy decoding of all prompts as one batch.

    Args:
        verifier: the model.
        prompts: token ids of every prompt.
        max_new: longest answer, end-of-turn token included.
        eos_id: token that ends an answer; None for none.
    """
    return finish(greedy_rounds(verifier, prompts, max_new=max_new, eos_id=eos_id))


@dataclass(frozen=True)
class ReadPrompts:
    """Prompts after prefill; several runs can go on from it, at any depth."""

    prompts: Sequence[Sequence[int]]
    cache: KVCache
    """The verifier's, with the prompts and nothing else."""
    logits: Tensor
    """[B, V] at every prompt's last token."""
    taps: Tensor | None
    """[B, longest, taps * hidden], None where none were asked for."""


@torch.inference_mode()
def read_prompts(verifier: LlamaVerifier, prompts: Sequence[Sequence[int]], taps: Sequence[int] = ()) -> ReadPrompts:
    """Run the prompts through the verifier, right-padded.

    Args:
        verifier: the model.
        prompts: token ids of every prompt.
        taps: the drafter's `tap_layers`, for `speculative_rounds`.
    """
    if not prompts or any(len(p) < 2 for p in prompts):
        raise InputError(
            "prompts", [len(p) for p in prompts][:8], "must be at least one prompt, each of at least 2 tokens"
        )
    lengths = [len(p) for p in prompts]
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    cache = verifier.new_cache(len(prompts), max(lengths))
    out = verifier.forward(ids.to(verifier.device), cache, taps=taps, logits="hidden")
    cache.rollback(lengths)
    assert out.hidden is not None
    last = out.hidden[torch.arange(len(lengths)), torch.tensor(lengths) - 1]
    return ReadPrompts(prompts, cache, verifier.logits(last), out.taps)


@torch.inference_mode()
def greedy_rounds(
    verifier: LlamaVerifier,
    prompts: Sequence[Sequence[int]] | ReadPrompts,
    *,
    max_new: int,
    eos_id: int | None = None,
) -> Rounds:
    """`greedy_decode`, one step at a time."""
    run = _Run(verifier, prompts, max_new, eos_id, depth=0)
    first = run.read.logits.argmax(-1).tolist()
    run.begin([[token] for token in first])
    while run.live:
        yield run.pause()
        run.go_on()
        newest = torch.tensor([[a.ids[-1]] for a in run.live_answers()], device=verifier.device)
        logits = verifier.forward(newest, run.cache).logits
        assert logits is not None
        run.advance([[token] for token in logits[:, -1].argmax(-1).tolist()])
    return run.result()


def speculative_decode(
    verifier: LlamaVerifier,
    drafter: Eagle3Drafter | DraftEngine,
    prompts: Sequence[Sequence[int]],
    *,
    depth: int,
    max_new: int,
    eos_id: int | None = None,
    mode: str = "greedy",
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> DecodeResult:
    """Speculative decoding of all prompts as one batch, chain drafts of `depth` tokens.

    Lossless: greedy answers are those of `greedy_decode`; sampled ones follow the verifier's distribution.

    Args:
        verifier: the model.
        drafter: a drafter, or its `DraftEngine` to pack the weights only once.
        prompts: token ids of every prompt.
        depth: drafts a round, at least 1.
        max_new: longest answer, end-of-turn token included.
        eos_id: token that ends an answer; None for none.
        mode: "greedy"; "onehot" (sampling, the draft is the drafter's most likely token); "rejection" (the draft is
            sampled too).
        temperature: of both models, for the sampling modes.
        generator: source of randomness for the sampling modes.
    """
    options = {"depth": depth, "max_new": max_new, "eos_id": eos_id, "mode": mode, "temperature": temperature}
    return finish(speculative_rounds(verifier, drafter, prompts, **options, generator=generator))  # type: ignore[arg-type]


@torch.inference_mode()
def speculative_rounds(
    verifier: LlamaVerifier,
    drafter: Eagle3Drafter | DraftEngine,
    prompts: Sequence[Sequence[int]] | ReadPrompts,
    *,
    depth: int,
    max_new: int,
    eos_id: int | None = None,
    mode: str = "greedy",
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Rounds:
    """`speculative_decode`, one round at a time; prompts that are read already need this drafter's taps."""
    if depth < 1:
        raise InputError("depth", depth, "must be at least 1")
    engine = drafter if isinstance(drafter, DraftEngine) else DraftEngine(drafter)
    accept = Acceptor(mode, temperature, generator)
    run = _Run(verifier, prompts, max_new, eos_id, depth, engine.tap_layers)
    prompts, taps = run.read.prompts, run.read.taps
    assert taps is not None
    draft_cache = engine.new_cache(len(prompts), run.cache.capacity)
    engine.prefill(draft_cache, prompts, taps)
    first = [[token] for token in accept.sample(run.read.logits).tolist()]
    stay = run.begin(first)
    # Anchor t pairs token x_t with the feature at t - 1: the first answer token goes with the prompt's last position.
    pending, taps = first, taps[torch.arange(len(prompts)), torch.tensor([len(p) - 1 for p in prompts])][:, None]
    if len(stay) < len(prompts) and stay:
        draft_cache.keep_rows(stay)
        pending, taps = [pending[r] for r in stay], taps[stay]
    while run.live:
        yield run.pause()
        run.go_on()
        drafts, q = engine.draft(draft_cache, pending, taps, depth, accept)
        newest = [a.ids[-1] for a in run.live_answers()]
        inputs = torch.cat((torch.tensor(newest, device=drafts.device)[:, None], drafts), 1)
        out = verifier.forward(inputs, run.cache, taps=engine.tap_layers)
        assert out.logits is not None and out.taps is not None
        pending, taps = accept(out.logits, drafts, q), out.taps
        stay = run.advance(pending)
        if len(stay) < len(pending) and stay:
            draft_cache.keep_rows(stay)
            pending, taps = [pending[r] for r in stay], taps[stay]
    return run.result()


class _Run:
    """Bookkeeping of one batch: which answers are live, what they hold, when they end."""

    def __init__(
        self,
        verifier: LlamaVerifier,
        prompts: Sequence[Sequence[int]] | ReadPrompts,
        max_new: int,
        eos_id: int | None,
        depth: int,
        taps: Sequence[int] = (),
    ) -> None:
        if max_new < 1:
            raise InputError("max_new", max_new, "must be at least 1")
        self._start = time.perf_counter()
        self.read = prompts if isinstance(prompts, ReadPrompts) else read_prompts(verifier, prompts, taps)
        width = 0 if self.read.taps is None else self.read.taps.shape[-1]
        if taps and width != len(taps) * verifier.config.hidden_size:
            raise InputError("prompts", f"taps of width {width}", f"must be read with the drafter's taps {taps}")
        self._max_new, self._eos = max_new, eos_id
        lengths = [len(p) for p in self.read.prompts]
        self.cache: KVCache = verifier.new_cache(len(lengths), max(lengths) + max_new + depth + 1)
        self.cache.copy_from(self.read.cache)
        self._result = DecodeResult([Answer(n) for n in lengths], depth, len(lengths))
        self.live = list(range(len(lengths)))

    def begin(self, first: list[list[int]]) -> list[int]:
        """Take the first tokens, which prefill made: no round. Returns the batch rows that stay."""
        now = time.perf_counter()
        self._result.prefill_seconds = now - self._start
        self._start = now
        return self._take(first, count=False)

    def pause(self) -> int:
        """Stop the clock; the tokens so far."""
        self._result.seconds += time.perf_counter() - self._start
        return self._result.tokens

    def go_on(self) -> None:
        """Start the clock again."""
        self._start = time.perf_counter()

    def live_answers(self) -> list[Answer]:
        """Answers that still grow, in batch order."""
        return [self._result.answers[r] for r in self.live]

    def advance(self, new: list[list[int]]) -> list[int]:
        """Take every live answer's verified tokens (drafts, then the verifier's own); returns the batch rows that
        stay.
        """
        self._result.steps += 1
        return self._take(new, count=self._result.depth > 0)

    def _take(self, new: list[list[int]], count: bool) -> list[int]:
        stay = []
        for i, (row, tokens) in enumerate(zip(self.live, new, strict=True)):
            answer = self._result.answers[row]
            kept = self._clip(answer, tokens)
            answer.ids += kept
            if count:
                answer.accepted.append(min(len(tokens) - 1, len(kept)))
                answer.verified.append(len(tokens) - 1)
            answer.finished = kept[-1] == self._eos
            if not answer.finished and len(answer.ids) < self._max_new:
                stay.append(i)
        if len(stay) < len(self.live) and stay:
            self.cache.keep_rows(stay)
        self.live = [self.live[i] for i in stay]
        if stay:
            # All known tokens but the newest have been run through the verifier.
            held = [self._result.answers[r].prompt_tokens + len(self._result.answers[r].ids) - 1 for r in self.live]
            self.cache.rollback(held)
        return stay

    def _clip(self, answer: Answer, tokens: list[int]) -> list[int]:
        tokens = tokens[: self._max_new - len(answer.ids)]
        return tokens[: tokens.index(self._eos) + 1] if self._eos in tokens else tokens

    def result(self) -> DecodeResult:
        """The finished run."""
        self.pause()
        return self._result
