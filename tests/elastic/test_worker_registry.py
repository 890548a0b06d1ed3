# SPDX-License-Identifier: Apache-2.0
"""A coordinator's handling of late messages."""

from typing import Any

import pytest

from ddl_elastic.base.protocol import GroupSwitched
from ddl_elastic.coordinator.worker_registry import Size, Worker, WorkerRegistry
from ddl_elastic.engines import Handle, Slot

pytestmark = pytest.mark.pure


def make_registry(workers: list[Worker]) -> WorkerRegistry:
    def ignore(*_: Any, **__: Any) -> None:
        """No other worker exists."""

    return WorkerRegistry(
        workers,
        Size(len(workers)),
        send=ignore,
        start=lambda: False,
        stop=ignore,
        epoch=lambda: 1,
        tell=ignore,
    )


def switched(plan: int, members: list[int]) -> GroupSwitched:
    return GroupSwitched(plan, plan, 0.0, members, [])


def test_a_late_member_tells_of_one_that_has_left() -> None:
    """Two members have reported that worker 2 joined, and that it left; its process has ended. A
    third member's late report about the older group changes nothing."""
    workers = [Worker(n, Handle(Slot(n, "a", "free", 1), n, None), iter(())) for n in range(3)]
    for worker in workers[:2]:
        worker.joined, worker.state = True, "running"
    registry, newest = make_registry(workers), workers[2]
    registry.handle_message(workers[0], switched(1, [0, 1, 2]))
    assert (newest.joined, newest.state) == (True, "running")
    newest.leaves = True
    registry.handle_message(workers[0], switched(2, [0, 1]))
    newest.state = "ended"
    registry.handle_message(workers[1], switched(1, [0, 1, 2]))
    assert (newest.joined, newest.state) == (False, "ended")


def test_late_join_report_does_not_revive_exited_worker() -> None:
    workers = [Worker(n, Handle(Slot(n, "a", "free", 1), n, None), iter(())) for n in range(2)]
    workers[0].joined, workers[1].state = True, "ended"
    make_registry(workers).handle_message(workers[0], switched(1, [0, 1]))
    assert workers[1].state == "ended"
