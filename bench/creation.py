"""`python -m bench creation`: how long it takes to join, and to make groups of those who have."""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tabulate import tabulate

from bench.cases import UsageError, show_seconds
from bench.environments import ROOT
from bench.libraries import Library, OneHost, Placement, ProcessSpec
from bench.worker_group import WorkerGroup

DESCRIPTION = """\
Time the creation of groups of libddl and of Gloo, both through torch.distributed of the interpreter
that runs this, on this machine. All ranks stay alive and take turns, creation by creation; who is
not in turn sleeps. A time is that of the slowest rank.

  init       torch.distributed.init_process_group, in a process that has imported torch and nothing
             else
  new_group  torch.distributed.new_group of all ranks
  split, duplicate
             ddl_core's Comm.split and .duplicate, beside Gloo's new_group
"""

WHATS = ("init", "new_group", "split", "duplicate")
LINKS = {"shared memory": "", "tcp": "tcp"}  # as DDL_LINKS has it; Gloo always uses TCP


class CreationLibrary(Library):
    """Ranks of one backend."""

    links = ""

    def process_specs(self, placement: Placement, control: str) -> list[ProcessSpec]:
        specs = super().process_specs(placement, control)
        program = str(ROOT / "bench" / "rank" / "creation_rank.py")
        for spec in specs:
            spec.command = [str(self.python), program, self.kind, control]
            spec.env["DDL_LINKS"] = self.links
        return specs


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit code."""
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
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench creation",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--ranks", default="2,4,8", help="numbers of ranks (default: 2,4,8)")
    add("--what", default=",".join(WHATS), help=f"of {','.join(WHATS)} (default: all)")
    add("--times", type=int, default=100, help="turns of each (default: 100)")
    add(
        "--libddl",
        metavar="NAME=PYTHON",
        action="append",
        default=[],
        help="another interpreter with torch and ddl_torch, beside it",
    )
    options = parser.parse_args(argv)
    options.ranks = [int(n) for n in options.ranks.split(",")]
    options.what = options.what.split(",")
    options.others = [tuple(other.split("=", 1)) for other in options.libddl]
    if options.times < 1 or not set(options.what) <= set(WHATS) or min(options.ranks) < 2:
        raise UsageError("--times is at least 1, --what one of those named, --ranks at least 2")
    return options


def measure(ranks: int, name: str, links: str, options: argparse.Namespace) -> list[list[str]]:
    """A row of the table for each thing."""
    libraries = [("libddl", "ddl", sys.executable)]
    libraries += [(other, "ddl", python) for other, python in options.others]
    libraries += [("gloo", "gloo", sys.executable)]
    rows = []
    with ExitStack() as stack:
        worker_groups: dict[str, WorkerGroup] = {}
        for label, kind, python in libraries:
            library = CreationLibrary(label, kind, Path(python))
            library.links = links if kind == "ddl" else ""
            worker_groups[label] = WorkerGroup(library, OneHost(ranks))
            stack.callback(worker_groups[label].end)
            worker_groups[label].start()
        joined = False
        for what in sorted(options.what, key=WHATS.index):
            if what != "init" and not joined:
                for workers in worker_groups.values():
                    workers.ask(do="join", port=free_port())
                joined = True
            seconds: dict[str, list[float]] = {label: [] for label in worker_groups}
            for turn in range(options.times + 1):
                for label, workers in worker_groups.items():
                    took = create(workers, "new_group" if label == "gloo" else what, what)
                    if turn:  # the first one has more to do
                        seconds[label].append(took)
            pairs = zip(seconds["gloo"], seconds["libddl"], strict=True)
            ratio = statistics.median(gloo / ours for gloo, ours in pairs)
            times = [show_seconds(statistics.median(s)) for s in seconds.values()]
            rows.append([str(ranks), name, what, *times, f"{ratio:.2f}"])
    return rows


def create(workers: WorkerGroup, way: str, what: str) -> float:
    """Seconds of the slowest rank."""
    if what == "init":
        answers = workers.ask(do="init", port=free_port())
    else:
        answers = workers.ask(do="create", what=way)
    return max(float(answer["seconds"]) for answer in answers)


def free_port() -> int:
    """That nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
