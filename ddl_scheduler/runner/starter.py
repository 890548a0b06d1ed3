# SPDX-License-Identifier: Apache-2.0
"""The starter, which starts the jobs of `ddl serve`: it forks runners from processes that have
imported frameworks.

The service forks the starter before it has threads. For each set of frameworks that programs name,
the starter forks a server process that imports them once and forks the jobs' runners. A job
therefore starts within milliseconds, and no framework is loaded into the service or into another
framework's process.

The service sends the job's lock and listener with the description of the run. From then on, the job
counts as running, whichever process is killed. If the description is lost, both are closed, and the
service finds that the job ended without a result.

A runner closes its copies of the connections that carry descriptions. The starter acts on a
description with the service's privileges, and the runner's workers may belong to another user, who
must not be able to send one.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ddl_elastic.base.messages import decode, encode
from ddl_elastic.engines import program
from ddl_scheduler.base.requests import spec_read
from ddl_scheduler.runner import runner
from ddl_scheduler.runner.protocol import RUN_SPEC, RunSpec

_LARGEST = 1 << 18  # the most bytes of a run's description
_LONGEST = 1 << 20  # the most characters of a program that are searched for names of frameworks
_REAP_EVERY = 1.0  # seconds

_connections: list[socket.socket] = []  # this process's connections that carry descriptions of runs

# Handles the description of a run that was received with these descriptors.
_Take = Callable[[bytes, list[int]], None]


class StarterLost(RuntimeError):
    """An error: the starter has exited, so this service can start no more jobs."""


class Starter:
    """The service's connection to the starter, a context manager. Started jobs outlive it.

    Create it first: jobs inherit the state of this process at that time, including its exit
    handlers.
    """

    def __init__(self) -> None:
        self._connection = _fork_server(_by_frameworks)

    def start(self, order: RunSpec, lock: int, listener: socket.socket) -> None:
        """Start the job, and return at once. Raises OSError and StarterLost."""
        try:
            socket.send_fds(self._connection, [encode(order)], [lock, listener.fileno()])
        except ConnectionError as error:
            raise StarterLost(
                "the process that starts jobs has exited: restart ddl serve; running jobs continue"
            ) from error

    def close(self) -> None:
        _connections.remove(self._connection)
        self._connection.close()

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _by_frameworks() -> _Take:
    """Return a function that forwards each description to the process that has imported the
    program's frameworks."""
    servers: dict[tuple[str, ...], socket.socket] = {}

    def take(text: bytes, files: list[int]) -> None:
        path = _program(decode(RUN_SPEC, text))
        text_of_program = _read(path)
        names = tuple(program.named(text_of_program)) if text_of_program else ()
        if server := servers.get(names):
            try:
                socket.send_fds(server, [text], files)
                return
            except OSError:  # the server has exited; a framework may have crashed
                _connections.remove(server)
                server.close()
        servers[names] = _fork_server(lambda: _by_fork(path if names else None), files)
        socket.send_fds(servers[names], [text], files)

    return take


def _read(path: Path) -> str:
    """Return the program's text, or "" if it cannot be read."""
    with suppress(OSError):
        if path.is_file():
            with path.open(errors="replace") as file:
                return file.read(_LONGEST)
    return ""


def _by_fork(path: Path | None) -> _Take:
    """Import the frameworks that this program names. Return a function that forks a process for
    each run."""
    if path:
        try:
            program.preload(None, path)
        except Exception:  # the job's workers raise it as well
            traceback.print_exc()

    def take(text: bytes, files: list[int]) -> None:
        if os.fork() == 0:
            _run(decode(RUN_SPEC, text), files)

    return take


def _program(order: RunSpec) -> Path:
    """Return the program's path. The runner reports a missing file."""
    try:
        return runner.program_path(spec_read(order.spec))
    except ValueError:
        return Path(os.devnull)


def _run(order: RunSpec, files: list[int]) -> NoReturn:
    """Run the runner's process. It and its children hold the lock."""
    try:
        _close_connections()
        os.setsid()
        listener = socket.socket(fileno=files[1])
        events = os.open(order.job_folder.events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor in (1, 2):
            os.dup2(events, descriptor)
        os.close(events)
        runner.run(order, listener)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _fork_server(make: Callable[[], _Take], files: Sequence[int] = ()) -> socket.socket:
    """Fork a process that handles descriptions until the other end of the returned socket is
    closed.

    The process closes `files`, because a job's lock is held by every process that has it open.
    """
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        is_parent = os.fork() != 0
    except OSError:
        near.close()
        far.close()
        raise
    if is_parent:
        far.close()
        _connections.append(near)
        return near
    try:
        near.close()
        _close_connections()
        _connections.append(far)
        for each in files:
            os.close(each)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
        _serve(far, make())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _close_connections() -> None:
    while _connections:
        _connections.pop().close()


def _serve(orders: socket.socket, take: _Take) -> None:
    while True:
        ready, _, _ = select.select([orders], [], [], _REAP_EVERY)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not ready:
            continue
        text, files, _, _ = socket.recv_fds(orders, _LARGEST, 2)
        if not text:
            return
        try:
            take(text, files)
        except Exception:  # no process can be forked, or memory is full
            traceback.print_exc()
        for each in files:
            os.close(each)
