# SPDX-License-Identifier: Apache-2.0
"""The engine for remote agents, which connect from any host at any time; see dialing.py.

An agent opens a control connection, and one connection for each slot. The slot's connection becomes
the channel of its next worker. A slot is free while it has an unused connection. Both sides of each
connection prove that they know the token, and never send it. Data is not encrypted. If an agent's
host is lost, its slots are lost.

No call here blocks, and the engine has no threads: `slots` and `events` read the connections.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddl_elastic.base.messages import Channel, Message, Silent
from ddl_elastic.base.protocol import FROM_WORKER, WorkerChannel
from ddl_elastic.base.waiting import ready
from ddl_elastic.engines import AgentSpec, Event, Handle, Program, Slot, protocol
from ddl_elastic.engines.agent_listener import AgentListener
from ddl_elastic.engines.logs import follow_log
from ddl_launch.rank import frames

_BUSY = 0.02  # seconds after which one call stops reading messages


def job_secret(token: str, job: str) -> str:
    """Derive the secret with which the workers of a job authenticate to each other."""
    return hmac.new(token.encode(), b"job " + job.encode(), hashlib.sha256).hexdigest()


@dataclass(eq=False)
class _Agent:
    name: str
    connection: socket.socket
    channel: Channel[protocol.FromAgent]
    places: list[int]  # the ids of its slots


@dataclass(eq=False)
class _Place:
    """A slot, and the connection for its next worker."""

    slot: Slot
    agent: _Agent
    number: int  # the slot's number on its agent
    connection: socket.socket | None = None
    worker: WorkerChannel | None = None  # the channel of the latest worker
    member: int = -1


class DialedEngine:
    """An Engine whose slots belong to remote agents. A context manager.

    address  host and port to listen at; host "" means all interfaces, port 0 a free port
    token    the token that agents must know
    program  the program that the workers run
    refused  called with a message for each agent that is refused or lost, and for lost output
    job      the id of a running job, whose agents may reconnect; "" starts a new job
    logs     a folder for the workers' output, which is kept; None uses a temporary folder
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        program: Program,
        refused: Callable[[str], None] = lambda _text: None,
        job: str = "",
        logs: Path | None = None,
    ) -> None:
        self._refused = refused
        self.job = job or secrets.token_hex(16)
        self._settings = protocol.JobSettings(self.job, program)
        self._dial_in = AgentListener(address, token, self._admit, refused)
        self._agents: dict[str, _Agent] = {}
        self._places: list[_Place] = []
        self.failures: list[str] = []  # errors of agents that cannot run the program
        self._events: list[Event] = []
        self._keeps_logs = logs is not None
        self._logs = logs or Path(tempfile.mkdtemp(prefix="ddl-elastic-"))
        self._has_lost_output = False
        self._look_at = 0.0

    @property
    def port(self) -> int:
        """The port at which agents connect."""
        return self._dial_in.port

    def name(self, slot: Slot) -> str:
        """Return "AGENT/NUMBER": the agent's name and the slot's number on that agent."""
        place = self._places[slot.id]
        return f"{place.agent.name}/{place.number}"

    def slots(self) -> list[Slot]:
        self._take_in(0)
        return [place.slot for place in self._places]

    def start(self, slot: Slot, spec: AgentSpec) -> Handle:
        place = self._places[slot.id]
        if place.connection is None:
            raise ValueError(f"slot {slot.id} is {place.slot.state}")
        connection, place.connection, place.member = place.connection, None, spec.member
        place.slot = replace(place.slot, state="used")
        self._tell(place, protocol.StartWorker(place.number, spec.member, spec.threads))
        connection.settimeout(None)
        if place.worker:
            place.worker.close()
        place.worker = Channel(connection, FROM_WORKER)
        return Handle(place.slot, spec.member, place.worker)

    def stop(self, handle: Handle, grace: float) -> None:
        place = self._places[handle.slot.id]
        if place.slot.state == "used" and place.member == handle.member:
            self._tell(place, protocol.StopWorker(place.number, grace))

    def events(self, timeout: float) -> list[Event]:
        self._take_in(0 if self._events else timeout)
        events, self._events = self._events, []
        return events

    def logs(self, handle: Handle, follow: bool) -> Iterator[bytes]:
        place = self._places[handle.slot.id]

        def grows() -> bool:
            return follow and place.member == handle.member

        return follow_log(self._log(handle.member), grows)

    def want(self, slots: int) -> None:
        """Do nothing: this engine cannot start agents."""

    def close(self) -> None:
        for agent in self._agents.values():
            with contextlib.suppress(OSError):
                agent.channel.send(protocol.JobEnded())
            agent.channel.close()
        for place in self._places:
            if place.connection:
                place.connection.close()
            if place.worker:
                place.worker.close()
        self._agents.clear()
        self._dial_in.close()
        if not self._keeps_logs:
            shutil.rmtree(self._logs, ignore_errors=True)

    def __enter__(self) -> DialedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- connected agents ----

    def _tell(self, place: _Place, message: Message) -> None:
        with contextlib.suppress(OSError):  # the next read reports the loss of the agent
            place.agent.channel.send(message)

    def _take_in(self, timeout: float) -> None:
        """Read messages until none is left, for at most about _BUSY seconds after the first."""
        until = time.monotonic() + _BUSY
        while self._take_some(timeout) and time.monotonic() < until:
            timeout = 0
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + frames.TICK
            self._look()

    def _take_some(self, timeout: float) -> bool:
        agents = {agent.channel: name for name, agent in self._agents.items()}
        waits_for: list[Any] = [*self._dial_in.connections, *agents]
        found = ready(waits_for, timeout)
        for one in found:
            if self._dial_in.hear(one) or one not in agents:
                continue
            name = agents[one]
            if name in self._agents and self._agents[name].channel is one:  # not lost meanwhile
                self._hear(name)
        return bool(found)

    def _hear(self, name: str) -> None:
        agent = self._agents[name]
        try:
            for message in agent.channel.poll():
                self._take(agent, message)
        except Silent as error:
            self._lose(name, f"its host does not answer: {error}")
        except EOFError:
            self._lose(name, "it has ended", "closed")
        except ValueError as error:
            self._lose(name, f"it sent {error}")

    def _take(self, agent: _Agent, message: protocol.FromAgent) -> None:
        match message:
            case protocol.WorkerOutput():
                self._keep(self._place(agent, message.slot).member, message.output)
            case protocol.WorkerExited():
                self._free(self._place(agent, message.slot), message.code, message.ordered)
            case protocol.EndpointEnded():
                for other in self._agents.values():
                    if other is not agent:
                        with contextlib.suppress(OSError):  # the next read reports its loss
                            other.channel.send(message)
            case protocol.AgentFailed():
                self.failures.append(message.error)
                raise ValueError(f"an error: {message.error}")

    def _keep(self, member: int, output: bytes) -> None:
        """Append a worker's output to its log. An error loses output, but does not end the job."""
        try:
            with open(self._log(member), "ab") as file:
                file.write(output)
        except OSError as error:
            if not self._has_lost_output:
                self._has_lost_output = True
                self._refused(f"output of the workers is lost: {error}")

    def _place(self, agent: _Agent, number: int) -> _Place:
        if not 0 <= number < len(agent.places):
            raise ValueError(f"a message about slot {number}, but has {len(agent.places)} slots")
        return self._places[agent.places[number]]

    def _free(self, place: _Place, code: int, ordered: bool, **how: Any) -> None:
        """Record that the slot's worker has exited. The slot becomes free when its agent opens a
        new connection for it."""
        if place.member < 0:
            raise ValueError("the end of a worker that is not there")
        member, place.member = place.member, -1
        self._events.append(Event("agent ended", place.slot, member, code, ordered, **how))

    def _look(self) -> None:
        for name, agent in list(self._agents.items()):
            if frames.is_silent(agent.connection):
                self._lose(name, "its host does not answer")
        self._dial_in.look()

    def _lose(self, name: str, why: str, evidence: str = "silent") -> None:
        agent = self._agents.pop(name)
        agent.channel.close()
        for place in (self._places[each] for each in agent.places):
            place.slot = replace(place.slot, state="lost")
            if place.connection:
                place.connection.close()
                place.connection = None
            if place.member >= 0:
                cause = f"its agent is lost: {why}"
                self._free(place, -signal.SIGKILL, False, cause=cause, evidence=evidence)
            self._events.append(Event("slot lost", place.slot))
        if agent.places:
            slot = self._places[agent.places[0]].slot
            self._refused(f"the agent on {slot.host} is lost: {why}")

    # ---- new connections ----

    def _admit(self, connection: socket.socket, greeting: protocol.Greeting, nonce: bytes) -> None:
        name = greeting.agent
        if isinstance(greeting, protocol.AgentGreeting):
            if name in self._agents:
                self._lose(name, "it has connected again")
            self._dial_in.answer(connection, nonce, self._settings)
            channel = Channel(connection, protocol.FROM_AGENT)
            agent = self._agents[name] = _Agent(name, connection, channel, [])
            for number in range(greeting.slots):
                agent.places.append(len(self._places))
                slot = Slot(len(self._places), greeting.host, greeting.kind, greeting.cores, "used")
                self._places.append(_Place(slot, agent, number))
        else:
            if name not in self._agents:
                raise ValueError("a slot of an unknown agent")
            place = self._place(self._agents[name], greeting.slot)
            if place.connection or place.member >= 0:
                raise ValueError(f"slot {greeting.slot}, which is already open")
            self._dial_in.answer(connection, nonce, self._settings)
            if greeting.member >= 0:
                self._find(place, connection, greeting.member)
            else:
                place.connection, place.slot = connection, replace(place.slot, state="free")
                self._events.append(Event("slot added", place.slot))

    def _find(self, place: _Place, connection: socket.socket, member: int) -> None:
        """Record a running worker of an agent that has reconnected."""
        place.member, place.worker = member, Channel(connection, FROM_WORKER)
        connection.settimeout(None)
        handle = Handle(place.slot, member, place.worker)
        self._events.append(Event("worker found", place.slot, member, handle=handle))

    def _log(self, member: int) -> Path:
        return self._logs / f"worker{member}.log"
