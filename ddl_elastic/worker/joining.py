# SPDX-License-Identifier: Apache-2.0
"""How a worker joins the others of its job: its coordinator tells it who they are."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import ddl_core
from ddl_core import Comm, Config, Endpoint
from ddl_core.errors import DdlError
from ddl_elastic.base import environment
from ddl_elastic.base.inbox import Inbox
from ddl_elastic.base.messages import Channel, JobOver
from ddl_elastic.step.membership import Membership, leave_when_asked
from ddl_elastic.step.watchdog import OPERATION_LIMIT
from ddl_elastic.worker.reporter import Reporter

# Seconds in which all who are told of each other connect. Then those who live try again: a rank
# waits for the higher ones, and does not see that one of these has ended before it came.
CONNECT_LIMIT, CONNECT_EACH = 10.0, 0.1

# Of this process, once it has joined.
_agent: tuple[Inbox, int] | None = None
_reporter = Reporter()


def is_worker() -> bool:
    """Whether this process is a worker of `ddl elastic run`."""
    return _agent is not None or environment.has_agent()


def join() -> dict[str, Any]:
    """The comm of the job that has started this process, with the members' numbers, the membership
    and the reporter, as Loop takes them. Raises JobOver."""
    global _agent, _reporter
    if found := environment.take_agent():
        channel = Channel(socket.socket(fileno=os.dup(found[0])))
        if threading.current_thread() is threading.main_thread():
            leave_when_asked()
        _agent, _reporter = (Inbox(channel), found[1]), Reporter(channel, environment.traces())
    if _agent is None:
        return {"comm": ddl_core.world() if ddl_core.is_initialized() else ddl_core.init()}
    return {**connect(*_agent), "reporter": _reporter}


def connect(inbox: Inbox, member: int, secret: str | None = None) -> dict[str, Any]:
    """The comm of all who are there, their members' numbers, and the membership. If one of them
    ends meanwhile, the others are told anew. A worker that comes later is alone at first. Raises
    JobOver."""
    endpoint = Endpoint(secret=secret)
    address = endpoint.address
    while True:
        inbox.channel.send("ready", address=address.hex(), pid=os.getpid())
        plan = inbox.receive()
        if plan.kind == "exit":
            raise JobOver("the job is over, or goes on without this worker")
        is_new = plan.kind == "warm"
        found = alone(address, member) if is_new else plan.fields
        try:
            comm = create(endpoint, member, found)
        except DdlError:
            continue
        addresses = dict(zip(found["members"], found["addresses"], strict=True))
        membership = Membership(inbox, member, endpoint, addresses, is_new)
        return {"comm": comm, "members": found["members"], "membership": membership}


def alone(address: bytes, member: int) -> dict[str, Any]:
    return {"members": [member], "addresses": [address.hex()], "attempt": 0}


def create(endpoint: Endpoint, member: int, plan: dict[str, Any]) -> Comm:
    """Raises DdlError."""
    addresses = [bytes.fromhex(each) for each in plan["addresses"]]
    limit = CONNECT_LIMIT + CONNECT_EACH * len(addresses)
    config = Config(timeout=limit, operation_timeout=OPERATION_LIMIT, epoch=plan["attempt"])
    return endpoint.connect(addresses, plan["members"].index(member), config)
