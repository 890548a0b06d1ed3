# SPDX-License-Identifier: Apache-2.0
"""Where the processes of a job run: what each engine offers, see `Engine`.

`local` starts them on this machine and needs no service and no configuration. `dialed` takes agents
that dial in from any host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ddl_elastic.base.messages import Channel


@dataclass(frozen=True)
class Slot:
    """One place for one worker."""

    id: int
    host: str
    kind: str  # slots of one kind compute the same bits
    cores: int
    state: Literal["free", "used", "draining", "lost"] = "free"


@dataclass(frozen=True)
class AgentSpec:
    """What an agent is started with."""

    member: int  # its worker's number in the job
    threads: int  # of its worker's framework


@dataclass(frozen=True)
class Program:
    """What the workers of agents on other hosts run; it is there on all of them."""

    path: str
    arguments: list[str]
    folder: str  # where it runs
    preload: list[str]  # modules that are imported before; none: installed frameworks
    variables: dict[str, str] = field(default_factory=dict)  # of the environment


@dataclass(frozen=True)
class Handle:
    """An agent that was started."""

    slot: Slot
    member: int
    channel: Channel  # to its worker


@dataclass(frozen=True)
class Event:
    """Something has happened to a slot, or to the agent in it."""

    # "worker found": an agent has come back with it, on the handle
    kind: Literal["slot added", "slot lost", "slot draining", "agent ended", "worker found"]
    slot: Slot
    member: int = -1
    code: int = 0  # of the worker, as subprocess has it: -9 for SIGKILL
    ordered: bool = False  # `stop` has ended it
    cause: str = ""  # where the code does not tell it
    # How it is known: its agent has told; or the agent's connection has ended, or does not answer.
    evidence: Literal["told", "closed", "silent"] = "told"
    handle: Handle | None = None


class Engine(Protocol):
    """Starts agents in slots. An agent starts one worker, watches it, and ends it when told to."""

    def slots(self) -> list[Slot]:
        """All there are."""

    def start(self, slot: Slot, spec: AgentSpec) -> Handle:
        """Start an agent in a free slot. Returns at once."""

    def stop(self, handle: Handle, grace: float) -> None:
        """Ask the worker to end (SIGTERM), and kill it after `grace` seconds; 0 kills it now."""

    def events(self, timeout: float) -> list[Event]:
        """What has happened since the last call; waits for something, up to `timeout` seconds."""

    def logs(self, handle: Handle, follow: bool) -> Iterator[bytes]:
        """What the worker has written, from the start. With `follow` it ends with the worker, and
        an empty chunk says that there is no more yet. Does not wait."""

    def want(self, slots: int) -> None:
        """A hint of how many slots would be of use."""

    def close(self) -> None:
        """End all agents and their workers."""
