# SPDX-License-Identifier: Apache-2.0
"""Plans that follow each other quickly, on a member."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import pytest

import ddl_core
from ddl_core.errors import TimedOut
from ddl_elastic.base.inbox import Inbox
from ddl_elastic.base.messages import Channel, JobOver
from ddl_elastic.base.protocol import FROM_WORKER, TO_WORKER, GroupPlan
from ddl_elastic.step.membership import Membership
from ddl_elastic.step.reform import RankProgress
from ddl_elastic.worker import change

pytestmark = pytest.mark.pure


@pytest.fixture
def leaver() -> Iterator[Membership]:
    ends = socket.socketpair()
    near, far = Channel(ends[0], FROM_WORKER), Channel(ends[1], TO_WORKER)
    inbox = Inbox(far)
    yield Membership(inbox, 0, Mock(), {})
    near.close()
    with pytest.raises(JobOver):
        inbox.receive()
    far.close()


def plan(number: int, member: int = 1) -> GroupPlan:
    return GroupPlan(number, [member], [], {member: b""}, [])


def test_rehearsal_ends_when_a_newer_plan_comes(leaver: Membership) -> None:
    """A joining worker may hang, so that no rank can end the rehearsal."""
    closed, ended = threading.Event(), threading.Event()
    leaver._endpoint.connect.return_value.close = closed.set  # type: ignore[attr-defined]

    def rehearse(*_: Any) -> None:
        begun.set()
        closed.wait()
        ended.set()

    begun = threading.Event()
    leaver.begin(rehearse)
    leaver._receive(plan(7, 0))
    begun.wait()
    leaver._receive(plan(8))
    assert ended.wait(60)


RANKS = [RankProgress(0, 0, False, ()), RankProgress(1, 0, False, (), whole=False)]


@pytest.fixture
def comms() -> Iterator[list[ddl_core.Comm]]:
    """The ranks' ends of a comm, in which operations that take more than 2 s kill the comm."""
    config = ddl_core.Config(operation_timeout=2)
    with ExitStack() as stack:
        ends = [stack.enter_context(ddl_core.Endpoint(secret="")) for _ in RANKS]
        addresses = [each.address for each in ends]
        with ThreadPoolExecutor(2) as pool:
            found = [*pool.map(lambda rank: ends[rank].connect(addresses, rank, config), range(2))]
        for each in found:
            stack.callback(change.close, each)
        yield found


def test_joining_worker_that_hangs_ends_the_rehearsal(
    comms: list[ddl_core.Comm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "ARRIVAL_LIMIT", 0.01)
    with pytest.raises(TimedOut):
        change._share_position(comms[1], RANKS, dict)


@pytest.mark.parametrize("saves", [False, True])
def test_rehearsal_ends_before_the_limit_of_operations(
    comms: list[ddl_core.Comm], monkeypatch: pytest.MonkeyPatch, saves: bool
) -> None:
    """The joining worker hangs before it takes part. Without a watchdog, the limit of operations is
    30 days."""
    for limit in ("ARRIVAL_LIMIT", "WARM_UP_LIMIT"):
        monkeypatch.setattr(change, limit, 0.01)
    group = Mock(saver=Mock(token=3) if saves else None)
    with pytest.raises(TimedOut):
        change.rehearse(Mock(), group, comms[0], RANKS)
    assert comms[0].error is None


def test_a_plan_that_comes_while_an_older_one_is_taken(
    leaver: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = leaver._receive

    def take_later(message: GroupPlan) -> None:
        take(plan(9))
        take(message)

    take(plan(7))
    assert leaver.word() == 7
    take(plan(8))
    monkeypatch.setattr(leaver, "_receive", take_later)
    leaver.voted(0, 7)
    assert leaver.word() == 9
