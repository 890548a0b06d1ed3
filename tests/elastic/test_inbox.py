# SPDX-License-Identifier: Apache-2.0
"""Plans that arrive before the worker takes them."""

import socket
from collections.abc import Iterator
from queue import Queue

import pytest

from ddl_elastic.base.inbox import Inbox
from ddl_elastic.base.messages import Channel, JobOver
from ddl_elastic.base.protocol import (
    FROM_WORKER,
    TO_WORKER,
    ConnectGroup,
    ExitWorker,
    GroupPlan,
    WorkerChannel,
)

pytestmark = pytest.mark.pure

CONNECT = ConnectGroup([0], [b"0"], 1)


def plan(number: int) -> GroupPlan:
    return GroupPlan(number, [0], [], {}, [])


@pytest.fixture
def ends() -> Iterator[tuple[WorkerChannel, Inbox]]:
    pair = socket.socketpair()
    near, far = Channel(pair[0], FROM_WORKER), Channel(pair[1], TO_WORKER)
    inbox = Inbox(far)
    yield near, inbox
    near.close()
    with pytest.raises(JobOver):
        inbox.receive()
    far.close()


def plans_of(inbox: Inbox) -> Queue[GroupPlan]:
    plans: Queue[GroupPlan] = Queue()
    inbox.take_plans(plans.put)
    return plans


def test_a_plan_waits_until_plans_are_taken(ends: tuple[WorkerChannel, Inbox]) -> None:
    job, inbox = ends
    for message in (CONNECT, plan(7), ExitWorker()):
        job.send(message)
    assert [inbox.receive(), inbox.receive()] == [CONNECT, ExitWorker()]
    plans = plans_of(inbox)
    assert plans.get(timeout=60) == plan(7)
    job.send(plan(8))
    assert plans.get(timeout=60) == plan(8)


def test_a_plan_for_an_earlier_group_is_void(ends: tuple[WorkerChannel, Inbox]) -> None:
    job, inbox = ends
    job.send(plan(7))
    job.send(CONNECT)
    assert inbox.receive() == CONNECT
    plans = plans_of(inbox)
    job.close()
    with pytest.raises(JobOver):
        inbox.receive()
    assert plans.empty()
