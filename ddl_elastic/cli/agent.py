# SPDX-License-Identifier: Apache-2.0
"""`ddl elastic agent`, which offers this machine's slots to a job on another host."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from ddl_elastic.base import environment
from ddl_elastic.engines import Program, dialing
from ddl_elastic.engines.dialed import DialedEngine
from ddl_elastic.engines.host_agent import JoinRefused
from ddl_launch.errors import CommandError, LaunchError
from ddl_launch.rank import sockets

_DESCRIPTION = """\
Offer this machine to an elastic job, which `ddl elastic run --listen` has started on another one,
or to the jobs of `ddl serve --agents`. Agents may come at any time, and leave: a job's result does
not depend on them. One for each machine will do.
"""

_EPILOG = """\
examples:
  ddl elastic agent --join head:29400 --token-file job.token          a slot for each core
  ddl elastic agent --join head:29400 --token-file job.token -n 2 --cores 4
  sbatch --array=1-8 --wrap "ddl elastic agent --join head:29400 --token-file job.token"

The program has to be there on this machine too, under the same path. Make the token by
  (umask 077; head -c 32 /dev/urandom | base64 > job.token)
and copy it to all machines. It is never sent; nothing is encrypted.

exit code: 0: the job is over; 1: it could not be joined; 2: wrong usage; if its coordinator is gone
for good: that of the first worker here that has failed
"""

_PORTS = range(1 << 16)


def add_agent(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `agent` to the commands of `ddl elastic`."""
    agent = commands.add_parser(
        "agent",
        help="offer this machine to a job on another one",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    agent.add_argument(
        "--join", metavar="HOST:PORT", required=True, help="address at which the job listens"
    )
    agent.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="file with the job's secret token (default: the token in $DDL_ELASTIC_TOKEN)",
    )
    agent.add_argument(
        "-n",
        dest="slots",
        metavar="N",
        type=int,
        help="number of slots (default: one for each core, or for each --cores cores)",
    )
    agent.add_argument(
        "--cores", metavar="C", type=int, default=1, help="cores per slot (default: 1)"
    )
    agent.add_argument(
        "--wait",
        metavar="S",
        type=float,
        default=60.0,
        help="seconds to wait for a job that does not listen yet, or for a new coordinator while"
        " no worker trains here (default: 60)",
    )
    agent.set_defaults(run=_run)


class StartedAgents(Protocol):
    """The agents that were started for a job. A context manager, which ends them."""

    def failure(self) -> str:
        """Return an error message for the first agent that failed, or ""."""

    def __enter__(self) -> StartedAgents: ...

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def agents_engine(
    address: tuple[str, int],
    token: str,
    program: Program,
    start: Callable[[int], StartedAgents] | None,
    least: int,
    show: Callable[[str], None],
) -> Iterator[DialedEngine]:
    """Start an engine for remote agents, and wait for `least` free slots. Raises CommandError.

    start  starts the agents, which connect to the given port; None if users start them
    """
    environment.allow_connections()
    try:
        engine = DialedEngine(address, token, program, show)
    except OSError as error:
        raise CommandError(f"--listen {address[0]}:{address[1]}: {error.strerror}") from None
    with ExitStack() as stack:
        agents = None
        if start:
            try:
                agents = stack.enter_context(start(engine.port))
            except LaunchError as error:
                engine.close()
                raise CommandError(str(error)) from None
        stack.enter_context(engine)  # agents end when it is closed
        show(f"waits for agents with {least} slots in all, on port {engine.port}")
        while sum(slot.state == "free" for slot in engine.slots()) < least:
            if agents and (why := agents.failure()):
                raise CommandError(why)
            engine.events(1.0)
        yield engine


def parse_address(text: str, option: str, host: str = "") -> tuple[str, int]:
    """Parse "HOST:PORT", or "PORT" if there is a default `host`. Raises CommandError."""
    name, colon, port = text.removeprefix("tcp://").rpartition(":")
    if not (port.isdecimal() and int(port) in _PORTS and (name or not colon) and (name or host)):
        raise CommandError(f"{option} {text}: must be HOST:PORT, such as head:29400")
    return name.strip("[]") or host, int(port)


def read_token(path: Path) -> str:
    """Read the token in the file of `--token-file`. Raises CommandError."""
    try:
        return dialing.read_token(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"--token-file {path}: {why}") from None


def _check_ports(slots: int) -> None:
    """Raise CommandError if DDL_PORTS has no port for the worker of each slot."""
    try:
        ports = sockets.allowed_ports()
    except OSError as error:
        raise CommandError(str(error.strerror)) from None
    if ports is not None and len(ports) < slots:
        raise CommandError(
            f"DDL_PORTS={ports[0]}-{ports[-1]} has {len(ports)} ports; the workers of {slots} slots"
            " need one each: make the range larger, or reduce -n"
        )


def _run(arguments: argparse.Namespace) -> int:
    environment.fix_hashes()
    address = parse_address(arguments.join, "--join")
    own = environment.take_token()
    token = read_token(arguments.token_file) if arguments.token_file else own
    if not token:
        raise CommandError(
            "--token-file is missing: the job authenticates its agents with that token"
        )
    cores: int = arguments.cores
    slots = (
        max(1, environment.cores() // max(cores, 1)) if arguments.slots is None else arguments.slots
    )
    if slots < 1 or cores < 1:
        raise CommandError(f"-n {slots} --cores {cores}: both must be at least 1")
    _check_ports(slots)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    environment.allow_connections()
    try:
        return dialing.serve(address, token, slots, cores, arguments.wait)
    except JoinRefused as error:
        print(f"ddl elastic agent: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
