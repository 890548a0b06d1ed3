# SPDX-License-Identifier: Apache-2.0
"""Starts what runs the jobs of `ddl serve`: by a fork of a process that has the framework imported.

The service forks the starter before it has threads. For each set of frameworks that programs name,
the starter forks one more process, which imports them once; that one forks the jobs' runners. So a
job starts within milliseconds, and a framework never comes into another one's process, nor into
the service's.

An order comes with the job's lock and listener, so that the job counts as running from then on,
whoever is killed in between.
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

from ddl_elastic import program
from ddl_elastic.scheduler import runner
from ddl_elastic.scheduler.requests import spec_read
from ddl_elastic.scheduler.runner import Order

_LARGEST = 1 << 18  # bytes of an order
_REAP_EVERY = 1.0  # seconds

# What a process does with an order that it has received with these descriptors.
_Take = Callable[[bytes, list[int]], None]


class Starter:
    """In the service. A context manager; what it has started stays when it is closed. To be made
    first: jobs inherit what this process has set up until then, even what it does at its end."""

    def __init__(self) -> None:
        self._connection = _fork_server(_by_frameworks)

    def start(self, order: Order, lock: int, listener: socket.socket) -> None:
        """Run the job. Returns at once. Raises OSError."""
        text = json.dumps(asdict(order)).encode()
        socket.send_fds(self._connection, [text], [lock, listener.fileno()])

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _by_frameworks() -> _Take:
    """Pass each order on to the process that has imported its program's frameworks."""
    servers: dict[tuple[str, ...], socket.socket] = {}

    def take(text: bytes, files: list[int]) -> None:
        path, text_of_program = _program(json.loads(text)), ""
        with suppress(OSError):
            text_of_program = path.read_text(errors="replace")
        names = tuple(program.named(text_of_program)) if text_of_program else ()
        if names not in servers:
            servers[names] = _fork_server(lambda: _by_fork(path if names else None), files)
        socket.send_fds(servers[names], [text], files)

    return take


def _by_fork(path: Path | None) -> _Take:
    """Import what this program names, and run each order in a process of its own."""
    if path:
        program.preload(None, path)

    def take(text: bytes, files: list[int]) -> None:
        if os.fork() == 0:
            _run(Order(**json.loads(text)), files)

    return take


def _program(order: dict[str, Any]) -> Path:
    """The file; a missing one is told by who runs it."""
    try:
        return runner.program_path(spec_read(order["spec"]))
    except ValueError:
        return Path(os.devnull)


def _run(order: Order, files: list[int]) -> NoReturn:
    """The runner's process. The lock is open as long as it lives, and its children."""
    try:
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
    if os.fork():
        far.close()
        return near
    try:
        near.close()
        for each in files:
            os.close(each)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
        _serve(far, make())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


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
        take(text, files)
        for each in files:
            os.close(each)
