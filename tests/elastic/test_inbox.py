# SPDX-License-Identifier: Apache-2.0
"""Plans that come before the worker takes them."""

import socket
from collections.abc import Iterator
from queue import Queue

import pytest

from ddl_elastic.base.inbox import Inbox
from ddl_elastic.base.messages import Channel, JobOver, Message

pytestmark = pytest.mark.pure

CONNECT = {"members": [0], "addresses": ["00"], "attempt": 1}
PLAN = {"members": [0], "newcomers": [], "addresses": {}, "speeds": []}


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Inbox]]:
    near, far = map(Channel, socket.socketpair())
    inbox = Inbox(far)
    yield near, inbox
    near.close()
    with pytest.raises(JobOver):
        inbox.receive()
    far.close()


def plans_of(inbox: Inbox) -> Queue[Message]:
    plans: Queue[Message] = Queue()
    inbox.take_plans(plans.put)
    return plans


def test_a_plan_waits_until_plans_are_taken(ends: tuple[Channel, Inbox]) -> None:
    job, inbox = ends
    job.send("connect", **CONNECT)
    job.send("plan", plan=7, **PLAN)
    job.send("exit")
    assert [inbox.receive().kind, inbox.receive().kind] == ["connect", "exit"]
    plans = plans_of(inbox)
    assert plans.get(timeout=60).fields["plan"] == 7
    job.send("plan", plan=8, **PLAN)
    assert plans.get(timeout=60).fields["plan"] == 8


def test_a_plan_for_an_earlier_group_is_void(ends: tuple[Channel, Inbox]) -> None:
    job, inbox = ends
    job.send("plan", plan=7, **PLAN)
    job.send("connect", **CONNECT)
    assert inbox.receive().kind == "connect"
    plans = plans_of(inbox)
    job.close()
    with pytest.raises(JobOver):
        inbox.receive()
    assert plans.empty()
