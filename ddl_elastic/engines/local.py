# SPDX-License-Identifier: Apache-2.0
"""The engine for this machine, which forks agents from a process that has imported all modules.

The caller forks a fork server before it starts any threads. For each worker the server forks an
agent, and the agent forks the worker. Workers therefore inherit the program's functions and data
without serialization, and start within milliseconds.
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
from typing import Any, NoReturn

from ddl_elastic.base import environment
from ddl_elastic.base.messages import Channel
from ddl_elastic.base.protocol import FROM_WORKER, TO_WORKER, JobChannel, WorkerChannel
from ddl_elastic.base.waiting import ready
from ddl_elastic.engines import AgentSpec, Event, Handle, Slot, agent
from ddl_elastic.engines.logs import follow_log
from ddl_elastic.engines.protocol import (
    PROCESS_EXITED,
    STOP_PROCESS,
    ProcessExited,
    StopProcess,
)
from ddl_launch.rank.witness import MOST_BYTES, Witness

# The main function of a worker. Its arguments are the spec and the channel to the job.
Work = Callable[[AgentSpec, JobChannel], None]

_SPREAD = b"ended "  # prefix of an endpoint that the engine sends to the fork server


class LocalEngine:
    """An Engine whose workers are processes on this machine. A context manager."""

    def __init__(self, work: Work, slots: int, cores: int = 1, logs: Path | None = None) -> None:
        """Keep the workers' output in the folder `logs`. None uses a temporary folder."""
        host = socket.gethostname()
        self._slots = [Slot(number, host, f"cpu{cores}", cores) for number in range(slots)]
        # Not a TemporaryDirectory: a worker that exits normally would remove it.
        self._keeps_logs = logs is not None
        self._logs = str(logs or tempfile.mkdtemp(prefix="ddl-elastic-"))
        self._agents: dict[int, Channel[ProcessExited]] = {}  # by slot id
        self._workers: dict[int, WorkerChannel] = {}  # by slot id
        self._members: dict[int, int] = {}  # the latest worker's number, by slot id
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
        self._workers[slot.id] = worker = Channel(near, FROM_WORKER)
        return Handle(used, spec.member, worker)

    def launch(self, slot: Slot, spec: AgentSpec, connection: socket.socket) -> Slot:
        """Start a worker whose channel to the job is `connection`. Close it in this process."""
        self._require_free(slot)
        used = self._slots[slot.id] = replace(slot, state="used")
        self._members[slot.id] = spec.member
        near_agent, far_agent = socket.socketpair()
        with far_agent, connection:
            text = f"{spec.member} {spec.threads} {self._log(spec.member)}".encode()
            socket.send_fds(self._server, [text], [far_agent.fileno(), connection.fileno()])
        self._agents[slot.id] = Channel(near_agent, PROCESS_EXITED)
        return used

    def _require_free(self, slot: Slot) -> None:
        if self._slots[slot.id].state != "free":
            raise ValueError(f"slot {slot.id} is {self._slots[slot.id].state}")

    def channels(self) -> list[Channel[ProcessExited]]:
        """Return the channels that `events` waits for."""
        return list(self._agents.values())

    @property
    def witness(self) -> socket.socket:
        """The socket that is readable when `witnessed` has endpoints to return."""
        return self._server

    def witnessed(self) -> list[bytes]:
        """Return the reports of this engine's witness since the last call. Each is about a libddl
        endpoint whose process, a worker of this engine, has exited."""
        found = []
        with suppress(BlockingIOError, ConnectionError):
            while endpoint := self._server.recv(MOST_BYTES, socket.MSG_DONTWAIT):
                found.append(endpoint)
        return found

    def spread(self, endpoint: bytes) -> None:
        """Forward another engine's report of an exited process to the workers."""
        with suppress(OSError):  # the fork server has exited
            self._server.send(_SPREAD + endpoint)

    def stop(self, handle: Handle, grace: float) -> None:
        with suppress(KeyError, OSError):  # the agent has already exited
            self._agents[handle.slot.id].send(StopProcess(grace))

    def events(self, timeout: float) -> list[Event]:
        channels = {channel: number for number, channel in self._agents.items()}
        return [self._ended(channels[channel]) for channel in ready(channels, timeout)]

    def _ended(self, number: int) -> Event:
        """Free the slot of an agent that reports its worker's exit code or has disconnected. In
        the latter case the agent was killed, and its worker with it."""
        channel = self._agents.pop(number)
        try:
            end = channel.receive()
        except EOFError:
            end = ProcessExited(-signal.SIGKILL, ordered=False)
        channel.close()
        slot = self._slots[number] = replace(self._slots[number], state="free")
        return Event("agent ended", slot, self._members[number], end.code, end.ordered)

    def logs(self, handle: Handle, follow: bool) -> Iterator[bytes]:
        def grows() -> bool:
            slot = handle.slot.id
            return follow and slot in self._agents and self._members[slot] == handle.member

        return follow_log(self._log(handle.member), grows)

    def _log(self, member: int) -> Path:
        return Path(self._logs, f"worker{member}.log")

    def want(self, slots: int) -> None:
        """Do nothing: the number of slots is fixed."""

    def close(self) -> None:
        channels: list[Channel[Any]] = [*self._agents.values(), *self._workers.values()]
        for channel in channels:
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
    """Run the fork server until the engine is closed. The server is also the workers' witness,
    because it exits after all agents."""
    try:
        agent.end_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Not epoll: children share it, and would affect it when they close inherited descriptors.
        selector = selectors.PollSelector()

        def tell(endpoint: bytes) -> None:
            with suppress(OSError):  # the engine does not read its socket, or has closed it
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
    """Receive a request of the engine and its descriptors. Return empty ones if it is closed."""
    try:
        text, files, _, _ = socket.recv_fds(control, 4096, 2)
        return text, files
    except ConnectionResetError:
        return b"", []


def _fork_agent(
    text: str, files: list[int], work: Work, control: socket.socket, witness: Witness
) -> list[int]:
    """Fork an agent. Return its process id in a list, or an empty list if the fork failed."""
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
        # In a notebook, sys.stdout and sys.stderr do not write to descriptors 1 and 2.
        sys.stdout = open(1, "w", buffering=1, closefd=False)
        sys.stderr = open(2, "w", buffering=1, closefd=False)
        environment.prepare_worker(spec.threads, witness)
        work(spec, Channel(worker, TO_WORKER))

    agent.run(Channel(agent_channel, STOP_PROCESS), worker_main)
