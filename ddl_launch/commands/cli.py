"""ddl's command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

from ddl_core._lib import version
from ddl_launch.commands import planning, scaling, trace
from ddl_launch.commands.cluster import read_cluster
from ddl_launch.commands.description import DescriptionError
from ddl_launch.commands.doctor import add_doctor
from ddl_launch.commands.model import read_model
from ddl_launch.commands.plots import check_plot, plot
from ddl_launch.commands.quantities import parse_bytes, parse_count
from ddl_launch.commands.simulation import OPERATIONS, simulate
from ddl_launch.errors import CommandError
from ddl_launch.lab.cli import add_lab

ENTRY_POINTS = "ddl.commands"
_USAGE = 2

_DESCRIPTION = """\
Ask libddl's planner about a cluster that is described in a file, without having it; look at what
ranks that failed have left, and at this machine; or make several hosts of it, to try things on.
"""

_EPILOG = """\
examples:
  ddl plan lab.toml                                  the plans for some sizes, and the choice
  ddl plan lab.toml --bytes 1KiB,64MiB --json        for two sizes, for a program
  ddl simulate lab.toml --bytes 64MiB                how long an all-reduce takes
  ddl simulate power8.toml --model resnet50.toml     how a training step scales
  ddl simulate power8.toml --model resnet50.toml --plot scaling.png
  ddl trace traces -o all.json                       one timeline of what the ranks left there
  ddl doctor --ranks 4                               does this machine suit four ranks?
  ddl lab up 4 --rate 1gbit                          four hosts on this machine; ddl lab --help

a cluster, the innermost level first; at most one shared level and three of wires:
  name = "lab"
  memory = "8 GB/s"          # a rank's passes over its own memory; default: the shared level's
  [[level]]
  name = "host"
  kind = "shared"            # ranks read each other's memory
  count = 2                  # ranks on each host, or a list with those of every host: [3, 1]
  bandwidth = "8 GB/s"       # at which a rank reads another's
  latency = "0.3 us"
  [[level]]
  name = "network"
  kind = "wire"              # each host has one, each way; further levels: of racks, of aisles
  count = 2                  # hosts (in each rack; racks in each aisle; aisles)
  bandwidth = "1 Gbit/s"
  payload = 0.956            # the part that is not headers; default: 1
  latency = "7 us"
  [[cores]]                  # if not given, wires cost the ranks nothing, and each has a core
  number = 2                 # on each machine
  hosts = 2                  # that are one machine and share its cores; default: 1
  message = "6.5 us"         # of the cores at both ends, for sending and receiving one over a wire
  rate = "3 GB/s"            # the same for its bytes
  [[measured]]               # any number, shown beside what is predicted
  bytes = "64 MiB"
  plan = "hierarchical"
  time = "558 ms"

a model: a training step of one rank
  images = 32
  forward = "54.7 ms"
  bucket = "25 MiB"          # gradients up to so many bytes are reduced together
  [[gradient]]               # in the order in which the backward pass makes them
  bytes = 8196000
  backward = "58 us"         # until this one is ready, from the one before on
  [[published]]              # any number, shown beside what is predicted
  ranks = 256
  efficiency = 0.95
  source = "..."

examples/clusters/ has some
exit code: 0; 1: ddl doctor found something wrong; 2: wrong usage, or a wrong file
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} ({self.prog} --help tells more)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ddl with `argv` (None: the process's own). Returns the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        code: int | None = arguments.run(arguments)
    except CommandError as error:
        print(f"ddl: {error}", file=sys.stderr)
        return _USAGE
    return code or 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="ddl",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=raw,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ddl (libddl {version()})")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser(
        "plan",
        help="show the plans that there are, what they cost, and which one libddl chooses",
        description="Show for each size each plan that there is: its predicted time, the messages"
        " that wait for one another, what it sends at each level; * marks libddl's choice.",
        epilog="ddl --help tells how a cluster is described.",
        allow_abbrev=False,
    )
    _add_question(plan, "1KiB,64KiB,1MiB,64MiB")
    plan.add_argument("--json", action="store_true", help="print JSON: seconds and bytes")
    plan.set_defaults(run=_plan)
    simulation = commands.add_parser(
        "simulate",
        help="simulate the plans of all ranks: times of operations, scaling of a training step",
        description="Simulate the plans of all ranks event by event, with wires that have a"
        " latency and a bandwidth and serve one message after the other.",
        epilog="ddl --help tells how clusters and models are described.",
        allow_abbrev=False,
    )
    _add_question(simulation, "16MiB,64MiB")
    simulation.add_argument(
        "--model", metavar="MODEL.toml", type=Path, help="a training step, instead of sizes"
    )
    simulation.add_argument(
        "--hosts",
        metavar="N,...",
        type=_hosts,
        help="with --model: numbers of hosts (default: powers of two, and all)",
    )
    simulation.add_argument(
        "--plot",
        metavar="FILE.png",
        type=Path,
        help="draw when wires are busy, and with --model efficiency against ranks (needs"
        " matplotlib: pip install 'libddl[plot]')",
    )
    simulation.set_defaults(run=_simulate)
    _add_trace(
        commands.add_parser(
            "trace",
            help="join the ranks' flight records to one timeline",
            description="Summarize the flight records of ranks: the last operations, the ranks that"
            " were waited for, the slowest operations; and join them to one timeline, to be"
            " opened at ui.perfetto.dev or chrome://tracing. Ranks leave them in the folder"
            " $DDL_TRACE_DIR when their comm dies; Comm.trace() gives the same at any time.",
            allow_abbrev=False,
        )
    )
    add_doctor(commands.add_parser)
    add_lab(commands.add_parser)
    _add_installed(commands.add_parser)
    return parser


def _add_installed(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands of other installed packages, see docs/launching.md."""
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()(add)
        except Exception as error:  # a broken package must not take the other commands away
            kind = type(error).__name__
            print(f"ddl: no command {entry.name} ({entry.value}): {kind}: {error}", file=sys.stderr)


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="or folders of them")
    parser.add_argument("-o", metavar="ALL.json", dest="output", type=Path, help="the timeline")
    parser.add_argument("--size", metavar="N", type=parse_count, help="of the comm, if you know it")
    parser.set_defaults(run=_trace)


def _add_question(parser: argparse.ArgumentParser, sizes: str) -> None:
    parser.add_argument("cluster", metavar="CLUSTER.toml", type=Path, help="the described cluster")
    parser.add_argument(
        "--bytes",
        metavar="SIZE,...",
        type=_sizes,
        default=sizes,
        help=f"sizes of the buffer, such as 64MiB (default: {sizes})",
    )
    parser.add_argument(
        "--operation", choices=OPERATIONS, default="allreduce", help="default: allreduce"
    )


def _sizes(text: str) -> list[int]:
    try:
        return [parse_bytes(size) for size in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _hosts(text: str) -> list[int]:
    hosts = text.split(",")
    if not all(n.isdecimal() and int(n) for n in hosts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1 on")
    return [int(n) for n in hosts]


def _trace(arguments: argparse.Namespace) -> None:
    records = trace.read(trace.files(arguments.files))
    print(trace.summary(records, arguments.size))
    if arguments.output:
        try:
            arguments.output.write_text(json.dumps(trace.merge(records)))
        except OSError as error:
            raise trace.TraceError(f"{arguments.output}: {error.strerror}") from None


def _plan(arguments: argparse.Namespace) -> None:
    cluster = read_cluster(arguments.cluster)
    found = list(planning.candidates(cluster, arguments.operation, arguments.bytes))
    show = planning.as_json if arguments.json else planning.as_table
    print(show(cluster, arguments.operation, found))


def _simulate(arguments: argparse.Namespace) -> None:
    cluster = read_cluster(arguments.cluster)
    if arguments.plot:
        check_plot(arguments.plot)
    points: list[scaling.Point] = []
    if arguments.model:
        model = read_model(arguments.model)
        hosts = arguments.hosts or scaling.host_counts(cluster)
        if max(hosts) > len(cluster.hosts):
            raise DescriptionError(
                f"--hosts {max(hosts)}: {arguments.cluster} has {len(cluster.hosts)} hosts"
            )
        points = scaling.scale(cluster, model, hosts)
        print(scaling.scaling_table(cluster, model, points))
        nbytes = max(bucket.bytes for bucket in model.buckets)
        drawn = (
            simulate(cluster, "allreduce", nbytes, busy_max=scaling.BUSY_MAX)
            if arguments.plot
            else None
        )
    else:
        found = scaling.predict(cluster, arguments.operation, arguments.bytes)
        print(scaling.prediction_table(cluster, arguments.operation, found))
        nbytes, drawn = max(found, key=lambda item: (item[0], len(item[1].busy)))
    if arguments.plot and drawn:
        plot(arguments.plot, cluster, drawn, nbytes, points)
