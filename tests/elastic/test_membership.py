# SPDX-License-Identifier: Apache-2.0
"""Plans that follow each other quickly, on a member."""

import socket
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from ddl_elastic.base.inbox import Inbox
from ddl_elastic.base.messages import Channel, JobOver
from ddl_elastic.base.protocol import FROM_WORKER, TO_WORKER, GroupPlan
from ddl_elastic.step.membership import Membership

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


def plan(number: int) -> GroupPlan:
    return GroupPlan(number, [1], [], {}, [])


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
