# SPDX-License-Identifier: Apache-2.0
"""The command line of ddl."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ddl_core.base._lib import version
from ddl_launch.base.command_line import complete, with_suggestion
from ddl_launch.base.quantities import parse_bytes, parse_count, parse_rate
from ddl_launch.commands import creation, methods, planning, scaling, trace, trace_page
from ddl_launch.commands.cluster import Cluster, read_cluster
from ddl_launch.commands.description import DescriptionError
from ddl_launch.commands.doctor import add_doctor
from ddl_launch.commands.model import read_model
from ddl_launch.commands.plots import MESSAGES_MAX, check_plot, plot, plot_creation, plot_plans
from ddl_launch.commands.simulation import OPERATIONS, simulate, split_operation
from ddl_launch.errors import INTERRUPTED, USAGE, CommandError
from ddl_launch.jobs.init_process import leave_process_1
from ddl_launch.lab.cli import add_lab

_T = TypeVar("_T")

ENTRY_POINTS = "ddl.commands"
SIMULATE_ENTRY_POINTS = "ddl.simulate"  # options of `ddl simulate`

# The commands in the order of `ddl --help`. Commands of other packages follow them.
_GROUPS = {
    "elastic jobs": ("elastic", "serve", "job", "top", "token"),
    "predictions": ("plan", "simulate"),
    "this machine, and failed jobs": ("doctor", "trace", "lab"),
}

_CLUSTER_FILE = """\
A cluster file lists the levels, the innermost one first: at most one shared level, then up to three
wire levels.
  name = "lab"
  memory = "8 GB/s"          # bandwidth of a rank's own memory; default: the shared level's
  [[level]]
  name = "host"
  kind = "shared"            # ranks read each other's memory
  count = 2                  # ranks on each host, or a list with one number per host: [3, 1]
  bandwidth = "8 GB/s"       # of one rank that reads another's memory
  latency = "0.3 us"
  [[level]]
  name = "network"
  kind = "wire"              # each host has a wire; at the next levels each rack, then each aisle
  count = 2                  # hosts in each rack; at the next levels racks in each aisle, aisles
  bandwidth = "1 Gbit/s"     # in each direction
  payload = 0.956            # share of the bandwidth without headers; default: 1
  latency = "7 us"
  [[cores]]                  # default: each rank has a core, and wires need no core
  number = 2                 # cores of each machine
  hosts = 2                  # hosts that share one machine; default: 1
  message = "6.5 us"         # core time at both ends to send and receive a message over a wire
  rate = "3 GB/s"            # at which the cores send or receive bytes over a wire
  [[measured]]               # optional, may be repeated: shown next to the prediction
  bytes = "64 MiB"
  plan = "hierarchical"
  time = "558 ms"
The folder examples/clusters has such files.
"""

_PLAN_EPILOG = f"""\
examples:
  ddl plan lab.toml                                  compare the plans for some sizes
  ddl plan lab.toml --bytes 1KiB,64MiB --json        the same for two sizes, as JSON
  ddl plan --model-bytes 102MB --step-ms 250 --hosts 2 --rate 1Gbit/s
                                                     compare methods of sending fewer bytes

{_CLUSTER_FILE}"""

_SIMULATE_EPILOG = f"""\
examples:
  ddl simulate lab.toml --bytes 64MiB                predict the time of an all-reduce
  ddl simulate power8.toml --model resnet50.toml     predict how a training step scales
  ddl simulate power8.toml --model resnet50.toml --plot scaling.png
  ddl simulate cluster.toml --creation               predict what a comm of all its ranks costs
  ddl simulate --jobs generated                      compare schedulers of many elastic jobs

{_CLUSTER_FILE}
A model file describes the training step of one rank.
  images = 32
  forward = "54.7 ms"
  bucket = "25 MiB"          # gradients are reduced in groups of at most this size
  [[gradient]]               # one for each gradient, in the order of the backward pass
  bytes = 8196000
  backward = "58 us"         # from the previous gradient to this one
  [[published]]              # optional, may be repeated: shown next to the prediction
  ranks = 256
  efficiency = 0.95
  source = "..."
"""


class _CommandParser(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments. Reject unknown ones in the command's own parser, so that the error can
        suggest similar options of this command."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        message = with_suggestion(message, self._option_string_actions)
        raise CommandError(f"{message} (see {self.prog} --help)")


class _MainParser(_CommandParser):
    """The parser of `ddl`, whose help lists the commands in groups."""

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        listed = {
            command.dest: command
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for command in action._choices_actions
        }
        known = {name for names in _GROUPS.values() for name in names}
        others = tuple(name for name in listed if name not in known)
        for title, names in {**_GROUPS, "other commands": others}.items():
            formatter.start_section(title)
            formatter.add_arguments(listed[name] for name in names if name in listed)
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments(each for each in self._actions if each.option_strings)
        formatter.end_section()
        return formatter.format_help()


def main(argv: Sequence[str] | None = None) -> int:
    """Run ddl with `argv` (None: the process's own arguments). Return the exit code."""
    if argv is None:
        leave_process_1()
    try:
        parser = make_parser()
        complete(parser)
        arguments = parser.parse_args(argv)
        code: int | None = arguments.run(arguments)
        sys.stdout.flush()
    except CommandError as error:
        print(f"ddl: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # the reader of the output has gone, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        print("ddl: interrupted", file=sys.stderr)
    return code or 0


def make_parser() -> argparse.ArgumentParser:
    parser = _MainParser(
        prog="ddl",
        description="Tools of libddl. `ddl COMMAND --help` explains a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ddl (libddl {version()})")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_CommandParser)
    plan = commands.add_parser(
        "plan",
        help="compare the plans for an operation on a cluster",
        description="Show every plan for each size: the predicted time, the number of sequential\n"
        "messages, and the bytes sent at each level. * marks the plan that libddl chooses.\n"
        "With --model-bytes, predict a training step for each method of sending fewer bytes.",
        epilog=_PLAN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_question(plan, "1KiB,64KiB,1MiB,64MiB", needed=False)
    add = plan.add_argument
    add("--model-bytes", metavar="SIZE", type=_size, help="size of the gradients in float32")
    add("--step-ms", metavar="MS", type=_positive, help="a rank's computation in a step")
    add("--hosts", metavar="N", type=parse_count, help="hosts, in place of CLUSTER.toml")
    add("--ranks", metavar="N", type=parse_count, default=1, help="ranks of a host (default: 1)")
    add(
        "--rate",
        metavar="RATE",
        type=_rate,
        help="rate of the Ethernet links, such as 1Gbit/s (only with --hosts)",
    )
    add(
        "--local-steps",
        metavar="H",
        type=parse_count,
        default=100,
        help="steps of a round of local steps (default: 100)",
    )
    plan.add_argument("--json", action="store_true", help="print JSON, in seconds and bytes")
    plan.add_argument(
        "--plot",
        metavar="FILE.png",
        type=Path,
        help="plot the steps of the chosen plan for the first size, and the time of all plans"
        " against the size; needs matplotlib (pip install 'libddl[plot]')",
    )
    plan.set_defaults(run=_plan)
    simulation = commands.add_parser(
        "simulate",
        help="predict the time of operations, or how a training step scales",
        description="Simulate the plans of all ranks event by event. A wire has a latency and a\n"
        "bandwidth, and carries one message at a time.",
        epilog=_SIMULATE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_question(simulation, "16MiB,64MiB", needed=False)
    simulation.add_argument(
        "--model",
        metavar="MODEL.toml",
        type=Path,
        help="simulate this training step instead of single operations",
    )
    simulation.add_argument(
        "--hosts",
        metavar="N,...",
        type=_hosts,
        help="with --model or --creation: the numbers of hosts (default: the powers of two, and all"
        " hosts)",
    )
    simulation.add_argument(
        "--creation",
        action="store_true",
        help="predict what a comm of all ranks costs: its creation, heartbeats, and a death",
    )
    simulation.add_argument(
        "--plot",
        metavar="FILE.png",
        type=Path,
        help="plot the times of busy wires and, with --model, efficiency against ranks; needs"
        " matplotlib (pip install 'libddl[plot]')",
    )
    simulation.set_defaults(run=_simulate)
    _add_installed(simulation, SIMULATE_ENTRY_POINTS)
    _add_trace(
        commands.add_parser(
            "trace",
            help="summarize the traces of a job's ranks, and merge them",
            description="Summarize the traces of a job's ranks: the last operation of each rank,"
            " the ranks that others waited for, and the slowest operations. With -o, merge them"
            " into one timeline for ui.perfetto.dev or chrome://tracing. A rank writes its trace"
            " to the folder $DDL_TRACE_DIR when its comm fails. Comm.trace() returns it at any"
            " time.",
            epilog="example: ddl trace traces --html timeline.html",
            allow_abbrev=False,
        )
    )
    add_doctor(commands.add_parser)
    add_lab(commands.add_parser)
    _add_installed(commands.add_parser, ENTRY_POINTS)
    return parser


def _add_installed(to: object, group: str) -> None:
    """Add the commands of other installed packages to `to`. These packages have entry points in
    this group, see docs/launching.md."""
    for entry in entry_points(group=group):
        try:
            entry.load()(to)
        except Exception as error:  # a broken package must not disable the other commands
            kind = type(error).__name__
            print(
                f"ddl: the command {entry.name} is not available ({entry.value}): {kind}: {error}",
                file=sys.stderr,
            )


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", type=Path, help="file of a trace, or folder with traces"
    )
    parser.add_argument(
        "-o", metavar="ALL.json", dest="output", type=Path, help="write one timeline of all ranks"
    )
    parser.add_argument(
        "--html",
        metavar="ALL.html",
        type=Path,
        help="write an HTML page with a lane for each rank; needs plotly (pip install"
        " 'libddl[plot]')",
    )
    parser.add_argument("--size", metavar="N", type=parse_count, help="number of ranks of the comm")
    parser.set_defaults(run=_trace)


def _add_question(parser: argparse.ArgumentParser, sizes: str, needed: bool = True) -> None:
    parser.add_argument(
        "cluster",
        metavar="CLUSTER.toml",
        type=Path,
        nargs=None if needed else "?",
        help="file that describes the cluster",
    )
    parser.add_argument(
        "--bytes",
        metavar="SIZE,...",
        type=_sizes,
        default=sizes,
        help=f"sizes of the buffer, such as 64MiB (default: {sizes})",
    )
    parser.add_argument(
        "--operation",
        metavar="NAME",
        type=_operation,
        default="allreduce",
        help=f"{', '.join(OPERATIONS)} (default: allreduce); ordered:V is an ordered sum over V"
        " logical workers, distributed equally over the ranks (default: one for each rank)",
    )


def _operation(text: str) -> str:
    try:
        split_operation(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _sizes(text: str) -> list[int]:
    return [_size(size) for size in text.split(",")]


def _size(text: str) -> int:
    return _checked(parse_bytes, text)


def _rate(text: str) -> float:
    return _checked(parse_rate, text)


def _checked(parse: Callable[[object], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _hosts(text: str) -> list[int]:
    hosts = text.split(",")
    if not all(n.isdecimal() and int(n) for n in hosts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers >= 1")
    return [int(n) for n in hosts]


def _trace(arguments: argparse.Namespace) -> None:
    records = trace.read(trace.files(arguments.files))
    print(trace.summary(records, arguments.size))
    if arguments.output:
        try:
            arguments.output.write_text(json.dumps(trace.merge(records)))
        except OSError as error:
            raise trace.TraceError(f"{arguments.output}: {error.strerror}") from None
    if arguments.html:
        trace_page.write(arguments.html, records, arguments.size)


def _plan_cluster(arguments: argparse.Namespace) -> Cluster:
    described = arguments.hosts, arguments.rate
    if arguments.cluster and not any(described):
        return read_cluster(arguments.cluster)
    if arguments.cluster or not all(described):
        raise CommandError("give CLUSTER.toml, or --hosts and --rate (see ddl plan --help)")
    return methods.ethernet(arguments.hosts, arguments.ranks, arguments.rate)


def _plan(arguments: argparse.Namespace) -> None:
    cluster = _plan_cluster(arguments)
    if bool(arguments.model_bytes) != bool(arguments.step_ms):
        raise CommandError("--model-bytes and --step-ms belong together (see ddl plan --help)")
    if arguments.model_bytes:
        nbytes, seconds = arguments.model_bytes, arguments.step_ms / 1e3
        predicted = methods.predict(cluster, nbytes, seconds, arguments.local_steps)
        if arguments.json:
            print(methods.as_json(nbytes, seconds, predicted))
        else:
            print(methods.as_table(cluster, nbytes, seconds, predicted))
        return
    if arguments.plot:
        check_plot(arguments.plot)
        steps = planning.steps(cluster, arguments.operation, arguments.bytes[0], MESSAGES_MAX)
        most = max(64 << 20, *arguments.bytes)
        curves = planning.curves(cluster, arguments.operation, most)
        plot_plans(arguments.plot, cluster, curves, steps)
    found = list(planning.candidates(cluster, arguments.operation, arguments.bytes))
    show = planning.as_json if arguments.json else planning.as_table
    print(show(cluster, arguments.operation, found))


def _simulate(arguments: argparse.Namespace) -> None:
    if not arguments.cluster:
        raise CommandError("CLUSTER.toml is missing (see ddl simulate --help)")
    cluster = read_cluster(arguments.cluster)
    if arguments.plot:
        check_plot(arguments.plot)
    points: list[scaling.Point] = []
    hosts = arguments.hosts or scaling.host_counts(cluster)
    if max(hosts) > len(cluster.hosts):
        raise DescriptionError(
            f"--hosts {max(hosts)}: {arguments.cluster} has {len(cluster.hosts)} hosts"
        )
    if arguments.creation:
        members = [creation.predict(cluster.first_hosts(n)) for n in hosts]
        print(creation.creation_table(cluster, members))
        if arguments.plot:
            plot_creation(arguments.plot, cluster, members)
        return
    if arguments.model:
        model = read_model(arguments.model)
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
