# SPDX-License-Identifier: Apache-2.0
"""`python -m bench creation`: measures the time of init and of creating groups."""

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench.cases import UsageError, free_port, make_parser
from bench.libraries import Library, OneHost, Placement, ProcessSpec
from bench.worker_group import WorkerGroup
from ddl_launch.base.quantities import show_seconds

DESCRIPTION = """\
Time init and the creation of groups, libddl and Gloo in turns, on this machine. Both run in the
interpreter that runs this command, which needs torch and ddl_torch.

  init       torch.distributed.init_process_group, in a new process that has imported only torch
loaded     the same in a process that has also loaded the native part of ddl_torch
  new_group  torch.distributed.new_group of all ranks
  split      Comm.split of ddl_core, compared with Gloo's new_group
  duplicate  Comm.duplicate of ddl_core, compared with Gloo's new_group
processor  the processor time of all threads of a rank during that; the rest of the time it waits
alone      an all-reduce of 1 MiB of the first group, and
beside     the same while another thread creates a group

The table has medians of the slowest rank's time. The last column is Gloo's time over libddl's, the
median of the turns: above 1, libddl is faster.
"""

WHATS = ("init", "loaded", "new_group", "split", "duplicate", "processor", "alone", "beside")
FRESH = ("init", "loaded")  # measured in new processes
FRESH_TIMES = 20  # creations; each starts interpreters that import torch
LINKS = {"shared memory": "", "tcp": "tcp"}  # values of DDL_LINKS; Gloo always uses TCP


class CreationLibrary(Library):
    links = ""

    def process_specs(self, placement: Placement, control: str) -> list[ProcessSpec]:
        specs = super().process_specs(placement, control)
        for spec in specs:
            spec.env["DDL_LINKS"] = self.links
        return specs


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    rows = []
    for ranks in options.ranks:
        for name, links in LINKS.items():
            more = measure(ranks, name, links, options)
            print("\n".join("  ".join(row) for row in more), file=sys.stderr, flush=True)
            rows += more
    names = ["libddl", *(name for name, _ in options.others), "gloo"]
    print(tabulate(rows, ["ranks", "links", "what", *names, "ratio"], tablefmt="github"))
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("creation", DESCRIPTION)
    add = parser.add_argument
    add("--ranks", default="2,4,8", help="numbers of ranks, such as 2,4 (default: 2,4,8)")
    add("--what", default=",".join(WHATS), help=f"a list of {','.join(WHATS)} (default: all)")
    add(
        "--times",
        type=int,
        default=100,
        help="creations of each kind that are timed (default: 100; of init and loaded: 20)",
    )
    add(
        "--libddl",
        metavar="NAME=PYTHON",
        action="append",
        default=[],
        help="another interpreter that has torch and ddl_torch, to measure in addition (may be"
        " repeated)",
    )
    options = parser.parse_args(argv)
    options.ranks = [int(n) for n in options.ranks.split(",")]
    options.what = options.what.split(",")
    options.others = [tuple(other.split("=", 1)) for other in options.libddl]
    if options.times < 1 or not set(options.what) <= set(WHATS) or min(options.ranks) < 2:
        raise UsageError(
            f"--times must be at least 1, --what a list of {','.join(WHATS)}, --ranks at least 2"
        )
    return options


def measure(ranks: int, name: str, links: str, options: argparse.Namespace) -> list[list[str]]:
    kinds = [("libddl", "ddl", sys.executable)]
    kinds += [(other, "ddl", python) for other, python in options.others]
    kinds += [("gloo", "gloo", sys.executable)]
    libraries = [
        CreationLibrary(label, kind, Path(python), program="creation_rank.py")
        for label, kind, python in kinds
    ]
    for library in libraries:
        library.links = links if library.kind == "ddl" else ""
    rows = []
    with ExitStack() as stack:
        joined: list[WorkerGroup] = []
        for what in sorted(options.what, key=WHATS.index):
            if what not in FRESH and not joined:
                joined = [stack.enter_context(started(library, ranks)) for library in libraries]
                for workers in joined:
                    workers.ask(do="join", port=free_port())
            turns = []
            for _ in range(1 + (FRESH_TIMES if what in FRESH else options.times)):
                if what in FRESH:
                    turns.append([init(library, ranks, what) for library in libraries])
                else:
                    turns.append([slowest(w.ask(do="create", what=what)) for w in joined])
            del turns[0]  # a warm-up
            ratio = statistics.median(turn[-1] / turn[0] for turn in turns)
            shown = [show_seconds(statistics.median(s)) for s in zip(*turns, strict=True)]
            rows.append([str(ranks), name, what, *shown, f"{ratio:.2f}"])
    return rows


@contextmanager
def started(library: Library, ranks: int) -> Iterator[WorkerGroup]:
    workers = WorkerGroup(library, OneHost(ranks))
    try:
        workers.start()
        yield workers
    finally:
        workers.end()


def init(library: Library, ranks: int, what: str) -> float:
    with started(library, ranks) as workers:
        if what == "loaded":
            workers.ask(do="load")
        return slowest(workers.ask(do="init", port=free_port()))


def slowest(answers: list[dict[str, Any]]) -> float:
    return max(float(answer["seconds"]) for answer in answers)
