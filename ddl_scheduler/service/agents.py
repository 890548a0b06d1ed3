# SPDX-License-Identifier: Apache-2.0
"""The agents that are connected to `ddl serve`, whose slots the jobs share.

The service asks an agent to serve certain runs of jobs. For each run, the agent has a process that
connects to the run as an agent of that job alone, see pool_agent.py. So the workers depend on their
run and on their agent, but not on the service.

An agent whose connection was lost may connect again. Its slots stay reserved for a short time. The
same holds for the slots that the store knows when the service starts.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ddl_elastic.base.messages import Channel
from ddl_elastic.engines import protocol
from ddl_elastic.engines.agent_listener import AgentListener
from ddl_launch.rank import frames
from ddl_scheduler.planning.jobs import PolicySlot

REDIAL_LIMIT = 3.0  # seconds that an agent has to connect again
RETURN_LIMIT = 15.0  # seconds that agents have to connect after the service has started


@dataclass(eq=False)
class _PooledAgent:
    connection: socket.socket
    channel: Channel[protocol.FromPoolAgent]
    slots: list[PolicySlot]
    # Runs that have processes on the agent, by its last report.
    runs: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)  # runs that the agent was asked to serve
    leaves: bool = False


class AgentPool:
    """The agents of one service.

    token   the secret with which agents authenticate
    memory  bytes for each slot; 0 means unknown
    known   names of slots of agents that were connected to an earlier service
    show    called with a line of text for each event
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        memory: int = 0,
        known: Iterable[str] = (),
        show: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._memory, self._show = memory, show
        self._dial_in = AgentListener(address, token, self._admit, show)
        self._agents: dict[str, _PooledAgent] = {}
        # By agent: its slots, and the time until which they are kept.
        self._away: dict[str, tuple[list[PolicySlot], float]] = {}
        for name in known:
            agent = name.rpartition("/")[0]
            slots, _ = self._away.setdefault(agent, ([], time.monotonic() + RETURN_LIMIT))
            slots.append(PolicySlot(name, agent.rpartition("-")[0], memory=memory))
        self._look_at = 0.0

    @property
    def port(self) -> int:
        return self._dial_in.port

    def slots(self) -> list[PolicySlot]:
        """Return the slots of all agents that are not about to leave, including agents that may
        still reconnect."""
        here = [agent.slots for agent in self._agents.values() if not agent.leaves]
        away = [slots for slots, _ in self._away.values()]
        return [slot for slots in (*here, *away) for slot in slots]

    def close(self) -> None:
        """Close the connections. Agents keep running and wait for the next service."""
        self._dial_in.close()
        for agent in self._agents.values():
            agent.channel.close()

    # ---- messages from agents ----

    @property
    def connections(self) -> list[Any]:
        """The connections to poll."""
        return [*self._dial_in.connections, *(agent.channel for agent in self._agents.values())]

    def hear(self, one: Any) -> None:
        """Handle the input on one of the connections."""
        if self._dial_in.hear(one):
            return
        for name, agent in list(self._agents.items()):
            if agent.channel is one:
                self._hear(name, agent)

    def look(self) -> None:
        """Remove agents that are silent or did not reconnect in time. Called periodically."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + frames.TICK
        self._dial_in.look()
        for name, agent in list(self._agents.items()):
            if frames.is_silent(agent.connection):
                self._lose(name, "its host does not answer")
        for name, (_, until) in list(self._away.items()):
            if now > until:
                del self._away[name]
                self._show(f"agent {name} did not reconnect in time; its slots are removed")

    def _hear(self, name: str, agent: _PooledAgent) -> None:
        try:
            for message in agent.channel.poll():
                self._take(name, agent, message)
        except EOFError as error:
            self._lose(name, str(error))
        except ValueError as error:
            self._lose(name, f"it sent {error}")

    def _take(self, name: str, agent: _PooledAgent, message: protocol.FromPoolAgent) -> None:
        match message:
            case protocol.RunsServed():
                ended = agent.runs.difference(message.runs)
                agent.asked -= ended  # so that the service may ask for them again
                agent.runs = {*message.runs}
            case protocol.RunUnserved():
                agent.asked.discard(message.run)
                self._show(f"agent {name}: {message.why}")
            case protocol.AgentLeaves():
                agent.leaves = True
                self._show(f"agent {name} was asked to end and is leaving")

    def _admit(self, connection: socket.socket, greeting: protocol.Greeting, nonce: bytes) -> None:
        name = greeting.agent
        if "/" in name or not isinstance(greeting, protocol.AgentGreeting):
            raise ValueError(f"a greeting of an agent named {name!r}: {greeting}")
        if old := self._agents.pop(name, None):
            old.channel.close()
        self._away.pop(name, None)
        slots = [
            PolicySlot(f"{name}/{number}", greeting.host, memory=self._memory)
            for number in range(greeting.slots)
        ]
        self._dial_in.answer(connection, nonce, protocol.PoolSettings())
        connection.settimeout(None)
        channel = Channel(connection, protocol.FROM_POOL_AGENT)
        self._agents[name] = _PooledAgent(connection, channel, slots)
        self._show(f"agent {name} has connected with {len(slots)} slots")

    def _lose(self, name: str, why: str) -> None:
        agent = self._agents.pop(name)
        agent.channel.close()
        if not agent.leaves:
            self._away[name] = (agent.slots, time.monotonic() + REDIAL_LIMIT)
        self._show(f"agent {name} is lost: {why}")

    # ---- requests to agents ----

    def serve(self, run: str, port: int, slots: Collection[str]) -> None:
        """Ask the agents of these slots to connect to the run."""
        for name in {slot.rpartition("/")[0] for slot in slots}:
            agent = self._agents.get(name)
            if agent and run not in agent.asked:
                agent.asked.add(run)
                self._send(agent, protocol.ServeRun(run, port))

    def drop_others(self, runs: Mapping[str, Collection[str]]) -> None:
        """Ask agents to drop all runs but these. `runs` maps each run to the slots that it
        holds."""
        for name, agent in self._agents.items():
            for run in agent.runs | agent.asked:
                held = [slot for slot in runs.get(run, ()) if slot.rpartition("/")[0] == name]
                if run not in runs or (agent.leaves and not held):
                    agent.asked.discard(run)
                    self._send(agent, protocol.DropRun(run))

    def is_stale(self, slot: str, runs: Collection[str]) -> bool:
        """Return True if the slot's agent still has processes of runs other than these."""
        agent = self._agents.get(slot.rpartition("/")[0])
        return agent is not None and not agent.runs <= {*runs}

    def _send(self, agent: _PooledAgent, message: protocol.ToPoolAgent) -> None:
        with suppress(OSError):  # the next poll removes the agent
            agent.channel.send(message)
