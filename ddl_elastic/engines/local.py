# SPDX-License-Identifier: Apache-2.0
"""The engine of one machine: agents are forked, by a process that has everything imported.

The caller forks the fork server before anything else runs in threads; the server forks an agent
for each slot that is started, and the agent its worker. So the program's functions and data reach
the workers as they are, without being sent, and a worker starts within milliseconds.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ddl_elastic.base import environment
from ddl_elastic.base.messages import Channel
from ddl_elastic.base.waiting import ready
from ddl_elastic.engines import AgentSpec, Event, Handle, Slot, agent
from ddl_elastic.engines.logs import follow_log
from ddl_launch.witness import MOST_BYTES, Witness

# What a worker does, with its spec and its channel to the job.
Work = Callable[[AgentSpec, Channel], None]

_SPREAD = b"ended "  # to the fork server; then an endpoint


class LocalEngine:
    """See ddl_elastic.engines.Engine. A context manager."""

    def __init__(self, work: Work, slots: int, cores: int = 1, logs: Path | None = None) -> None:
        """Keep the workers' output in the folder `logs`; None makes a temporary one."""
        host = socket.gethostname()
        self._slots = [Slot(number, host, f"cpu{cores}", cores) for number in range(slots)]
        # No TemporaryDirectory: a worker that ends as programs do would remove it.
        self._keeps_logs = logs is not None
        self._logs = str(logs or tempfile.mkdtemp(prefix="ddl-elastic-"))
        self._agents: dict[int, Channel] = {}  # by slot
        self._workers: dict[int, Channel] = {}  # by slot
        self._members: dict[int, int] = {}
        self._server, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._server.close()
            _serve(far, work)
        far.close()

    def slots(self) -> list[Slot]:
        return list(self._slots)

    def start(self, slot: Slot, spec: AgentSpec) -> Handle:
        self._require_free(slot)
        near, far = socket.socketpair()
        used = self.launch(slot, spec, far)
        if earlier := self._workers.pop(slot.id, None):
            earlier.close()
        self._workers[slot.id] = worker = Channel(near)
        return Handle(used, spec.member, worker)

    def launch(self, slot: Slot, spec: AgentSpec, connection: socket.socket) -> Slot:
        """The same for a worker whose channel is this connection, which is closed here."""
        self._require_free(slot)
        used = self._slots[slot.id] = replace(slot, state="used")
        self._members[slot.id] = spec.member
        near_agent, far_agent = socket.socketpair()
        with far_agent, connection:
            text = f"{spec.member} {spec.threads} {self._log(spec.member)}".encode()
            socket.send_fds(self._server, [text], [far_agent.fileno(), connection.fileno()])
        self._agents[slot.id] = Channel(near_agent)
        return used

    def _require_free(self, slot: Slot) -> None:
        if self._slots[slot.id].state != "free":
            raise ValueError(f"slot {slot.id} is {self._slots[slot.id].state}")

    def channels(self) -> list[Channel]:
        """Those that `events` waits for."""
        return list(self._agents.values())

    @property
    def witness(self) -> socket.socket:
        """On which there is something when `witnessed` has something to tell."""
        return self._server

    def witnessed(self) -> list[bytes]:
        """Return reports of the ends of workers of this engine since the last call: what
        `Witness` reports of each endpoint of libddl."""
        found = []
        with suppress(BlockingIOError, ConnectionError):
            while endpoint := self._server.recv(MOST_BYTES, socket.MSG_DONTWAIT):
                found.append(endpoint)
        return found

    def spread(self, endpoint: bytes) -> None:
        """Pass on the report of another engine that a process has ended."""
        with suppress(OSError):  # the fork server has ended
            self._server.send(_SPREAD + endpoint)

    def stop(self, handle: Handle, grace: float) -> None:
        with suppress(KeyError, OSError):  # it has ended already
            self._agents[handle.slot.id].send("stop", grace=float(grace))

    def events(self, timeout: float) -> list[Event]:
        channels = {channel: number for number, channel in self._agents.items()}
        return [self._ended(channels[channel]) for channel in ready(channels, timeout)]

    def _ended(self, number: int) -> Event:
        """An agent tells its worker's code as the last thing. If it is gone without, it was killed,
        and the worker with it."""
        channel = self._agents.pop(number)
        try:
            fields = channel.receive().fields
        except EOFError:
            fields = {"code": -signal.SIGKILL, "ordered": False}
        channel.close()
        slot = self._slots[number] = replace(self._slots[number], state="free")
        return Event("agent ended", slot, self._members[number], **fields)

    def logs(self, handle: Handle, follow: bool) -> Iterator[bytes]:
        def grows() -> bool:
            slot = handle.slot.id
            return follow and slot in self._agents and self._members[slot] == handle.member

        return follow_log(self._log(handle.member), grows)

    def _log(self, member: int) -> Path:
        return Path(self._logs, f"worker{member}.log")

    def want(self, slots: int) -> None:
        """There are as many slots as there are."""

    def close(self) -> None:
        for channel in (*self._agents.values(), *self._workers.values()):
            channel.close()
        self._agents.clear()
        self._server.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        if not self._keeps_logs:
            shutil.rmtree(self._logs, ignore_errors=True)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(control: socket.socket, work: Work) -> NoReturn:
    """The fork server: until the caller has ended or closed the engine. It also is the workers'
    witness, since it outlives every agent."""
    try:
        agent.end_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's: the caller decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Not epoll, which a child would share: it closes what it has inherited.
        selector = selectors.PollSelector()

        def tell(endpoint: bytes) -> None:
            with suppress(OSError):  # nobody reads it, or the engine is gone
                control.send(endpoint, socket.MSG_DONTWAIT)

        witness = Witness(selector, tell)
        selector.register(control, selectors.EVENT_READ)
        children: list[int] = []
        serves = True
        while serves:
            for key, _ in selector.select():
                if key.data:
                    key.data()
                    continue
                text, files = _receive(control)
                serves = bool(text)
                if text.startswith(_SPREAD):
                    witness.spread(text.removeprefix(_SPREAD))
                elif serves:
                    children += _fork_agent(text.decode(), files, work, control, witness)
            children = [child for child in children if not os.waitpid(child, os.WNOHANG)[0]]
        for child in children:
            os.waitpid(child, 0)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """What the engine asks for; nothing if it is closed, maybe before it has read all ends."""
    try:
        text, files, _, _ = socket.recv_fds(control, 4096, 2)
        return text, files
    except ConnectionResetError:
        return b"", []


def _fork_agent(
    text: str, files: list[int], work: Work, control: socket.socket, witness: Witness
) -> list[int]:
    """Its process; none if there is no room for it, which the engine sees by the closed files."""
    try:
        child = os.fork()
    except OSError:
        traceback.print_exc()
        child = -1
    if child == 0:
        control.close()
        witness.close()
        _run_agent(text, files, work, witness.name)
    for each in files:
        os.close(each)
    return [child] if child > 0 else []


def _run_agent(text: str, files: list[int], work: Work, witness: str) -> NoReturn:
    agent.end_with_parent()
    member, threads, log = text.split(" ", 2)
    spec = AgentSpec(int(member), int(threads))
    agent_channel, worker = (socket.socket(fileno=each) for each in files)

    def worker_main() -> None:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # In a notebook these are objects of its own.
        sys.stdout = open(1, "w", buffering=1, closefd=False)
        sys.stderr = open(2, "w", buffering=1, closefd=False)
        environment.prepare_worker(spec.threads, witness)
        work(spec, Channel(worker))

    agent.run(Channel(agent_channel), worker_main)
