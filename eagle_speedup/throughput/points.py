"""One measured throughput figure and the rules it must satisfy."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from numbers import Integral
from typing import Any

from ..errors import InputError

__all__ = ["MeasuredPoint", "check_nodes"]

_GROSS = 2.0  # figures of one measurement that differ by more are not of one measurement
_LEAST_DECODING = 0.01  # share of the wall clock: with less in decoding, the unit is not milliseconds
_HEAVIEST = 1e6
_FASTEST = 1e12  # tok/s of a whole batch
_BRIEFEST_MS, _LONGEST_MS = 1e-4, 1e8  # of a token, and of a round: any wider, and their ratio has no logarithm
_LONGEST_CONTEXT = 1e9  # a projection is asked for no more either
_SHORTEST_MS = 0.05  # an engine step launches more kernels than fit into less


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A served measurement: tokens per second at one depth, batch size and context.

    A depth-0 point is decoding without speculation (the baseline). ``depth=None`` says that the depth was not recorded;
    the calibration then treats it as unknown. Give ``step_ms`` (the engine's own time per round) where it is known: it
    needs no accept length. At least one of ``tok_s`` and ``step_ms`` is required; a ``step_ms`` of more than twice the
    time that ``tok_s`` leaves for a round is refused, and so is one of less than a hundredth.

    >>> MeasuredPoint(depth=3, tok_s=122.0, accept_length=2.278).round_ms
    18.672131147540984
    """

    depth: int | None
    """Draft tokens along the longest path of a round; 0 = no speculation, None = not recorded."""
    tok_s: float | None
    """Output tokens per second, all users together (or of one user: ``per_user``)."""
    accept_length: float | None = None
    """Mean tokens per round, bonus token included; None = not recorded."""
    batch: int = 1
    """Requests decoded together."""
    context_tokens: float | None = None
    """Tokens of context a request holds on average; None = not recorded."""
    per_user: bool = False
    """Whether ``tok_s`` is that of one user rather than of the whole batch."""
    topk: int = 1
    """Branches per draft step; 1 = chain."""
    num_draft_tokens: int | None = None
    """Nodes that the verifier checks per request, root included; for trees. A chain checks ``depth + 1``."""
    step_ms: float | None = None
    """Milliseconds of one engine step (depth 0) or round (depth > 0), decode only."""
    workload: str | None = None
    """Data set or traffic the point belongs to: its totals may hold prefill. None: taken for steady decoding."""
    source: str | None = None
    """Where the figure was read."""
    weight: float | None = None
    """Trust relative to an ordinary point (1.0): a point of weight 4 counts as four."""

    def __post_init__(self) -> None:
        for name, least in (("depth", 0), ("batch", 1), ("topk", 1), ("num_draft_tokens", 1)):
            optional = name in ("depth", "num_draft_tokens")
            # Replaced, as numpy's whole numbers do not go into JSON.
            object.__setattr__(self, name, _whole(name, getattr(self, name), least, optional=optional))
        for name, most in (("tok_s", _FASTEST), ("step_ms", _LONGEST_MS), ("weight", _HEAVIEST)):
            _positive(name, getattr(self, name), most)
        if self.tok_s is None and self.step_ms is None:
            raise InputError("tok_s", None, "must be given unless step_ms is")
        _number("context_tokens", self.context_tokens, 0.0, "must be a number >= 0 or null", _LONGEST_CONTEXT)
        _number("accept_length", self.accept_length, 1.0, "must be a number >= 1 (bonus token included) or null", 1e9)
        if not isinstance(self.per_user, bool):
            raise InputError("per_user", self.per_user, "must be true or false")
        self._check_accept_length()
        self._check_tree()
        self._check_times()
        for name in ("workload", "source"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InputError(name, value, "must be text or null")

    def _check_accept_length(self) -> None:
        if self.accept_length is None or self.depth is None:
            return
        if self.depth == 0 and self.accept_length != 1:
            raise InputError("accept_length", self.accept_length, "must be 1 or null at depth 0 (no speculation)")
        if self.accept_length > self.depth + 1:
            rule = f"must be at most depth + 1 = {self.depth + 1}"
            raise InputError("accept_length", self.accept_length, rule)

    def _check_tree(self) -> None:
        check_nodes(self.depth, self.topk, self.num_draft_tokens)

    def _check_times(self) -> None:
        """The engine's own time of a round is one, and fits into what ``tok_s`` leaves for it.

        The other way round they may differ by much: ``tok_s`` of the wall clock holds prefill and queueing too.
        """
        for time in (self.token_ms, self.round_ms):
            if time is not None and not _BRIEFEST_MS <= time <= _LONGEST_MS:
                what = f"says {time:.3g} ms for a token or round at batch {self.batch}"
                raise InputError("tok_s", self.tok_s, f"{what}, must be {_BRIEFEST_MS:g} to {_LONGEST_MS:g}")
        if self.step_ms is None:
            return
        if self.step_ms < _SHORTEST_MS:
            raise InputError("step_ms", self.step_ms, f"must be milliseconds, at least {_SHORTEST_MS:g}")
        share = self.decoding_share
        if self.token_ms is None or share is None:
            return
        most = self.accept_length if self.accept_length is not None else None if self.depth is None else self.depth + 1
        if most is not None and self.step_ms > _GROSS * self.token_ms * most:
            what = "accept length" if self.accept_length is not None else "at most"
            said = f"tok_s = {self.tok_s:g}{' per user' if self.per_user else ''} at batch {self.batch}"
            rule = f"contradicts {said}, which leaves {self.token_ms * most:.3g} ms for a round of {what} {most:.3g}"
            raise InputError("step_ms", self.step_ms, rule)
        if share < _LEAST_DECODING:
            rule = f"must be milliseconds: it is {share:.1%} of the time that tok_s = {self.tok_s:g} says"
            raise InputError("step_ms", self.step_ms, rule)

    @property
    def is_tree(self) -> bool:
        """Whether the drafts branch."""
        return self.topk > 1

    @property
    def nodes(self) -> float | None:
        """Tokens per request that the verifier checks in one step: ``depth + 1`` for a chain; None when unknown."""
        if self.is_tree:
            return self.num_draft_tokens
        return None if self.depth is None else self.depth + 1

    @property
    def total_tok_s(self) -> float | None:
        """Tokens per second of the whole batch."""
        if self.tok_s is None:
            return None
        return self.tok_s * self.batch if self.per_user else self.tok_s

    @property
    def token_ms(self) -> float | None:
        """Milliseconds between two tokens of one user, everything included: ``1000 * batch / total_tok_s``."""
        total = self.total_tok_s
        return None if total is None else 1000.0 * self.batch / total

    @property
    def decoding_share(self) -> float | None:
        """``step_ms`` over the time of a round by ``tok_s`` (of one token where the accept length is not known)."""
        if self.step_ms is None or self.token_ms is None:
            return None
        return self.step_ms / (self.token_ms * (self.accept_length or 1.0))

    @property
    def round_ms(self) -> float | None:
        """Milliseconds per round implied by the point; None when its accept length is missing."""
        if self.step_ms is not None:
            return self.step_ms
        if self.depth == 0:
            return self.token_ms
        if self.accept_length is None or self.token_ms is None:
            return None
        return self.token_ms * self.accept_length

    def as_dict(self) -> dict[str, Any]:
        """The fields that differ from their defaults, ready for YAML or JSON."""
        defaults = {f.name: f.default for f in fields(self)}
        return {k: v for k, v in asdict(self).items() if k in ("depth", "tok_s") or v != defaults[k]}


def check_nodes(depth: int | None, topk: int, num_draft_tokens: int | None) -> None:
    """Refuse a number of nodes that contradicts the depth: with its root, a path of ``depth`` drafts holds one more.

    For a chain it is redundant, and some engines leave the root out.
    """
    if depth == 0 and topk > 1:
        raise InputError("topk", topk, "must be 1 at depth 0 (no speculation)")
    if topk > 1 and num_draft_tokens is None:
        raise InputError("num_draft_tokens", None, "must be given for a tree (topk > 1)")
    if depth is None or num_draft_tokens is None or (depth == 0 and topk == 1):
        return
    if topk > 1 and num_draft_tokens < depth + 1:
        raise InputError("num_draft_tokens", num_draft_tokens, f"must be at least depth + 1 = {depth + 1} for a tree")
    if topk == 1 and num_draft_tokens not in (depth, depth + 1):
        rule = f"must be depth + 1 = {depth + 1} for a chain, or {depth} where the root is left out"
        raise InputError("num_draft_tokens", num_draft_tokens, rule)


def _whole(name: str, value: object, least: int, *, optional: bool) -> int | None:
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(name, value, f"must be a whole number >= {least}{' or null' if optional else ''}")
    if int(value) > 10**9:
        raise InputError(name, value, "must be at most 1e9")
    return int(value)


def _number(name: str, value: object, least: float, rule: str, most: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
        raise InputError(name, value, rule)
    if value > most:
        raise InputError(name, value, f"must be at most {most:g}")


def _positive(name: str, value: object, most: float) -> None:
    _number(name, value, 0.0, "must be a finite number > 0", most)
    if value == 0:
        raise InputError(name, value, "must be a finite number > 0")
