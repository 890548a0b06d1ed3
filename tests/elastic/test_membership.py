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


def test_joining_worker_that_hangs_ends_the_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "ARRIVAL_LIMIT", 0.01)
    ranks = [RankProgress(0, 0, False, (), whole=False), RankProgress(1, 0, False, ())]
    with ExitStack() as stack:
        ends = [stack.enter_context(ddl_core.Endpoint(secret="")) for _ in ranks]
        addresses = [each.address for each in ends]
        with ThreadPoolExecutor(2) as pool:
            comms = [*pool.map(lambda rank: ends[rank].connect(addresses, rank), range(2))]
        with comms[0], comms[1], pytest.raises(TimedOut):
            change._share_position(comms[0], ranks, dict)


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
