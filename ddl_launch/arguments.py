# SPDX-License-Identifier: Apache-2.0
"""ddlrun's options."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ddl_core.base._lib import version
from ddl_launch.base.command_line import complete, find_similar, with_suggestion
from ddl_launch.base.quantities import parse_count
from ddl_launch.errors import USAGE, LaunchError
from ddl_launch.foreign_options import find_replacement, find_same
from ddl_launch.rank.placement import BINDINGS

SCHEDULERS = ("slurm", "lsf", "pbs", "k8s")

_DESCRIPTION = """\
Start N ranks of PROGRAM on this machine or on several hosts. The ranks connect to each other in
ddl_core.init(), in the init() of a framework's adapter, or in ddl_rendezvous() in C. ddlrun runs a
PROGRAM that ends in .py with its own Python, and executes any other PROGRAM. To start ranks on
other hosts, it uses mpirun (Open MPI, MPICH or Intel MPI) or srun.
"""

_EPILOG = """\
examples:
  ddlrun -n 2 train.py --epochs 10         2 ranks of a Python program
  ddlrun -n 4 ./a.out                      4 ranks of any other program
  ddlrun -H h1:2,h2:2 train.py             2 ranks on each of two hosts
  ddlrun -hostfile hosts -accelerators 4 train.py
  ddlrun train.py                          on the hosts of a Slurm, LSF or PBS allocation
  ddlrun -H h1:2,h2:2 --dry-run train.py   print the command without running it
  ddlrun -H h1,h2 --check                  check the hosts and measure the network
  ddlrun --submit slurm -nodes 2 -accelerators 4 train.py
  ddlrun -n 4 --output-dir logs train.py   write logs/rank.0.out, logs/rank.0.err, ...
  ddlrun -n 4 --timeline trace train.py    write trace/timeline.json, for ui.perfetto.dev
  DDL_LINKS=tcp ddlrun -n 2 train.py       use TCP instead of shared memory

output: Each line begins with the rank that printed it. A progress bar of rank 0 stays at the bottom
  of the terminal.
input: Rank 0 reads ddlrun's standard input unless it is a terminal. The other ranks have none.
signals: SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed to all ranks. A second SIGINT or
  SIGTERM ends them. A job that SIGINT (Ctrl-C) ended is "interrupted", with exit code 130.
failures: When ranks fail, ddlrun names the one that failed first. It ends the others with SIGTERM,
  and after --grace seconds with SIGKILL.
exit code: the job's, which is 0 or the exit code of the rank that failed first (128 + N if signal N
  killed it); 2: wrong usage; 126: PROGRAM is not executable; 127: PROGRAM does not exist
environment of each rank:
  DDL_RANK, DDL_SIZE, DDL_LOCAL_RANK, DDL_LOCAL_SIZE, DDL_RENDEZVOUS, DDL_SECRET
  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as under torchrun
  unless set: OMP_NUM_THREADS = cores / N, the same for MKL, OpenBLAS and TensorFlow, and
    PYTHONUNBUFFERED = 1
  with the options of libddl: DDL_OPTIONS, DDL_TOPOLOGY, DDL_LINKS
  on other hosts: the variables that -x names, and from ddlrun's own environment PATH,
    LD_LIBRARY_PATH, VIRTUAL_ENV, LANG and the variables of Python, DDL, OpenMP and the frameworks

Options may begin with one dash or two. The page "Starting jobs" of the documentation describes each
way to start a job.
"""

COUNTED = ("auto", "cpu", "gpu")  # words for -accelerators, which torchrun has
_WITH_DASHES = ("ddloption", "mpiarg", "submitarg")  # options whose values are options
_UNKNOWN = {
    "-s": "it never had a documented meaning",
    "-disable_gdr": "libddl does not use GPUDirect",
    "-gpu": "the program chooses the device by LOCAL_RANK",
}
# Messages of argparse, click and getopt about an option that a program does not have.
_REJECTED = re.compile(
    r"unrecognized arguments?:|no such option|(unknown|invalid|unrecognized) option", re.IGNORECASE
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = with_suggestion(message, self._option_string_actions)
        raise LaunchError(USAGE, f"{message} (see ddlrun --help)")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse ddlrun's options. `command` is the program with its arguments. Raises LaunchError."""
    parser = make_parser()
    complete(parser)
    return parser.parse_args(_plain(parser, argv))


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ddlrun",
        usage="ddlrun [-n N | -H HOST:N,...] [options] PROGRAM [ARGUMENT ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_places(parser)
    _add_library(parser)
    _add_launcher(parser)
    _add_output(parser)
    parser.add_argument("--version", action="version", version=f"ddlrun (libddl {version()})")
    for name, why in _UNKNOWN.items():
        _add(parser, name, help=argparse.SUPPRESS, nargs=0, action=_refusal(name, why))
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add(group: argparse._ActionsContainer, *names: str, **options: Any) -> None:
    options.setdefault("dest", names[-1].lstrip("-").replace("-", "_"))
    group.add_argument(*names, **options)


def _add_places(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ranks and hosts")
    _add(group, "-n", metavar="N", type=_ranks, help="number of ranks to start")
    _add(group, "-H", "-host", metavar="HOST[:N],...", help="hosts, and the ranks on each")
    _add(
        group,
        "-hostfile",
        metavar="FILE",
        type=Path,
        help='a file with a line "HOST slots=N" for each host',
    )
    _add(
        group,
        "-rf",
        "-rankfile",
        metavar="FILE",
        type=Path,
        help='a file with a line "rank N=HOST slot=CORES" for each rank',
    )
    _add(
        group,
        "-accelerators",
        metavar="N",
        type=_per_host,
        help="ranks on each host; here also cpu, gpu or auto, to count this machine's",
    )
    _add(
        group,
        "--nnodes",
        metavar="N",
        type=parse_count,
        help="number of hosts, to check the list of hosts; ddlrun starts the ranks of all hosts",
    )
    _add(group, "-nodes", metavar="N", type=parse_count, help="hosts in each rack")
    _add(group, "-racks", metavar="N", type=parse_count, help="racks in each aisle (default: 1)")
    _add(group, "-aisles", metavar="N", type=parse_count, help="aisles (default: 1)")
    _add(
        group,
        "--bind",
        choices=BINDINGS,
        default="numa",
        help="bind each rank to a NUMA node, to its own cores, or not at all (default: numa)",
    )


def _add_library(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options of libddl")
    _add(
        group,
        "-m",
        "-mode",
        metavar="A:XxY",
        help="algorithm: r:N ring, d:XxY hierarchical, t trees, h halving, p the fastest by trial",
    )
    _add(
        group,
        *("-ddlarg", "-ddloption"),
        metavar="ARGS",
        action="append",
        default=[],
        help="-mode or -dump_iter, written to DDL_OPTIONS; -dbg_level, written to DDL_LOG",
    )
    _add(group, "-no_ddloptions", action="store_true", help="do not set DDL_OPTIONS")
    _add(
        group,
        "--tcp",
        action="store_true",
        help="TCP between hosts, shared memory within a host; overrides DDL_LINKS",
    )


def _add_launcher(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("launching on other hosts")
    _add(
        group,
        "-x",
        metavar="VAR[=VALUE]",
        action="append",
        default=[],
        type=_variable,
        help="an environment variable to pass to all ranks",
    )
    _add(
        group,
        "--mpiarg",
        metavar="ARGS",
        action="append",
        default=[],
        help="arguments to pass to mpirun or srun; may be repeated",
    )
    _add(
        group,
        "--launcher",
        metavar="NAME",
        default="auto",
        help="mpirun, srun, or the path of one (default: srun in Slurm, else mpirun)",
    )
    _add(
        group,
        "--rsh",
        metavar="PROGRAM",
        help="remote shell to use instead of ssh (default: $DDL_RSH)",
    )
    _add(
        group,
        "--start-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=120.0,
        help="time limit for the start of all ranks (default: 120)",
    )
    _add(group, "-t", "--dry-run", action="store_true", help="print the command without running it")
    _add(group, "--check", action="store_true", help="check the hosts and measure the network")
    _add(
        group,
        "--plot",
        metavar="FILE.png",
        type=Path,
        help="with --check: plot latency and bandwidth between the hosts",
    )
    _add(group, "--submit", choices=SCHEDULERS, help="write and submit a batch job")
    _add(
        group,
        "--submitarg",
        metavar="ARG",
        action="append",
        default=[],
        help="an option for the scheduler, with --submit, such as --time=1:00:00",
    )
    _add(group, "--image", metavar="IMAGE", help="container image, with --submit")
    _add(group, "--name", metavar="NAME", type=_job_name, help="name of the job, with --submit")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output and termination")
    _add(group, "-v", "--verbose", action="store_true", help="show the hosts, cores and commands")
    _add(group, "--no-prefix", action="store_true", help="do not begin each line with the rank")
    _add(
        group,
        "--output-dir",
        metavar="DIR",
        type=Path,
        help="write the output of rank N to DIR/rank.N.out and DIR/rank.N.err",
    )
    _add(
        group,
        "--timeline",
        metavar="DIR",
        type=Path,
        help="write the operations of all ranks to DIR/timeline.json, for ui.perfetto.dev",
    )
    _add(
        group,
        "--timeline-filename",
        metavar="FILE",
        help="write a timeline of ddl_horovod to FILE; sets HOROVOD_TIMELINE",
    )
    _add(
        group,
        "--grace",
        metavar="SECONDS",
        type=_seconds,
        default=5.0,
        help="time between SIGTERM and SIGKILL after another rank has failed (default: 5)",
    )
    _add(
        group,
        "--keep-going",
        action="store_true",
        help="let the other ranks run when one fails, for programs that shrink their comm; the exit"
        " code is 0 if any rank ends without an error",
    )


def _plain(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Convert the options to the form that argparse expects. Raises LaunchError for an option of
    another launcher that has to be written differently.

    Users may write one or two dashes, - or _, and some names of other launchers. A value that
    begins with a dash, such as -ddlarg "-dbg_level 1", is joined to its option.
    """
    rest, plain = list(argv), []
    known = parser._option_string_actions
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        given, equals, value = rest.pop(0).partition("=")
        name = _own_name(given, known)
        if name not in known:
            if instead := find_replacement(given, value or next(iter(rest), "")):
                raise LaunchError(USAGE, f"{given} is not an option of ddlrun: {instead}")
            # argparse would take -hostfiel for -h, and has to take -xNAME for -x NAME.
            if not given.startswith(("-x", "-H")) and find_similar(given, known):
                parser.error(f"unrecognized arguments: {given}")
        action = known.get(name)
        takes = isinstance(action, (argparse._StoreAction, argparse._AppendAction))
        if takes and not equals and rest:
            if name == "-m":
                _refuse_module(rest[0])
            if action and action.dest in _WITH_DASHES:
                equals, value = "=", rest.pop(0)
            else:
                plain += [name, rest.pop(0)]
                continue
        plain.append(name + equals + value)
    return plain + rest


def _own_name(given: str, known: Collection[str]) -> str:
    """Return ddlrun's spelling of an option, or the option itself if it is unknown."""
    word = given.lstrip("-")
    names = (given, f"-{word}", f"--{word}", "--" + word.replace("_", "-"), find_same(given))
    return next((name for name in names if name in known), given)


def explain_misplaced(parser: argparse.ArgumentParser, command: Sequence[str], said: str) -> str:
    """Return a hint if an option of `parser` stands after the program and the program rejects it.
    Return "" if there is none.

    said   the program's last lines
    """
    known = parser._option_string_actions
    rejected = "\n".join(line for line in said.splitlines() if _REJECTED.search(line))
    for word in command[1:]:
        name = word.partition("=")[0]
        is_own = name.startswith("-") and _own_name(name, known) in known
        if is_own and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", rejected):
            return (
                f"{parser.prog} passed {name} to the program, because it stands after the program:"
                f" write options of {parser.prog} before the program"
            )
    return ""


def find_number(command: Sequence[str]) -> str:
    """Return the option after the program that gives a number of ranks, such as "-n 4", or "" if
    there is none."""
    for name, value in itertools.pairwise(command[1:]):
        is_number = value.isdecimal() or value in COUNTED
        if is_number and (name == "-n" or find_same(name) in ("-n", "-accelerators")):
            return f"{name} {value}"
    return ""


def _refuse_module(value: str) -> None:
    """Raise LaunchError if the value of -m is the name of a module, as for `python -m`. A mode is a
    single letter or contains a colon."""
    if re.fullmatch(r"[A-Za-z_]\w+(\.\w+)*", value):
        raise LaunchError(
            USAGE,
            f"-m {value}: -m selects the mode of ddlrun; to run the module, write: ddlrun -n N"
            f" python -m {value}",
        )


def _refusal(name: str, why: str) -> type[argparse.Action]:
    class Refusal(argparse.Action):
        def __call__(self, *_: object) -> NoReturn:
            raise LaunchError(USAGE, f"{name} is not supported, {why}: omit it")

    return Refusal


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of ranks; must be an integer >= 1"
        )
    return int(text)


def _per_host(text: str) -> int | str:
    if text in COUNTED:
        return text
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of ranks; must be an integer >= 1, {', '.join(COUNTED)}"
        )
    return int(text)


def _variable(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[^\s=,-][^\s=,]*", name):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form VAR or VAR=VALUE")
    return name, value if equals else None


def _job_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a job name; use lower-case letters, digits and -"
        )
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds >= 0")
    return seconds
