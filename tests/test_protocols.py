# SPDX-License-Identifier: Apache-2.0
"""Each protocol rejects unknown and malformed messages, in one function."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from msgspec.msgpack import Decoder

from ddl_elastic.base import protocol as workers
from ddl_elastic.base.messages import Message, decode, encode
from ddl_elastic.engines import protocol as agents
from ddl_launch.rank import frames
from ddl_scheduler.runner import protocol as runs

pytestmark = pytest.mark.pure

# A decoder, one of its messages, and a field of that message with a wrong value.
TABLE: dict[str, tuple[Decoder[Any], Message, dict[str, object]]] = {
    "worker to coordinator": (
        workers.FROM_WORKER,
        workers.StepCommitted(1, 0.5, 1, 0.1, 0),
        {"step": True},
    ),
    "coordinator to worker": (
        workers.TO_WORKER,
        workers.ConnectGroup([0], [b"a"], 1),
        {"members": [-1]},
    ),
    "scale to job": (workers.SCALE_REQUEST, workers.ScaleRequest("secret", 2), {"workers": "2"}),
    "job to scale": (workers.SCALE_REPLY, workers.ScaleReply(""), {"error": None}),
    "greeting": (agents.GREETING, agents.AgentGreeting("a", "h", "cpu", 1, 1), {"slots": 0}),
    "answer": (agents.GREETING_ANSWER, agents.PoolSettings(), {"message": 1}),
    "job to agent": (agents.TO_AGENT, agents.StopWorker(0, 1.0), {"grace": "1"}),
    "agent to job": (agents.FROM_AGENT, agents.WorkerOutput(0, b"text"), {"output": 1}),
    "service to agent": (agents.TO_POOL_AGENT, agents.ServeRun("1-a", 80), {"port": "80"}),
    "agent to service": (agents.FROM_POOL_AGENT, agents.RunsServed(["1-a"]), {"runs": "1-a"}),
    "engine to slot": (agents.STOP_PROCESS, agents.StopProcess(1.0), {"grace": None}),
    "slot to engine": (agents.PROCESS_EXITED, agents.ProcessExited(0, False), {"ordered": 0}),
    "service to starter": (runs.RUN_SPEC, runs.RunSpec("db", 1, {}, [], []), {"spec": []}),
    "service to run": (runs.TO_RUN, runs.GrantSlots(1, ["a/0"]), {"slots": [1]}),
    "run to service": (runs.FROM_RUN, runs.RunListens("1-a", 80, 0, []), {"held": None}),
}


@pytest.mark.parametrize("channel", TABLE)
def test_unknown_and_malformed_messages_are_refused(channel: str) -> None:
    receives, message, wrong = TABLE[channel]
    data = encode(message)
    assert decode(receives, data) == message
    fields = Decoder().decode(data)
    malformed = [
        {**fields, "message": "Unknown"},
        {**fields, "message": ["ExitWorker"]},
        {**fields, "more": 1},
        {**fields, **wrong},
        {name: value for name, value in fields.items() if name not in wrong},
        [],
        None,
    ]
    for each in (*map(encode, malformed), b"", data[:-1], data + b"x", b"\xc1", b"\x91" * 20_000):
        with pytest.raises(ValueError, match="an invalid message: "):
            decode(receives, each)


FRAMES: dict[str, tuple[Mapping[bytes, type], bytes, Any, dict[str, object]]] = {
    "rank's greeting": (
        frames.GREETINGS,
        frames.HELLO,
        frames.RankHello(0, "h", "", {}, [], "0", 1, "1"),
        {"rank": True},
    ),
    "ddlrun's answer": (
        frames.GREETINGS,
        frames.GO,
        frames.StartProgram({}, False),
        {"input": 0},
    ),
    "end of a program": (
        frames.FROM_RANK,
        frames.ENDED,
        frames.ProgramEnded(1, 0, False),
        {"pid": "1"},
    ),
    "input": (frames.FROM_RANK, frames.TAKEN, frames.InputTaken(1), {"size": None}),
}


@pytest.mark.parametrize("name", FRAMES)
def test_unknown_and_malformed_frames_are_refused(name: str) -> None:
    types, kind, message, wrong = FRAMES[name]
    data = frames.encode(message)
    assert frames.decode(types, kind, data) == message
    values = json.loads(data)
    malformed = ({**values, **wrong}, {**values, "more": 1}, {}, [], None)
    texts = [json.dumps(each).encode() for each in malformed]
    for each in (*texts, b"", data[:-1], b"\xff", b"[" * 20_000):
        with pytest.raises(ValueError, match="an invalid message: "):
            frames.decode(types, kind, each)


@pytest.mark.parametrize("types", [frames.GREETINGS, frames.FROM_RANK, frames.TO_RANK])
def test_frame_of_unknown_kind_is_refused(types: Mapping[bytes, type]) -> None:
    with pytest.raises(ValueError, match="an invalid message: a frame of kind"):
        frames.decode(types, b"?", b"{}")


def test_table_has_every_decoder() -> None:
    decoders = [
        value
        for module in (workers, agents, runs)
        for name, value in vars(module).items()
        if isinstance(value, Decoder) and not name.startswith("_")
    ]
    assert {*map(id, decoders)} == {id(receives) for receives, *_ in TABLE.values()}


def test_message_types_belong_to_a_channel() -> None:
    def types(of: Any) -> set[type]:
        return {found for each in get_args(of) or [of] for found in (get_args(each) or [each])}

    known = set[type]().union(*(types(receives.type) for receives, *_ in TABLE.values()))
    assert known >= {*Message.__subclasses__()}
