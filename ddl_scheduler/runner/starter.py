# SPDX-License-Identifier: Apache-2.0
"""Starts what runs the jobs of `ddl serve`: by a fork of a process that has the framework imported.

The service forks the starter before it has threads. For each set of frameworks that programs name,
the starter forks one more process, which imports them once; that one forks the jobs' runners. So a
job starts within milliseconds, and a framework never comes into another one's process, nor into
the service's.

An order comes with the job's lock and listener, so that the job counts as running from then on,
whoever is killed in between. An order that is lost closes them: the service sees that the job has
ended without a result.

What runs a job has none of the connections for orders: its workers may be another user's, and
orders are carried out with the service's rights.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from ddl_elastic.engines import program
from ddl_scheduler.base.requests import spec_read
from ddl_scheduler.runner import runner
from ddl_scheduler.runner.runner import RunSpec

_LARGEST = 1 << 18  # bytes of an order
_LONGEST = 1 << 20  # characters of a program in which names of frameworks are looked for
_REAP_EVERY = 1.0  # seconds

_connections: list[socket.socket] = []  # for orders, of this process

# What a process does with an order that it has received with these descriptors.
_Take = Callable[[bytes, list[int]], None]


class StarterLost(RuntimeError):
    """No job can be started any more by this service."""


class Starter:
    """In the service. A context manager; what it has started stays when it is closed. To be made
    first: jobs inherit what this process has set up until then, even what it does at its end."""

    def __init__(self) -> None:
        self._connection = _fork_server(_by_frameworks)

    def start(self, order: RunSpec, lock: int, listener: socket.socket) -> None:
        """Run the job. Returns at once. Raises OSError and StarterLost."""
        text = json.dumps(asdict(order)).encode()
        try:
            socket.send_fds(self._connection, [text], [lock, listener.fileno()])
        except ConnectionError as error:
            raise StarterLost(
                "the process that starts jobs has ended: start ddl serve again; jobs that run go on"
            ) from error

    def close(self) -> None:
        _connections.remove(self._connection)
        self._connection.close()

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _by_frameworks() -> _Take:
    """Pass each order on to the process that has imported its program's frameworks."""
    servers: dict[tuple[str, ...], socket.socket] = {}

    def take(text: bytes, files: list[int]) -> None:
        path = _program(json.loads(text))
        text_of_program = _read(path)
        names = tuple(program.named(text_of_program)) if text_of_program else ()
        if server := servers.get(names):
            try:
                socket.send_fds(server, [text], files)
                return
            except OSError:  # it has ended, as by a framework that crashes
                _connections.remove(server)
                server.close()
        servers[names] = _fork_server(lambda: _by_fork(path if names else None), files)
        socket.send_fds(servers[names], [text], files)

    return take


def _read(path: Path) -> str:
    """The program's text; "" if it is no file that can be read."""
    with suppress(OSError):
        if path.is_file():
            with path.open(errors="replace") as file:
                return file.read(_LONGEST)
    return ""


def _by_fork(path: Path | None) -> _Take:
    """Import what this program names, and run each order in a process of its own."""
    if path:
        try:
            program.preload(None, path)
        except Exception:  # which the job's workers raise as well
            traceback.print_exc()

    def take(text: bytes, files: list[int]) -> None:
        if os.fork() == 0:
            _run(RunSpec(**json.loads(text)), files)

    return take


def _program(order: dict[str, Any]) -> Path:
    """The file; a missing one is told by who runs it."""
    try:
        return runner.program_path(spec_read(order["spec"]))
    except ValueError:
        return Path(os.devnull)


def _run(order: RunSpec, files: list[int]) -> NoReturn:
    """The runner's process. The lock is open as long as it lives, and its children."""
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
    """Fork a process that takes orders until the other end of what is returned is closed. It does
    not keep these files, since a job's lock is held by whoever has it open."""
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
        except Exception:  # there is no process for it, or no memory
            traceback.print_exc()
        for each in files:
            os.close(each)
