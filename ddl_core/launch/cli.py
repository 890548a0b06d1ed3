"""ddlrun's command line."""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ddl_core._lib import version
from ddl_core.launch.console import Console
from ddl_core.launch.job import Job, Plan

_USAGE, _NOT_EXECUTABLE, _NOT_FOUND = 2, 126, 127
_PORTS = range(20000, 32000)  # below those that Linux hands out by itself

_DESCRIPTION = """\
Run PROGRAM on this machine as N ranks that find each other: ddl_core.init(), a framework's adapter,
or ddl_rendezvous() in C joins them. A PROGRAM that ends in .py is run by this Python.
"""

_EPILOG = """\
examples:
  ddlrun -n 2 train.py --epochs 10         2 ranks of a Python program
  ddlrun -n 4 ./a.out                      4 of any other
  ddlrun -n 4 --output-dir logs train.py   output to logs/rank.0.out, logs/rank.0.err, ...
  DDL_LINKS=tcp ddlrun -n 2 train.py       over TCP, also where memory could be shared

Each line of output begins with its rank; a progress bar of rank 0 stays at the bottom. Rank 0 reads
ddlrun's input unless that is a terminal, the others read nothing. SIGINT, SIGTERM, SIGHUP, SIGUSR1
and SIGUSR2 go to all ranks; a second SIGINT or SIGTERM ends them. When a rank fails, ddlrun says
which was the first and how, and ends the others: SIGTERM, and SIGKILL after the time of grace.

exit code: the job's, which is that of the rank that failed first (128 + N: killed by signal N)
           2 wrong usage, 126 PROGRAM is not executable, 127 there is no such PROGRAM

each rank gets: DDL_RANK, DDL_SIZE, DDL_LOCAL_RANK, DDL_LOCAL_SIZE, DDL_RENDEZVOUS, DDL_SECRET;
                RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT as from
                torchrun; OMP_NUM_THREADS = cores / N and PYTHONUNBUFFERED = 1 unless they are set
"""


class LaunchError(Exception):
    """Why nothing was started, and the exit code that says so."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(_USAGE, f"{message} (ddlrun --help tells more)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ddlrun with `argv` (None: the process's own); the exit code."""
    console = Console()
    try:
        return Job(_plan(sys.argv[1:] if argv is None else argv, console), console).run()
    except LaunchError as error:
        console.say(str(error))
        return error.code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ddlrun",
        usage="ddlrun -n N [options] PROGRAM [ARGUMENT ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-n", metavar="N", type=_ranks, required=True, help="number of ranks")
    parser.add_argument("--no-prefix", action="store_true", help="do not mark lines with the rank")
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        help="write the ranks' output to rank.N.out and rank.N.err in DIR, not here",
    )
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=_seconds,
        default=5.0,
        help="time to end after SIGTERM, when another rank has failed (default: 5)",
    )
    parser.add_argument("--version", action="version", version=f"ddlrun (libddl {version()})")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 on")
    return seconds


def _plan(argv: Sequence[str], console: Console) -> Plan:
    arguments = _parser().parse_args(argv)
    command = _command(arguments.command)
    folder: Path | None = arguments.output_dir
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(_USAGE, f"--output-dir {folder}: {error.strerror}") from None
    shared = dict(os.environ)
    cores = len(os.sched_getaffinity(0))
    if arguments.n > 1 and "OMP_NUM_THREADS" not in shared:
        shared["OMP_NUM_THREADS"] = str(max(1, cores // arguments.n))
        console.say(
            f"OMP_NUM_THREADS={shared['OMP_NUM_THREADS']} for each of {arguments.n} ranks on"
            f" {cores} cores; set it to choose otherwise"
        )
    shared.setdefault("PYTHONUNBUFFERED", "1")
    if folder is None and console.draws_on(console.err):  # progress bars ask for the width
        columns, lines = shutil.get_terminal_size()
        prefix = 0 if arguments.no_prefix else len(f"[{arguments.n - 1}] ")
        shared |= {"COLUMNS": str(columns - prefix), "LINES": str(lines)}
    environments = _environments(shared, arguments.n)
    return Plan(command, environments, not arguments.no_prefix, folder, arguments.grace)


def _command(command: Sequence[str]) -> list[str]:
    """What to execute. LaunchError when that cannot work."""
    command = list(command[1:] if command[:1] == ["--"] else command)
    if not command:
        raise LaunchError(_USAGE, "no PROGRAM is given (ddlrun --help tells more)")
    program = command[0]
    if program.endswith(".py"):
        if not Path(program).is_file():
            raise LaunchError(_NOT_FOUND, f"there is no file {program}")
        return [sys.executable, *command]
    if shutil.which(program):
        return command
    path = Path(program)
    if "/" not in program:
        hint = f"; did you mean ./{program}?" if path.is_file() else ""
        raise LaunchError(_NOT_FOUND, f"there is no program {program} in PATH{hint}")
    if path.is_dir():
        raise LaunchError(_NOT_EXECUTABLE, f"{program} is a folder")
    if path.exists():
        raise LaunchError(_NOT_EXECUTABLE, f"{program} is not executable")
    raise LaunchError(_NOT_FOUND, f"there is no file {program}")


def _environments(shared: Mapping[str, str], size: int) -> list[dict[str, str]]:
    """The environment of each rank: what they share, and what tells them apart."""
    ours, torchs = _free_ports(2)
    job = {
        "DDL_SIZE": str(size),
        "DDL_LOCAL_SIZE": str(size),
        "DDL_RENDEZVOUS": f"tcp://127.0.0.1:{ours}",
        "DDL_SECRET": secrets.token_hex(32),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(torchs),
    }
    names = ("DDL_RANK", "DDL_LOCAL_RANK", "RANK", "LOCAL_RANK")
    return [{**shared, **job, **dict.fromkeys(names, str(rank))} for rank in range(size)]


def _free_ports(number: int) -> list[int]:
    """Different ports that nobody uses now. The ranks take them soon after."""
    free = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        free.append(port)
        if len(free) == number:
            return free
    raise LaunchError(1, f"no free port from {_PORTS.start} to {_PORTS.stop - 1}")
