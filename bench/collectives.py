# SPDX-License-Identifier: Apache-2.0
"""`python -m bench collectives`: measures operations of libddl and of other libraries."""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import environments
from bench.cases import DTYPES, OPERATIONS, Case, UsageError, make_parser, parse_list, parse_sizes
from bench.libraries import ALL_LIBRARIES, LIBRARIES, Library, find
from bench.machine import Machine
from bench.measure import Report, Wanted, measure
from bench.plots import check_plot, plot
from bench.results import Result
from bench.scheduler import Effort
from bench.tables import show_results

DESCRIPTION = """\
Measure operations of libddl, Gloo (PyTorch), Open MPI, MPICH and Intel MPI on this machine.

Each library has its own virtual environment, which is created at first use and kept in build/bench
($BENCH_CACHE). The ranks of all libraries stay alive and take turns, round by round; ranks of
other libraries sleep meanwhile. Rank r is pinned to core r modulo the number of cores. Gloo and
commux are not, since they are faster when the system places their threads, nor is any rank beside
busy loops. Buffers are rewritten before each iteration, and every element is checked after it.
Calls of up to 16 KiB are timed in batches.
"""

EPILOG = """\
columns of the tables:
  p50, p99      time of one call on the slowest rank: median and 99th percentile of all iterations.
                Beside busy loops p50 is the mean over the turns: 100 rounds are advised
  alg GB/s      size / p50. The size is that of the whole buffer: the send buffer of reduce-scatter,
                the receive buffer of all-gather.
  bus GB/s      alg GB/s times the part of the size that each rank must send at least:
                2 (n - 1) / n for all-reduce, (n - 1) / n for reduce-scatter, all-gather and
                all-to-all, 1 for broadcast
  x best other  how many times as fast as the fastest other library; above 1, libddl is faster.
                The median of the ratios of all rounds, because the machine's speed changes between
                rounds.
  of limit      the part of the limit that is reached. The limit is the same operation done directly
                on memory that all ranks share; between hosts, the rate of one plain TCP stream.
  n             the number of iterations

state of the cores, in the titles:
Virtual cores move. The round trip of one cache line, measured before and after each turn, shows
whether two cores are twin (two threads of one core), near (they share a cache) or far (they do
not). Beside busy loops, which take the cores, it is not measured. A turn during which the state
changed is dropped. So is a turn during which another program ran, unless no other turns are left:
then such turns count and are marked with *.

examples:
  python -m bench collectives                                  all-reduce, 2 ranks, 8 B to 256 MiB
  python -m bench collectives --operations allgather,alltoall --sizes 1MiB,64MiB
  python -m bench collectives --ranks 2,4 --dtypes f32,bf16 --json run.json --plot run.png
  python -m bench collectives --sizes 8,1KiB --from-c --async --named
  python -m bench collectives --busy 2,8 --rounds 100 --seconds 0.01 --libraries ddl_torch,gloo
  python -m bench collectives --lab unshaped --libraries libddl,gloo,openmpi     two hosts; as root
  python -m bench collectives --libraries libddl --libddl before=OLD/bin/python  two builds

Run nothing else on the machine.
"""


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    libraries = chosen(options)
    machine = Machine(environments.cache_folder())
    wanted = Wanted(
        options.cases,
        options.ranks,
        options.busy,
        options.ways,
        options.own,
        options.lab or "",
        options.hosts,
    )
    effort = Effort(options.rounds, options.seconds, options.disturbed)
    report = Report()
    try:
        measure(wanted, effort, machine, libraries, time.monotonic() + options.limit, report)
    except KeyboardInterrupt:
        report.notes.append("interrupted: some cases were not measured")
    about = machine.describe()
    print("\n".join(f"{key}: {value}" for key, value in about.items()) + "\n")
    print(show_results(report.results, ours(libraries)))
    for note in report.notes:
        print(note)
    if options.json:
        options.json.write_text(json.dumps(as_json(report.results, about), indent=1) + "\n")
    if options.plot:
        plot(options.plot, report.results)
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("collectives", DESCRIPTION, EPILOG)
    add = parser.add_argument
    names = ",".join
    add(
        "--operations",
        default="allreduce",
        help=f"a list of {names(OPERATIONS)} (default: allreduce)",
    )
    add("--dtypes", default="f32", help=f"a list of {names(DTYPES)} (default: f32)")
    add("--ranks", default="2", help="numbers of ranks, such as 2,4 (default: 2)")
    add(
        "--sizes",
        default="8,1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB",
        help="such as 8,4KiB,64MiB, or 1KiB-1MiB in steps of four (default: 8 B to 256 MiB)",
    )
    add(
        "--libraries",
        default=names(LIBRARIES),
        help=f"a list of {names(ALL_LIBRARIES)} (default: {names(LIBRARIES)})",
    )
    add(
        "--libddl",
        metavar="[NAME=]PYTHON",
        action="append",
        default=[],
        help="an interpreter that has ddl_core, to measure instead of this tree; with NAME, it is"
        " measured in addition, under that name (may be repeated)",
    )
    add(
        "--async",
        dest="waited",
        action="store_true",
        help="also asynchronous calls, each submitted and waited for",
    )
    add("--named", action="store_true", help="also libddl's operations that are matched by name")
    add("--ordered", action="store_true", help="also libddl's all-reduce out of place, and ordered")
    add("--shared", action="store_true", help="also libddl's operations on buffers of ddl_alloc")
    add("--from-c", action="store_true", help="also calls from C (all-reduces of f32)")
    add(
        "--lab",
        metavar="RATE",
        help="run on several hosts, made of network namespaces: RATE is 'unshaped' or the rate of"
        " each link, such as 1gbit (needs root)",
    )
    add("--hosts", metavar="N,N", help="with --lab: the ranks on each host (default: 1,1)")
    add("--rounds", type=int, default=9, help="turns of each library (default: 9)")
    add("--seconds", type=float, default=0.05, help="least duration of a turn (default: 0.05)")
    add("--limit", type=float, default=math.inf, help="start no case after this many seconds")
    add(
        "--busy",
        metavar="N,N",
        default="0",
        help="busy loops to run beside the ranks, such as 0,2,8 (default: 0)",
    )
    add(
        "--disturbed",
        action="store_true",
        help="do not repeat turns during which another program ran",
    )
    add("--json", metavar="FILE", type=Path, help="write all results as JSON")
    add(
        "--plot",
        metavar="FILE.png",
        type=Path,
        help="plot bandwidth against size (needs matplotlib)",
    )
    options = parser.parse_args(argv)
    try:
        options.cases = [
            Case(operation, dtype, size)
            for operation in parse_list(options.operations, OPERATIONS, "--operations:")
            for dtype in parse_list(options.dtypes, DTYPES, "--dtypes:")
            for size in (parse_sizes(options.sizes) if operation != "barrier" else [0])
        ]
        options.libraries = parse_list(options.libraries, ALL_LIBRARIES, "--libraries:")
        options.ranks = _numbers(options.ranks, "--ranks")
        options.busy = _numbers(options.busy, "--busy", least=0)
        if options.lab and options.busy != [0]:
            raise UsageError("--busy cannot be combined with --lab")
        if options.hosts and not options.lab:
            raise UsageError("--hosts requires --lab")
        options.hosts = _numbers(options.hosts or "1,1", "--hosts")
        for path in (options.json, options.plot):
            if path and not path.parent.is_dir():
                raise UsageError(f"{path}: the folder {path.parent} does not exist")
        if options.plot:
            check_plot(options.plot)
        if options.rounds < 1 or options.seconds <= 0:
            raise UsageError("--rounds must be at least 1, and --seconds above 0")
    except UsageError as error:
        parser.error(str(error))
    options.ways = [""] + ["async"] * options.waited + ["c"] * options.from_c
    options.own = ["named"] * options.named + ["apart", "ordered"] * options.ordered
    options.own += ["shared", "shared apart"] * options.shared
    return options


def _numbers(text: str, what: str, least: int = 1) -> list[int]:
    numbers = text.split(",")
    if not all(n.isdecimal() and int(n) >= least for n in numbers):
        raise UsageError(f"{what} {text!r} is not a list of numbers >= {least}")
    return [int(n) for n in numbers]


def chosen(options: argparse.Namespace) -> list[Library]:
    found = []
    own = dict(("libddl", one) if "=" not in one else one.split("=", 1) for one in options.libddl)
    for name in options.libraries:
        python = Path(own.pop(name)).absolute() if name in own else None
        found.append(find(name, python, options.from_c))
    found += [find(name, Path(python).absolute(), options.from_c) for name, python in own.items()]
    return found


def ours(libraries: Sequence[Library]) -> set[str]:
    return {lib.name for lib in libraries if lib.kind == "ddl" or lib.name == "ddl_torch"}


def as_json(results: Sequence[Result], about: dict[str, Any]) -> dict[str, Any]:
    return {"machine": about, "results": [r.as_json() for r in results]}
