"""Back-test of the throughput model: predicts measured series from a few of their points and prints the README's table.

    python benchmarks/backtest.py                 the series of the shipped calibrations
    python benchmarks/backtest.py SERIES.yaml     a file of published series

Ends with status 1 when a goal is missed.
"""

from __future__ import annotations

import sys

from eagle_speedup.errors import InputError
from eagle_speedup.throughput import calibration_names, load_calibration
from eagle_speedup.throughput.backtest import Prediction, Summary, backtest, flagged_series, load_series, series_of
from eagle_speedup.throughput.backtest import summarise as summary_of

NAMES = {
    "A": "A: another data set or drafter",
    "B": "B: another depth",
    "C": "C: another batch size",
    "ABC": "A, B and C",
    "one": "one point only",
}


def main(arguments: list[str]) -> int:
    try:
        series = load_series(arguments[0]) if arguments else tuple(
            s for name in calibration_names() for s in series_of(load_calibration(name))
        )  # fmt: skip
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    predictions = backtest(series)
    flagged = flagged_series(series)
    kept = [p for p in predictions if not p.flagged]
    print(f"{len(series)} series with baseline and accept length, {len(flagged)} of them flagged as inconsistent\n")
    print(
        "| protocol | predictions | median error | p90 | inside the 90 % interval | half-width | simple rule | regret |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rows = {name: summary_of(chosen) for name in NAMES if (chosen := select(kept, name))}
    for name, row in rows.items():
        print(line(NAMES[name], row))
    for reason in sorted(set(flagged.values())):
        apart = [p for p in predictions if flagged.get(p.series) == reason and p.protocol != "one"]
        print(f"\nReported apart ({reason}): " + (line("A, B and C", summary_of(apart)) if apart else "no predictions"))
    missed = misses(rows)
    print("\n" + ("All goals met." if not missed else "Missed: " + "; ".join(missed)))
    return 1 if missed else 0


def select(predictions: list[Prediction], name: str) -> list[Prediction]:
    wanted = ("A", "B", "C") if name == "ABC" else (name,)
    return [p for p in predictions if p.protocol in wanted]


def line(name: str, s: Summary) -> str:
    cells = [name, str(s.n), f"{s.median:.1%}", f"{s.p90:.1%}", f"{s.coverage:.0%}", f"{s.half_width:.1%}"]
    cells += [f"{s.rule_median:.1%} ({s.rule_p90:.1%})", f"{s.regret:.2%}"]
    return "| " + " | ".join(cells) + " |"


def misses(rows: dict[str, Summary]) -> list[str]:
    out = []
    total = rows.get("ABC")
    if total is not None:
        out += [] if total.median <= 0.04 else [f"median error {total.median:.1%} above 4 %"]
        out += [] if total.p90 <= 0.12 else [f"p90 {total.p90:.1%} above 12 %"]
        out += [] if 0.85 <= total.coverage <= 0.95 else [f"coverage {total.coverage:.0%} outside 85..95 %"]
        out += [] if total.regret <= 0.02 else [f"regret {total.regret:.1%} above 2 %"]
    for name in ("A", "B", "C"):
        if name in rows and round(rows[name].median, 3) > round(rows[name].rule_median, 3):
            out.append(f"protocol {name} worse than the simple rule")
    if "one" in rows and rows["one"].coverage < 0.85:
        out.append(f"one point: coverage {rows['one'].coverage:.0%} below 85 %")
    return out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
