# SPDX-License-Identifier: Apache-2.0
"""The connection of a worker to the other workers, which the coordinator lists."""

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
from ddl_elastic.base.protocol import TO_WORKER, ConnectGroup, WarmUp, WorkerReady
from ddl_elastic.step.membership import Membership, leave_when_asked
from ddl_elastic.step.watchdog import OPERATION_LIMIT
from ddl_elastic.worker.reporter import Reporter

# Seconds in which all listed workers must connect. Then the live ones retry: a rank waits for
# higher ranks, and cannot see that one of them exited before it connected.
CONNECT_LIMIT, CONNECT_EACH = 10.0, 0.1

# The inbox and member number of this process, once it has joined.
_agent: tuple[Inbox, int] | None = None
_reporter = Reporter()


def is_worker() -> bool:
    """Return True if this process is a worker of `ddl elastic run`."""
    return _agent is not None or environment.has_agent()


def join() -> dict[str, Any]:
    """Return the comm of the job that started this process, the member numbers, the membership and
    the reporter, as keyword arguments for Loop. Raises JobOver."""
    global _agent, _reporter
    if found := environment.take_agent():
        channel = Channel(socket.socket(fileno=os.dup(found[0])), TO_WORKER)
        if threading.current_thread() is threading.main_thread():
            leave_when_asked()
        _agent, _reporter = (Inbox(channel), found[1]), Reporter(channel, environment.traces())
    if _agent is None:
        return {"comm": ddl_core.world() if ddl_core.is_initialized() else ddl_core.init()}
    return {**connect(*_agent), "reporter": _reporter}


def connect(inbox: Inbox, member: int, secret: str | None = None) -> dict[str, Any]:
    """Connect to all listed workers. Return the comm, the member numbers and the membership. If a
    worker exits during this time, the coordinator sends a new list. A worker that joins later
    begins with a comm of one rank. Raises JobOver."""
    endpoint = Endpoint(secret=secret)
    address = endpoint.address
    while True:
        inbox.channel.send(WorkerReady(address, os.getpid()))
        message = inbox.receive()
        is_new = isinstance(message, WarmUp)
        group = ConnectGroup([member], [address], 0) if is_new else message
        if not isinstance(group, ConnectGroup):
            raise JobOver("the job is over, or continues without this worker")
        try:
            comm = create(endpoint, member, group)
        except DdlError:
            continue
        addresses = dict(zip(group.members, group.addresses, strict=True))
        membership = Membership(inbox, member, endpoint, addresses, is_new)
        return {"comm": comm, "members": group.members, "membership": membership}


def create(endpoint: Endpoint, member: int, group: ConnectGroup) -> Comm:
    """Create the comm of a group's members. Raises DdlError."""
    limit = CONNECT_LIMIT + CONNECT_EACH * len(group.addresses)
    config = Config(timeout=limit, operation_timeout=OPERATION_LIMIT, epoch=group.epoch)
    return endpoint.connect(group.addresses, group.members.index(member), config)
