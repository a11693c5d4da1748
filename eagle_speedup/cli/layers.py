"""The layers of an estimate as text. The calibrated figure is the headline; the upper bound never looks like one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .answer import Answer
from .console import make_console
from .reasons import NOTHING_MEASURED
from .what_if import BatchRow, Wish
from .wording import figure, short, times

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

    p, c, bracket = answer.projection, answer.calibration, answer.is_bracket
    users = "" if p.batch == 1 else f", {figure(p.tok_s_per_user, bracket)} for each of {p.batch} users"
    beyond = f" (extrapolated beyond the {_steps(answer)} given)" if p.depth > answer.given.lengths.ttt_steps else ""
    text = (
        f"[bold]{figure(p.tok_s, bracket)} tok/s[/bold] at depth {p.depth}{beyond}{users}: {times(p.ratio, bracket)} "
        f"the {answer.baseline.tok_s} tok/s without speculation{_how_known(answer)}\n"
        f"{_decision(answer)}{'' if c.is_measured else f': {NOTHING_MEASURED}'}{_better(answer)}"
    )
    context = "as calibrated" if p.context_tokens is None else f"{p.context_tokens:.12g} tokens"
    workload = "" if p.workload is None else f", workload {p.workload}"
    console.print(c.title or c.name, markup=False)
    console.print(
        f"calibration {c.name}, fingerprint {p.fingerprint}; batch {p.batch}, context {context}{workload}",
        style="dim",
        markup=False,
    )
    console.print(Panel(text, title=_panel_title(answer), title_align="left"))


def _panel_title(answer: Answer) -> str:
    known = "calibrated" if answer.calibration.is_measured else f"simulated, {NOTHING_MEASURED}"
    return f"{known}; a bracket, 90 % at each end" if answer.is_bracket else f"{known}, 90 % interval"


def _decision(answer: Answer) -> str:
    decision = answer.verdict.decision
    return f"[{_STYLE[decision]}]{_WORD[decision]}[/]"


def _better(answer: Answer) -> str:
    """The best of the measured depths, where it is not the one asked about; what lies beyond is named as such."""
    p, out, bracket = answer.projection, "", answer.is_bracket
    best, beyond, ends = p.best_measured_depth, p.best_beyond, answer.best_depths
    if ends is not None and ends.independence != ends.frechet:
        out = f"; depth {ends}"
    elif best == 0:
        out = "; no measured depth gains: do not speculate" if beyond else "; no depth gains: do not speculate"
    elif best != p.depth:
        out = f"; best at depth {best}: {figure(p.by_depth[best - 1].tok_s, bracket)} tok/s"
    if beyond is not None and beyond.depth != p.depth:
        out += f"\nextrapolated beyond the {_steps(answer)} given, not measured: "
        out += f"depth {beyond.depth}, {figure(beyond.tok_s, bracket)} tok/s"
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
        (_calibrated_title(answer), _calibrated(answer)),
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
    bound, length = answer.bound, answer.projection.accept_length
    cost = f"{1 + bound.overhead:g} plain steps" if bound.overhead else "no more than one plain step"
    end = "the Frechet bound" if answer.is_bracket else "the upper end of the accept length"
    at = f" and {end}, {bound.accept_length:.3f}, held" if bound.accept_length > length.value else ""
    known = answer.rules.optimistic is not None or answer.baseline.measured
    caution = "" if known else " The tok/s rest on a baseline that is estimated, at its upper end."
    return (
        f"at most {bound.ratio:.3f}x, {bound.tok_s:.1f} tok/s, if a round cost {cost}{at}. Verifying several tokens is "
        f"never free, so served speed stays below.{caution}{f' {bound.note}' if bound.note else ''}"
    )


def _linear(answer: Answer) -> str:
    length = answer.projection.accept_length
    lines = []
    for name, rule in answer.linear.items():
        value, lo, hi = (rule.tok_s(end) for end in (length.value, length.lo, length.hi))
        speed = f"{lo:.1f} to {hi:.1f} tok/s" if answer.is_bracket else f"{value:.1f} tok/s [{lo:.1f}, {hi:.1f}]"
        lines.append(f"{speed} from the {name} breakeven {rule.breakeven_accept_length:.5g}")
    return "\n".join([*lines, *answer.rules.left_out])


def _calibrated_title(answer: Answer) -> str:
    if not answer.calibration.is_measured:
        return f"Simulated ({NOTHING_MEASURED}: no calibration, a prior)"
    return "Calibrated (use this one)"


def _calibrated(answer: Answer) -> str:
    p, bracket = answer.projection, answer.is_bracket
    speed = f"{figure(p.tok_s, bracket)} tok/s, {times(p.ratio, bracket)}"
    return f"{speed}; a round takes {p.round_ms} ms, breakeven accept length {p.breakeven}"


def _by_depth(answer: Answer) -> Table:
    from rich.table import Table

    p, steps = answer.projection, answer.given.lengths.ttt_steps
    table = Table(box=None, padding=(0, 1, 0, 0))
    for title in ("depth", "accept length", "round ms", "tok/s", "speedup", "breakeven", ""):
        table.add_column(title, no_wrap=True)
    shown = {*range(1, steps + 1), p.depth, p.best_depth, 10, 16}
    ends, marks = answer.best_depths, [("best", p.best_measured_depth), ("headline", p.depth)]
    if ends is not None and ends.independence != ends.frechet:
        marks[:1] = [("best if independent", ends.independence), ("best at Frechet", ends.frechet)]
    for row in p.by_depth:
        if row.depth not in shown:
            continue
        notes = [word for word, depth in marks if row.depth == depth]
        notes += ["extrapolated"] if row.depth > steps else []
        lengths, speeds, ratios = (short(v, answer.is_bracket) for v in (row.accept_length, row.tok_s, row.ratio))
        cells = (lengths, short(row.round_ms), speeds, ratios, short(row.breakeven))
        style = "bold" if row.depth == p.depth else "dim" if row.depth > steps else ""
        table.add_row(str(row.depth), *cells, ", ".join(notes), style=style)
    return table


def _limit(answer: Answer) -> str:
    limit, bracket = answer.limit, answer.is_bracket
    if limit.tail_conditional is None:
        return f"accept length {limit.accept_length:.2f} at depth {answer.given.lengths.max_depth}: {limit.reason}."
    lengths = ", ".join(
        f"{short(row.accept_length, True) if bracket else f'{row.accept_length.value:.2f}'} at depth {row.depth}"
        for row in answer.projection.by_depth
        if row.depth in (10, 16) and row.depth > answer.given.lengths.ttt_steps
    )
    return f"accept length {lengths}; limit {limit.accept_length:.2f}: {limit.reason}."


def _by_batch(answer: Answer) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    for title in ("batch", "best depth", "tok/s", "speedup", "breakeven", "tok/s without"):
        table.add_column(title, no_wrap=True)
    for row in answer.by_batch:
        cells = (short(row.tok_s, answer.is_bracket), short(row.ratio, answer.is_bracket), short(row.breakeven))
        without = short(row.baseline.tok_s) + ("" if row.baseline.measured else ", not measured")
        table.add_row(str(row.batch), _best_of(row), *cells, without)
    return table


def _best_of(row: BatchRow) -> str:
    ends = row.best_depth_bracket
    if ends is not None and ends.independence != ends.frechet:
        return f"{ends.independence or 'none'} if independent, {ends.frechet or 'none'} at Frechet"
    return str(row.best_depth) if row.best_depth else "do not speculate"


def _batch_grid(answer: Answer) -> Table:
    from rich.table import Table

    depths = range(1, len(answer.by_batch[0].tok_s_by_depth) + 1)
    table = Table("batch", "none", *(f"depth {d}" for d in depths), box=None, padding=(0, 1, 0, 0))
    bracket = answer.is_bracket
    for row in answer.by_batch:
        roomy = len(depths) <= _ROOM_FOR_INTERVALS
        speeds = (short(v, bracket) if roomy or bracket else f"{v.value:.0f}" for v in row.tok_s_by_depth)
        cells = [short(row.baseline.tok_s) if roomy else f"{row.baseline_tok_s:.0f}", *speeds]
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
