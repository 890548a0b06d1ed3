"""How a worker joins the others of its job: its coordinator tells it who they are."""

from __future__ import annotations

import os
import socket
from typing import Any

import ddl_core
from ddl_core import Comm, Config, Endpoint
from ddl_core.errors import DdlError
from ddl_elastic import environment
from ddl_elastic.messages import Channel
from ddl_elastic.reporter import Reporter

CONNECT_LIMIT = 60.0  # seconds

# Of this process, once it has joined.
_agent: tuple[Channel, int] | None = None
_reporter = Reporter()


def is_worker() -> bool:
    """Whether this process is a worker of `ddl elastic run`."""
    return _agent is not None or environment.has_agent()


def join() -> dict[str, Any]:
    """The comm of the job that has started this process, with the members' numbers and the
    reporter, as Loop takes them. Raises EOFError if the job is over."""
    global _agent, _reporter
    if found := environment.take_agent():
        channel = Channel(socket.socket(fileno=os.dup(found[0])))
        _agent, _reporter = (channel, found[1]), Reporter(channel, environment.traces())
    if _agent is None:
        return {"comm": ddl_core.init()}
    comm, members = connect(*_agent)
    return {"comm": comm, "members": members, "reporter": _reporter}


def connect(channel: Channel, member: int, secret: str | None = None) -> tuple[Comm, list[int]]:
    """The comm of all who are there, and their members' numbers. If one of them ends meanwhile, the
    others are told anew. Raises EOFError if the job is over."""
    endpoint = Endpoint(secret=secret)
    while True:
        channel.send("ready", address=endpoint.address.hex(), pid=os.getpid())
        plan = channel.receive()
        if plan.kind == "exit":
            raise EOFError("the job is over, or has begun without this worker")
        addresses = [bytes.fromhex(each) for each in plan.fields["addresses"]]
        config = Config(timeout=CONNECT_LIMIT, epoch=plan.fields["attempt"])
        members: list[int] = plan.fields["members"]
        try:
            rank = members.index(member)
            return endpoint.connect(addresses, rank, config, owned=True), members
        except DdlError:
            continue
