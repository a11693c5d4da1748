"""The layers of an estimate as text. The calibrated figure is the headline; the upper bound never looks like one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..estimate import Estimate
from .answer import Answer
from .console import make_console
from .what_if import Wish

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["show_answer"]

_STYLE = {"go": "bold green", "no-go": "bold red", "unclear": "bold yellow"}
_WORD = {"go": "GO", "no-go": "NO-GO", "unclear": "UNCLEAR"}
_ROOM_FOR_INTERVALS = 5
_KIND = {
    "joint": "joint accuracies",
    "marginal": "marginal accuracies",
    "conditional": "conditional accuracies",
    "counts": "counts of a validation",
}


def show_answer(answer: Answer) -> None:
    """Print all layers to standard output."""
    console = make_console()
    _headline(console, answer)
    for title, body in _layers(answer):
        console.print(f"\n[bold]{title}[/bold]")
        console.print(body)


def _headline(console: Console, answer: Answer) -> None:
    from rich.panel import Panel

    p, c = answer.projection, answer.calibration
    users = "" if p.batch == 1 else f", {p.tok_s_per_user} for each of {p.batch} users"
    beyond = f" (extrapolated beyond the {_steps(answer)} given)" if p.depth > answer.given.lengths.ttt_steps else ""
    text = (
        f"[bold]{p.tok_s} tok/s[/bold] at depth {p.depth}{beyond}{users}: {_ratio(p.ratio)} "
        f"the {answer.baseline.tok_s} tok/s without speculation{_how_known(answer)}\n"
        f"{_decision(answer)}{_better(answer)}"
    )
    context = "as calibrated" if p.context_tokens is None else f"{p.context_tokens:.12g} tokens"
    workload = "" if p.workload is None else f", workload {p.workload}"
    console.print(c.title or c.name, markup=False)
    console.print(
        f"calibration {c.name}, fingerprint {p.fingerprint}; batch {p.batch}, context {context}{workload}",
        style="dim",
        markup=False,
    )
    console.print(Panel(text, title="calibrated, 90 % interval", title_align="left"))


def _decision(answer: Answer) -> str:
    decision = answer.verdict.decision
    return f"[{_STYLE[decision]}]{_WORD[decision]}[/]"


def _better(answer: Answer) -> str:
    """The best of the measured depths, where it is not the one asked about; what lies beyond is named as such."""
    p, out = answer.projection, ""
    best, beyond = p.best_measured_depth, p.best_beyond
    if best == 0:
        out = "; no measured depth gains: do not speculate" if beyond else "; no depth gains: do not speculate"
    elif best != p.depth:
        out = f"; best at depth {best}: {p.by_depth[best - 1].tok_s} tok/s"
    if beyond is not None and beyond.depth != p.depth:
        out += f"\nextrapolated beyond the {_steps(answer)} given, not measured: "
        out += f"depth {beyond.depth}, {beyond.tok_s} tok/s"
    return out


def _steps(answer: Answer) -> str:
    steps = answer.given.lengths.ttt_steps
    return f"{steps} step{'s' if steps > 1 else ''}"


def _how_known(answer: Answer) -> str:
    from rich.markup import escape

    p = answer.projection
    if answer.baseline.measured:
        return ""
    context = "" if p.context_tokens is None else f", context {p.context_tokens:.12g} tokens"
    workload = "" if p.workload is None else f", workload {p.workload}"
    return f", which is estimated: not measured at batch {p.batch}{context}{escape(workload)}"


def _layers(answer: Answer) -> list[tuple[str, object]]:
    from rich.markup import escape

    p = answer.projection
    layers: list[tuple[str, object]] = [
        (f"What was measured ({_KIND[answer.given.kind]}, {escape(answer.given.source)})", _measured(answer)),
        (f"{_length_title(answer)} at depth {p.depth}", _length_text(answer)),
        ("Upper bound, NOT a forecast", _upper_bound(answer)),
    ]
    if answer.linear or answer.rules.left_out:
        layers.append(("Linear rules (straight through one breakeven; they know no depth)", _linear(answer)))
    layers += [
        ("Calibrated (use this one)", _calibrated(answer)),
        (
            "Go or no-go",
            f"{_decision(answer)}: {answer.verdict.reason}",
        ),
        ("Over draft depth", _by_depth(answer)),
        ("What more depth can give", _limit(answer)),
        ("What would change it", _bullets(answer.what_would_change_it)),
    ]
    layers = [(f"{number}. {title}", body) for number, (title, body) in enumerate(layers, 1)]
    if answer.by_batch:
        layers.append(("Best depth per batch size", _by_batch(answer)))
        layers.append(("tok/s over batch size and draft depth", _batch_grid(answer)))
    if answer.wish:
        layers.append((f"What {answer.wish.tok_s:g} tok/s would take", _wish(answer.wish)))
    if answer.served and not answer.served.alarm:
        layers.append(("Served against validated", answer.served.message))
    if answer.warnings:
        layers.append(("Warnings", _bullets(answer.warnings)))
    return layers


def _measured(answer: Answer) -> Table:
    from rich.table import Table

    given = answer.given
    table = Table("TTT step", *(str(k + 1) for k in range(len(given.full_acc))), box=None)
    if given.kind == "marginal":
        table.add_row("step_acc", *(f"{v:.3f}" for v in given.values))
    implied = " if independent" if given.kind == "marginal" else ""
    table.add_row(f"full_acc{implied}", *(f"{v:.3f}" for v in given.full_acc))
    table.add_row(f"cond_acc{implied}", *(f"{v:.3f}" for v in given.conditionals))
    return table


def _length_title(answer: Answer) -> str:
    return "Accept length" if answer.given.kind == "counts" else "Textbook accept length"


def _length_text(answer: Answer) -> str:
    if answer.bracket is None:
        return f"{answer.projection.accept_length}  {answer.given.explanation}"
    low, high = answer.bracket
    return f"between {low:.3f} (independent) and {high:.3f} (Frechet)  {answer.given.explanation}"


def _upper_bound(answer: Answer) -> str:
    rule, accept_length = answer.optimistic, answer.projection.accept_length.value
    cost = f"{1 + rule.draft_overhead:g} plain steps" if rule.draft_overhead else "no more than one plain step"
    known = answer.rules.optimistic is not None or answer.baseline.measured
    caution = "" if known else " The tok/s rest on a baseline that is estimated."
    return (
        f"at most {rule.ratio(accept_length):.3f}x, {rule.tok_s(accept_length):.1f} tok/s, if a round cost {cost}. "
        f"Verifying several tokens is never free, so served speed stays below.{caution}"
    )


def _linear(answer: Answer) -> str:
    accept_length = answer.projection.accept_length.value
    lines = [
        f"{rule.tok_s(accept_length):.1f} tok/s from the {name} breakeven {rule.breakeven_accept_length:.5g}"
        for name, rule in answer.linear.items()
    ]
    return "\n".join([*lines, *answer.rules.left_out])


def _calibrated(answer: Answer) -> str:
    p = answer.projection
    return f"{p.tok_s} tok/s, {_ratio(p.ratio)}; a round takes {p.round_ms} ms, breakeven accept length {p.breakeven}"


def _by_depth(answer: Answer) -> Table:
    from rich.table import Table

    p, steps = answer.projection, answer.given.lengths.ttt_steps
    table = Table(box=None, padding=(0, 1, 0, 0))
    for title in ("depth", "accept length", "round ms", "tok/s", "speedup", "breakeven", ""):
        table.add_column(title, no_wrap=True)
    shown = {*range(1, steps + 1), p.depth, p.best_depth, 10, 16}
    marks = (("best", p.best_measured_depth), ("headline", p.depth))
    for row in p.by_depth:
        if row.depth not in shown:
            continue
        notes = [word for word, depth in marks if row.depth == depth]
        notes += ["extrapolated"] if row.depth > steps else []
        cells = (row.accept_length, row.round_ms, row.tok_s, row.ratio, row.breakeven)
        style = "bold" if row.depth == p.depth else "dim" if row.depth > steps else ""
        table.add_row(str(row.depth), *map(_short, cells), ", ".join(notes), style=style)
    return table


def _limit(answer: Answer) -> str:
    lengths = ", ".join(
        f"{row.accept_length.value:.2f} at depth {row.depth}"
        for row in answer.projection.by_depth
        if row.depth in (10, 16) and row.depth > answer.given.lengths.ttt_steps
    )
    limit = answer.limit
    if limit.tail_conditional is None:
        return f"accept length {limit.accept_length:.2f} at depth {answer.given.lengths.max_depth}: {limit.reason}."
    return f"accept length {lengths}; limit {limit.accept_length:.2f}: {limit.reason}."


def _by_batch(answer: Answer) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    for title in ("batch", "best depth", "tok/s", "speedup", "breakeven", "tok/s without"):
        table.add_column(title, no_wrap=True)
    for row in answer.by_batch:
        depth = str(row.best_depth) if row.best_depth else "do not speculate"
        cells = (row.tok_s, row.ratio, row.breakeven)
        without = _short(row.baseline.tok_s) + ("" if row.baseline.measured else ", not measured")
        table.add_row(str(row.batch), depth, *map(_short, cells), without)
    return table


def _batch_grid(answer: Answer) -> Table:
    from rich.table import Table

    depths = range(1, len(answer.by_batch[0].tok_s_by_depth) + 1)
    table = Table("batch", "none", *(f"depth {d}" for d in depths), box=None, padding=(0, 1, 0, 0))
    for row in answer.by_batch:
        roomy = len(depths) <= _ROOM_FOR_INTERVALS
        speeds = (_short(tok_s) if roomy else f"{tok_s.value:.0f}" for tok_s in row.tok_s_by_depth)
        cells = [_short(row.baseline.tok_s) if roomy else f"{row.baseline_tok_s:.0f}", *speeds]
        cells[row.best_depth] = f"[bold]{cells[row.best_depth]}[/]"
        table.add_row(str(row.batch), *cells)
    return table


def _wish(wish: Wish) -> str:
    needed = f"accept length {wish.accept_length} at depth {wish.depth}"
    if not wish.reachable:
        bound = f"at most {wish.depth + 1}" if wish.accept_length.value > 1 else "at least 1"
        return f"{needed}: out of reach there, since an accept length is {bound}"
    return f"{needed}, which a conditional accuracy of {wish.conditional:.3f} at every step gives"


def _bullets(lines: tuple[str, ...]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    for line in lines:
        table.add_row("-", Text(line))
    return table


def _ratio(ratio: Estimate) -> str:
    return f"{ratio.value:.2f}x [{ratio.lo:.2f}, {ratio.hi:.2f}]"


def _short(value: Estimate) -> str:
    digits = 0 if value.value >= 20 else 1 if value.value >= 10 else 2
    return f"{value.value:.{digits}f} [{value.lo:.{digits}f}, {value.hi:.{digits}f}]"
