"""How many requests a benchmark had decoding together, which its client's limit alone does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from .reading import Contradiction

__all__ = [
    "accept_length",
    "agreed_batch",
    "check_token_time",
    "counted_tok_s",
    "positive",
    "served_batch",
    "total_tok_s",
]

_GROSS = 2.0  # time outside decoding and the ends of a run explain less than this
_FULL = 0.8  # share of the limit that decodes in a run at its limit: ramps and first tokens take the rest
_ABSURD = 10.0  # decoding all requests at once is faster than the wall clock shows, but not by this much
_SAME_LENGTH = 0.02  # accept lengths that differ by less are one figure, rounded


def positive(result: Mapping[str, Any], key: str) -> float | None:
    """The number under ``key``; None where it is missing, none, not above 0 or absurd."""
    value = result.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        return None
    return float(value)


def total_tok_s(result: Mapping[str, Any]) -> float | None:
    """Output tokens per second over the wall clock, as printed.

    Raises:
        InputError: it differs grossly from the tokens and the duration beside it.
    """
    printed, counted = positive(result, "output_throughput"), counted_tok_s(result)
    if printed and counted and not 1 / _GROSS <= counted / printed <= _GROSS:
        tokens, duration = result["total_output_tokens"], result["duration"]
        rule = f"contradicts its {tokens:g} output tokens in {duration:g} s, which are {counted:.4g} tok/s"
        raise InputError("output_throughput", printed, rule)
    return printed


def counted_tok_s(result: Mapping[str, Any]) -> float | None:
    """Output tokens over the duration of the run; None where either is missing."""
    tokens, duration = positive(result, "total_output_tokens"), positive(result, "duration")
    return tokens / duration if tokens and duration else None


def check_token_time(field: str, tpot_ms: float | None, batch: int, total: float | None, beside: str) -> None:
    """Refuse a time per token that the throughput ``total`` beside it denies, such as one in seconds.

    Raises:
        InputError: ``batch`` requests at that pace give more than ten times ``total``.
    """
    if tpot_ms is None or total is None or 1000 * batch / tpot_ms <= _ABSURD * total:
        return
    rule = (
        f"would be {1000 * batch / tpot_ms:,.0f} tok/s at batch {batch}, more than {_ABSURD:g} times the {beside} of "
        f"{total:.4g}: is it in milliseconds, and was the server busy?"
    )
    raise InputError(field, tpot_ms, rule)


def accept_length(result: Mapping[str, Any], notes: list[str]) -> float | None:
    """Accept length, bonus token included: by the counts of a run where it has them, else as printed; None = neither.

    ``notes`` gets both figures where they differ.
    """
    names = ("spec_decode_acceptance_length", "accept_length")
    field, printed = next(((n, value) for n in names if (value := positive(result, n))), (names[0], None))
    drafts, accepted = positive(result, "spec_decode_num_drafts"), result.get("spec_decode_accepted_tokens")
    none_accepted = accepted == 0 and not isinstance(accepted, bool)
    accepted = 0.0 if none_accepted else positive(result, "spec_decode_accepted_tokens")
    if drafts is None or accepted is None:
        return printed
    counted = 1 + accepted / drafts
    if printed is None or abs(printed / counted - 1) <= _SAME_LENGTH:
        return counted if printed is None else printed
    bonus = ", as if without the bonus token" if abs((printed + 1) / counted - 1) <= _SAME_LENGTH else ""
    notes.append(
        f"{field} = {printed:g}: differs from 1 + accepted / drafts = 1 + {accepted:g} / {drafts:g} = {counted:.4g} "
        f"of the same result{bonus}; the counts are taken"
    )
    return counted


def served_batch(result: Mapping[str, Any], hinted: int | None, tpot_ms: float | None, notes: list[str]) -> int:
    """Requests that decoded together in a run of ``vllm bench serve`` or SGLang's ``bench_serving``.

    ``max_concurrency`` is what the client allowed. No more than completed were in flight, and throughput times time per
    token is how many decoded on average. A run at its limit loses a tenth or so to its ramps and first tokens, and the
    time of a round hardly depends on that much: where less than four fifths decoded (a request rate held the client
    back, or prefill took the time), the time per token is that of fewer requests, and the average is taken.

    Args:
        result: the run.
        hinted: the batch that the user gave.
        tpot_ms: milliseconds per output token of one request.
        notes: gets what was assumed.

    Raises:
        Contradiction: ``hinted`` is not what the run says.
        InputError: the run contradicts itself, or nobody says how many there were.
    """
    total = total_tok_s(result)
    limit, mean = _limit(result, notes), positive(result, "concurrency")
    if total is not None and tpot_ms is not None:
        decoding = total * tpot_ms / 1000
        mean = decoding if mean is None else min(mean, decoding)
        if limit is not None and decoding > _GROSS * limit:
            most = 1000 * limit / tpot_ms
            rule = f"contradicts {limit} requests at {tpot_ms:g} ms a token, which give {most:.4g} tok/s at most"
            raise InputError("output_throughput", total, rule)
    if limit is None or (mean is not None and mean < _FULL * limit):
        return _measured_batch(limit, mean, hinted, notes)
    return agreed_batch(hinted, limit)


def agreed_batch(hinted: int | None, says: int, *, mean: float | None = None) -> int:
    """The batch of a run: its own, or the hinted one if that is the same (of a mean: near it).

    Raises:
        Contradiction: the hint is another.
    """
    if hinted is None or (mean is not None and mean / _GROSS <= hinted <= mean * _GROSS):
        return hinted or says
    if hinted != says:
        raise Contradiction("batch", hinted, str(says) if mean is None else f"about {says}")
    return hinted


def _limit(result: Mapping[str, Any], notes: list[str]) -> int | None:
    """Most requests that can have been in flight; None where the client had no limit."""
    allowed = round(positive(result, "max_concurrency") or positive(result, "concurrency") or 0)
    completed = positive(result, "completed")
    if not allowed:
        return None
    if completed is not None and completed < allowed:
        notes.append(f"max_concurrency {allowed}, but {completed:g} requests completed: no more ran together")
        return int(completed)
    return allowed


def _measured_batch(limit: int | None, mean: float | None, hinted: int | None, notes: list[str]) -> int:
    if mean is None:
        if hinted is None:
            raise InputError("batch", None, "not known, since no max_concurrency was set; give batch=")
        return hinted
    about = max(1, round(mean))
    if limit is None and hinted is None:
        rule = f"not known, since no max_concurrency was set; give batch= (throughput times time per token: {about})"
        raise InputError("batch", None, rule)
    batch = agreed_batch(hinted, about, mean=mean)
    if hinted is not None:
        if not _FULL * hinted <= mean <= hinted / _FULL:
            notes.append(f"batch {hinted} taken as given, though {mean:.3g} requests decoded on average")
    elif limit is not None:
        notes.append(
            f"batch {batch}, from throughput times time per token: {limit} requests could run together, but did not"
        )
    return batch
