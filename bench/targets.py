# SPDX-License-Identifier: Apache-2.0
"""`python -m bench targets`: measures libddl's performance targets, and shows which of them are
met."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from bench import environments, training
from bench.cases import Case, UsageError, make_parser
from bench.goals import (
    EIGHT,
    EIGHT_MOVES,
    FOUR,
    HUGE,
    KI,
    LARGE,
    LOOPS,
    MI,
    MIDDLE,
    MOVES,
    ORDERED,
    OURS,
    SHARED_CACHED,
    SHARED_FOUR,
    SMALL,
    TAKEN_LARGE,
    TAKEN_SMALL,
    Verdict,
    all_targets,
    many_targets,
    same_rate,
    shared_targets,
    taken_targets,
)
from bench.libraries import LIBRARIES, MPIS, find
from bench.machine import Machine
from bench.measure import Report, Wanted, measure
from bench.plots import check_plot, plot
from bench.resources import resources
from bench.scheduler import Effort
from bench.tables import show_results

DESCRIPTION = """\
Measure libddl's performance targets (bench/goals.py), and show which of them are met.

Each target is judged separately for each state of the cores: twin, near and far (see
`python -m bench collectives --help`). Ratios are medians over the rounds; above 1, libddl is
faster. A complete run takes about half an hour, after the libraries are installed.

parts, for --parts:
  small      all-reduce of 8 B to 2 KiB, also from C, asynchronous and by name
  middle     all-reduce of 4 KiB to 512 KiB, also asynchronous and by name
  large      all-reduce of 1 MiB to 16 MiB, likewise
  huge       all-reduce of 64 MiB and 256 MiB, likewise
  halves     all-reduce of 64 MiB of f32, bf16 and f16
  others     reduce-scatter, broadcast, all-gather and all-to-all of 64 MiB
  four       all-reduce among 4 ranks
  hosts      all-reduce between two hosts, made of network namespaces (needs root)
  ordered    ordered sums compared with all-reduce out of place; also between two hosts (root)
  shared     the same on buffers of ddl_alloc: all-reduce in place and out of place, also among 4
             ranks, broadcast, all-gather and all-to-all
  taken      all-reduce beside 2, 4 and 8 busy loops, from C and through PyTorch; means
  burst      bursts of all-reduces after computing, 4 ranks
  eight      operations of 8 ranks, beside all other libraries
  training   steps of PyTorch's DistributedDataParallel, without and with data loaders
  resources  memory of a rank, and time to start
"""


@dataclass(frozen=True)
class Part:
    """Targets that are measured together. `wanted` is None for those that other modules measure.
    `rounds` and `seconds` replace those of the command line."""

    name: str
    wanted: Wanted | None
    libraries: tuple[str, ...] = LIBRARIES
    rounds: int | None = None
    seconds: float | None = None


def _cases(operation: str, dtype: str, sizes: Sequence[int]) -> list[Case]:
    return [Case(operation, dtype, size) for size in sizes]


def _allreduce(sizes: Sequence[int], ways: Sequence[str] = ()) -> Wanted:
    return Wanted(_cases("allreduce", "f32", sizes), ways=("", *ways), own=("async", "named"))


HALVES = [Case("allreduce", dtype, 64 * MI) for dtype in ("f32", "bf16", "f16")]
OTHERS = [Case(operation, "f32", 64 * MI) for operation in ("reduce_scatter", *MOVES)]
BETWEEN = _cases("allreduce", "f32", (KI, MI, 16 * MI, 64 * MI))
SUMS = _cases("allreduce", "f32", ORDERED)
SHARED = _cases("allreduce", "f32", (*SHARED_CACHED, *HUGE))
SHARED_BY_FOUR = _cases("allreduce", "f32", SHARED_FOUR)
SHARED_MOVES = [Case(operation, "f32", 64 * MI) for operation in MOVES]
SHARED_WAYS = ("shared", "shared apart")
TAKEN_CASES = _cases("allreduce", "f32", (*TAKEN_SMALL, *TAKEN_LARGE))
TAKEN_EFFORT = {"rounds": 100, "seconds": 0.01}
BURSTS = _cases("allreduce", "f32", (8, KI))
EIGHT_CASES = [Case(operation, "f32", size) for operation in EIGHT_MOVES for size in EIGHT]
EIGHT_CASES.append(Case("barrier", "f32", 0))
PARTS = (
    Part("small", _allreduce(SMALL, ["c"])),
    Part("middle", _allreduce(MIDDLE)),
    Part("large", _allreduce(LARGE)),
    Part("huge", _allreduce(HUGE)),
    Part("halves", Wanted(HALVES), ("libddl", "gloo")),
    Part("others", Wanted(OTHERS)),
    Part("four", Wanted(_cases("allreduce", "f32", FOUR), ranks=(4,))),
    Part("hosts", Wanted(BETWEEN, lab="unshaped"), ("libddl", "gloo", "openmpi")),
    Part("ordered", Wanted(SUMS, ranks=(2, 4), own=("apart", "ordered")), OURS),
    Part("ordered", Wanted(SUMS, own=("apart", "ordered"), lab="unshaped"), OURS),
    Part("shared", Wanted(SHARED, own=SHARED_WAYS)),
    Part("shared", Wanted(SHARED_MOVES, own=("shared",))),
    Part("shared", Wanted(SHARED_BY_FOUR, ranks=(4,), own=SHARED_WAYS)),
    Part(
        "taken",
        Wanted(TAKEN_CASES, loops=LOOPS, ways=("c",)),
        ("libddl", "openmpi", "openmpi_yield"),
        **TAKEN_EFFORT,
    ),
    Part(
        "taken",
        Wanted(TAKEN_CASES[:1], loops=LOOPS, ways=("late",)),
        ("libddl", "openmpi_yield"),
        seconds=1,
    ),
    Part("taken", Wanted(TAKEN_CASES, loops=LOOPS), ("ddl_torch", "gloo"), **TAKEN_EFFORT),
    Part("burst", Wanted(BURSTS, ranks=(4,), ways=("burst",)), ("libddl", *MPIS)),
    Part("eight", Wanted(EIGHT_CASES, ranks=(8,)), (*LIBRARIES, "ddl_torch", "commux")),
    Part("training", None, ()),
    Part("resources", None, ("libddl",)),
)


def main(argv: Sequence[str]) -> int:
    options = _parse(argv)
    machine = Machine(environments.cache_folder())
    parts = [p for p in PARTS if p.name in options.parts]
    names = dict.fromkeys(n for p in parts for n in p.libraries)
    libraries = {
        n: find(n, options.libddl if n == "libddl" else None, from_c=n != "gloo") for n in names
    }
    deadline = time.monotonic() + options.limit
    report = Report()
    verdicts: list[Verdict] = []
    try:
        for part in parts:
            if part.wanted:
                used = [libraries[n] for n in part.libraries]
                rounds, seconds = part.rounds or options.rounds, part.seconds or options.seconds
                effort = Effort(rounds, seconds, options.disturbed)
                measure(part.wanted, effort, machine, used, deadline, report)
            elif part.name == "training":
                verdicts += training.targets()
            else:
                verdicts += resources(libraries["libddl"])
    except KeyboardInterrupt:
        report.notes.append("interrupted: some cases were not measured")
    except UsageError as error:  # --lab without root
        report.notes.append(str(error))
    results = report.results
    if options.tables and results:
        print(show_results(results, OURS) + "\n")
    if options.plot and results:
        plot(options.plot, results)
    targets = (*all_targets(), *shared_targets(), *taken_targets(), *many_targets())
    verdicts = [v for t in targets for v in t.verdicts(results)] + same_rate(results) + verdicts
    print(show_verdicts(verdicts))
    for note in dict.fromkeys(report.notes):
        print(note)
    return 0


def show_verdicts(verdicts: Sequence[Verdict]) -> str:
    head = ["case", "cores", "measured", "target", "met"]
    rows = [[v.case, v.state, v.measured, v.target, "yes" if v.met else "NO"] for v in verdicts]
    table = tabulate(rows, head, "github", disable_numparse=True)
    met = sum(v.met for v in verdicts)
    if any(v.state.endswith("*") for v in verdicts):
        table += "\n\n* another program ran on the machine at the same time"
    return f"{table}\n\n{met} of {len(verdicts)} targets met"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(
        "targets",
        DESCRIPTION,
        "Run nothing else on the machine. `python -m bench training` measures training.",
    )
    add = parser.add_argument
    known = [part.name for part in PARTS]
    add(
        "--parts",
        default=",".join(known),
        help="parts to measure, such as small,four (default: all)",
    )
    add(
        "--libddl",
        metavar="PYTHON",
        type=Path,
        help="an interpreter that has ddl_core, to measure instead of this tree",
    )
    add("--rounds", type=int, default=9, help="turns of each library (default: 9)")
    add("--seconds", type=float, default=0.04, help="least duration of a turn (default: 0.04)")
    add(
        "--limit",
        type=float,
        default=3600,
        help="start no case after this many seconds (default: 3600)",
    )
    add(
        "--disturbed",
        action="store_true",
        help="do not repeat turns during which another program ran",
    )
    add("--tables", action="store_true", help="also print the tables of all results")
    add(
        "--plot",
        metavar="FILE.png",
        type=Path,
        help="plot bandwidth against size (needs matplotlib)",
    )
    options = parser.parse_args(argv)
    options.parts = options.parts.split(",")
    for name in options.parts:
        if name not in known:
            parser.error(f"--parts: {name!r} must be one of {', '.join(known)}")
    if options.libddl:
        options.libddl = options.libddl.absolute()
    if options.plot:
        try:
            check_plot(options.plot)
        except UsageError as error:
            parser.error(str(error))
    return options
