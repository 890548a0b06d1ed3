# SPDX-License-Identifier: Apache-2.0
"""The protocols of agents: their greetings, and their messages to and from jobs, `ddl serve` and
the local engine.

A greeting and its answer are in an envelope that names the sender's version. Its format stays the
same in all versions, so that peers of different versions can refuse each other.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta
from msgspec.msgpack import Decoder

import ddl_core
from ddl_elastic.base.messages import Message, decode, encode
from ddl_elastic.base.protocol import Member
from ddl_elastic.engines import Program

VERSION = 1  # of the messages in this module and of ddl_elastic.base.protocol
SLOTS = 4096  # maximum number of slots of an agent

T = TypeVar("T")


class VersionMismatch(ValueError):
    """The error for a peer of another version. The message names both versions."""


class _Envelope(msgspec.Struct):
    version: int
    release: str  # of libddl
    nonce: bytes
    body: msgspec.Raw


_ENVELOPE = Decoder(_Envelope)


def seal(message: Message, nonce: bytes = b"") -> bytes:
    """Return the bytes of a greeting or an answer. A greeting needs a nonce for the answer."""
    return encode(_Envelope(VERSION, ddl_core.version(), nonce, msgspec.Raw(encode(message))))


def open_nonce(data: bytes) -> bytes:
    """Return the nonce of a greeting of any version. Raises ValueError if the data are
    malformed."""
    return decode(_ENVELOPE, data).nonce


def open_sealed(receives: Decoder[T], data: bytes, peer: str) -> T:
    """Return the message that `seal` packed. Raises VersionMismatch if the peer has another
    protocol version, and ValueError if the data are malformed."""
    envelope = decode(_ENVELOPE, data)
    if envelope.version != VERSION:
        raise VersionMismatch(
            f"{peer} has version {envelope.version} of the agents' protocol (libddl"
            f" {envelope.release:.20}), and this process version {VERSION} (libddl"
            f" {ddl_core.version()}): install one version of libddl on all hosts"
        )
    return decode(receives, bytes(envelope.body))


# ---- greetings ----


class AgentGreeting(Message):
    agent: str
    host: str
    kind: str
    cores: int
    slots: Annotated[int, Meta(ge=1, le=SLOTS)]


class SlotGreeting(Message):
    """The greeting on a slot's connection."""

    agent: str
    slot: int
    member: int  # the worker that runs in the slot, or -1


class JobSettings(Message):
    """A job's answer to the greeting of an agent."""

    job: str
    program: Program


class PoolSettings(Message):
    """The answer of `ddl serve` to the greeting of an agent."""


Greeting: TypeAlias = AgentGreeting | SlotGreeting
GREETING: Decoder[Greeting] = Decoder(Greeting)
GreetingAnswer: TypeAlias = JobSettings | PoolSettings
GREETING_ANSWER: Decoder[GreetingAnswer] = Decoder(GreetingAnswer)


# ---- between the engine for remote agents and these agents ----


class StartWorker(Message):
    slot: int
    member: Member
    threads: int


class StopWorker(Message):
    slot: int
    grace: float


class EndpointEnded(Message):
    """A report of an exited process, forwarded to all other agents."""

    endpoint: bytes


class JobEnded(Message):
    """The job has ended; the agents exit."""


class WorkerExited(Message):
    slot: int
    code: int
    ordered: bool


class WorkerOutput(Message):
    slot: int
    output: bytes


class AgentFailed(Message):
    error: str


ToAgent: TypeAlias = StartWorker | StopWorker | EndpointEnded | JobEnded
TO_AGENT: Decoder[ToAgent] = Decoder(ToAgent)
FromAgent: TypeAlias = WorkerExited | WorkerOutput | EndpointEnded | AgentFailed
FROM_AGENT: Decoder[FromAgent] = Decoder(FromAgent)


# ---- between `ddl serve` and its agents ----


class ServeRun(Message):
    """Start an agent for this run."""

    run: str
    port: int


class DropRun(Message):
    run: str


class RunsServed(Message):
    runs: list[str]  # the runs that have processes on the agent's host


class RunUnserved(Message):
    run: str
    why: str


class AgentLeaves(Message):
    """The agent was asked to leave."""


ToPoolAgent: TypeAlias = ServeRun | DropRun
TO_POOL_AGENT: Decoder[ToPoolAgent] = Decoder(ToPoolAgent)
FromPoolAgent: TypeAlias = RunsServed | RunUnserved | AgentLeaves
FROM_POOL_AGENT: Decoder[FromPoolAgent] = Decoder(FromPoolAgent)


# ---- between the local engine and the agent process of a slot ----


class StopProcess(Message):
    grace: float


class ProcessExited(Message):
    code: int
    ordered: bool


STOP_PROCESS, PROCESS_EXITED = Decoder(StopProcess), Decoder(ProcessExited)
