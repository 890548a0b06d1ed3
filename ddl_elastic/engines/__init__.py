# SPDX-License-Identifier: Apache-2.0
"""Engines, which start and stop the processes of a job. `Engine` is their interface.

`local` starts the processes on this machine, without a service or a configuration. `dialed` uses
agents that connect from any host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ddl_elastic.base.protocol import WorkerChannel


@dataclass(frozen=True)
class Slot:
    """The capacity for one worker on a host."""

    id: int
    host: str
    kind: str  # slots of one kind compute the same bits
    cores: int
    state: Literal["free", "used", "draining", "lost"] = "free"


@dataclass(frozen=True)
class AgentSpec:
    """The parameters of an agent that is to be started."""

    member: int  # the worker's number in the job
    threads: int  # the number of threads of the worker's framework


@dataclass(frozen=True)
class Program:
    """The program that workers on other hosts run. The file must exist on all hosts."""

    path: str
    arguments: list[str]
    folder: str  # the working directory
    preload: list[str]  # modules to import before forking; empty: frameworks in the program's text
    variables: dict[str, str] = field(default_factory=dict)  # environment variables to set


@dataclass(frozen=True)
class Handle:
    """An agent that was started."""

    slot: Slot
    member: int
    channel: WorkerChannel  # the connection to the worker


@dataclass(frozen=True)
class Event:
    """A change of a slot, or of the agent in it."""

    # "worker found": an agent has reconnected and reports a running worker, see `handle`
    kind: Literal["slot added", "slot lost", "slot draining", "agent ended", "worker found"]
    slot: Slot
    member: int = -1
    code: int = 0  # the worker's exit code, in subprocess's form: -9 for SIGKILL
    ordered: bool = False  # the worker exited because of `stop`
    cause: str = ""  # the reason, if the exit code does not show it
    # How the exit was detected: the agent reported it, its connection closed, or it is silent.
    evidence: Literal["told", "closed", "silent"] = "told"
    handle: Handle | None = None


class Engine(Protocol):
    """The interface of an engine. It starts agents in slots. Each agent runs one worker."""

    def slots(self) -> list[Slot]:
        """Return all slots, including used and lost ones."""

    def start(self, slot: Slot, spec: AgentSpec) -> Handle:
        """Start an agent in a free slot, without waiting for it."""

    def stop(self, handle: Handle, grace: float) -> None:
        """Send the worker SIGTERM, and kill it after `grace` seconds. A grace of 0 kills it now."""

    def events(self, timeout: float) -> list[Event]:
        """Return the events since the last call. Wait up to `timeout` seconds for the first."""

    def logs(self, handle: Handle, follow: bool) -> Iterator[bytes]:
        """Yield the worker's output from its start, without waiting. With `follow`, an empty chunk
        means that there is no new output yet, and the iterator ends when the worker has exited."""

    def want(self, slots: int) -> None:
        """Receive a hint that the job could use this number of slots."""

    def close(self) -> None:
        """Stop all agents and their workers."""
