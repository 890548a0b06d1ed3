"""`python -m bench targets`: what libddl is to reach, beside what was measured, in one go."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from bench import environments
from bench.cases import Case, UsageError
from bench.goals import (
    FOUR,
    HUGE,
    KI,
    LARGE,
    MI,
    MIDDLE,
    MOVES,
    OURS,
    SMALL,
    Verdict,
    all_targets,
    same_rate,
)
from bench.libraries import LIBRARIES, find
from bench.machine import Machine
from bench.measure import Report, Wanted, measure
from bench.plots import check_plot, plot
from bench.resources import resources
from bench.scheduler import Effort
from bench.tables import show_results

DESCRIPTION = """\
Measure what libddl's targets speak of, and say which are met, for each distance of the cores.

Ratios are medians over rounds in which all had a turn: above 1, libddl is faster.
"""


@dataclass(frozen=True)
class Part:
    """What is measured together; None: memory and start, instead of operations."""

    name: str
    wanted: Wanted | None
    libraries: tuple[str, ...] = LIBRARIES


def _cases(operation: str, dtype: str, sizes: Sequence[int]) -> list[Case]:
    return [Case(operation, dtype, size) for size in sizes]


def _allreduce(sizes: Sequence[int], ways: Sequence[str] = ()) -> Wanted:
    return Wanted(_cases("allreduce", "f32", sizes), ways=ways, own=("async", "named"))


HALVES = [Case("allreduce", dtype, 64 * MI) for dtype in ("f32", "bf16", "f16")]
OTHERS = [Case(operation, "f32", 64 * MI) for operation in ("reduce_scatter", *MOVES)]
BETWEEN = _cases("allreduce", "f32", (KI, MI, 16 * MI, 64 * MI))
PARTS = (
    Part("small", _allreduce(SMALL, ["c"])),
    Part("middle", _allreduce(MIDDLE)),
    Part("large", _allreduce(LARGE)),
    Part("huge", _allreduce(HUGE)),
    Part("halves", Wanted(HALVES), ("libddl", "gloo")),
    Part("others", Wanted(OTHERS)),
    Part("four", Wanted(_cases("allreduce", "f32", FOUR), ranks=(4,))),
    Part("hosts", Wanted(BETWEEN, lab="unshaped"), ("libddl", "gloo", "openmpi")),
    Part("resources", None, ("libddl",)),
)


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit code."""
    options = _parse(argv)
    machine = Machine(environments.cache_folder())
    parts = [p for p in PARTS if p.name in options.parts]
    names = dict.fromkeys(n for p in parts for n in p.libraries)
    libraries = {
        n: find(n, options.libddl if n == "libddl" else None, from_c=n != "gloo") for n in names
    }
    effort = Effort(options.rounds, options.seconds, options.busy)
    deadline = time.monotonic() + options.limit
    report = Report()
    verdicts: list[Verdict] = []
    try:
        for part in parts:
            if part.wanted:
                who = [libraries[n] for n in part.libraries]
                measure(part.wanted, effort, machine, who, deadline, report)
            else:
                verdicts += resources(libraries["libddl"])
    except KeyboardInterrupt:
        report.notes.append("interrupted: not all was measured")
    except UsageError as error:  # --lab without root
        report.notes.append(str(error))
    results = report.results
    if options.tables and results:
        print(show_results(results, OURS) + "\n")
    if options.plot and results:
        plot(options.plot, results)
    verdicts = (
        [v for t in all_targets() for v in t.verdicts(results)] + same_rate(results) + verdicts
    )
    print(show_verdicts(verdicts))
    for note in dict.fromkeys(report.notes):
        print(note)
    return 0


def show_verdicts(verdicts: Sequence[Verdict]) -> str:
    """The table."""
    head = ["case", "cores", "measured", "target", "met"]
    rows = [[v.case, v.state, v.measured, v.target, "yes" if v.met else "NO"] for v in verdicts]
    table = tabulate(rows, head, "github", disable_numparse=True)
    met = sum(v.met for v in verdicts)
    if any(v.state.endswith("*") for v in verdicts):
        table += "\n\n* something else ran on the machine meanwhile"
    return f"{table}\n\n{met} of {len(verdicts)} targets met"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench targets",
        description=DESCRIPTION,
        epilog="Training has a command of its own. For figures that are worth something let nothing"
        " else run on the machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    known = [part.name for part in PARTS]
    add("--parts", default=",".join(known), help=f"of {','.join(known)} (default: all)")
    add(
        "--libddl",
        metavar="PYTHON",
        type=Path,
        help="an interpreter that has ddl_core, instead of building this tree",
    )
    add("--rounds", type=int, default=9, help="turns of each library (default: 9)")
    add("--seconds", type=float, default=0.04, help="of a turn, at least (default: 0.04)")
    add("--limit", type=float, default=900, help="seconds after which no case is begun (900)")
    add("--busy", action="store_true", help="do not repeat turns beside which something else ran")
    add("--tables", action="store_true", help="print the tables of all that was measured, too")
    add("--plot", metavar="FILE.png", type=Path, help="draw bandwidth against size, log-log")
    options = parser.parse_args(argv)
    options.parts = options.parts.split(",")
    for name in options.parts:
        if name not in known:
            parser.error(f"--parts: {name!r} is none of {', '.join(known)}")
    if options.libddl:
        options.libddl = options.libddl.absolute()
    if options.plot:
        try:
            check_plot(options.plot)
        except UsageError as error:
            parser.error(str(error))
    return options
