# SPDX-License-Identifier: Apache-2.0
"""A joining worker observes, while the others wait for it, lose it, or lose another worker."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import join

from ddl_core import Endpoint
from ddl_core.errors import DdlError
from ddl_elastic.step.reform import Watch
from ddl_elastic.step.step import PlainArrays, RankGroup, Step
from ddl_elastic.step.transfer import Receiver
from ddl_elastic.step.watchdog import Watchdog
from ddl_elastic.worker.observer import Observer, Results

pytestmark = pytest.mark.pure

LIMIT = 60  # time limit in seconds for threads that must not hang


class Framework:
    """The framework of one small sum."""

    def result(self) -> list[np.ndarray]:
        return [np.zeros(4)]

    def ops(self) -> list[str]:
        return ["average"]


def make_groups(endpoints: list[Endpoint], limit: float = 0.0) -> list[RankGroup]:
    groups = []
    for comm in join(endpoints):
        group = RankGroup(comm, [0, 1, 2], (0, 1), Watch(Watchdog(limit)))
        group.observed_by(frozenset({2}), 0)
        group.sends_at = None
        groups.append(group)
    return groups


def evaluate(group: RankGroup) -> int:
    """A step that is not a training step. Return the size of the group afterwards."""
    step = Step(group, 0, PlainArrays([np.zeros(1)], "sum"))
    for worker in step.shares():
        step.add(worker, [np.zeros(1)])
    return group.comm.size


def beside(*functions: Callable[[], Any]) -> list[Any]:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda f=f: found.append(f()), daemon=True) for f in functions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    return found


def receive(group: RankGroup) -> None:
    results = Results(Framework())
    with contextlib.suppress(DdlError):
        Observer(group, 0, results, Receiver(), lambda number: None).receive()


def test_a_member_dies_while_the_others_wait_for_the_observer() -> None:
    endpoints = [Endpoint(secret="") for _ in range(3)]
    groups = make_groups(endpoints)
    waits = threading.Event()

    def leave() -> None:
        groups[1].comm.allreduce(np.array([0, 0, 0]), op="min")  # an evaluation
        waits.wait(LIMIT)
        groups[1].comm.close()

    threading.Thread(target=receive, args=(groups[2],), daemon=True).start()
    threading.Timer(0.3, waits.set).start()
    # The observer can no longer get the state, so it ends.
    assert 1 in beside(lambda: evaluate(groups[0]), leave)


def test_the_program_of_an_observer_fails_while_its_thread_is_in_a_sum() -> None:
    endpoints = [Endpoint(secret="") for _ in range(3)]
    groups = make_groups(endpoints)

    def member(rank: int) -> int:
        time.sleep(0.0 if rank else 0.5)  # rank 1 waits in the sum
        return evaluate(groups[rank])

    def observer() -> None:
        with contextlib.suppress(DdlError):
            for _ in Step(groups[2], 0, PlainArrays([np.zeros(1)], "sum")).shares():
                raise AssertionError("it has no share")

    def end() -> None:
        time.sleep(0.3)
        endpoints[2]._close()  # as when its process exits

    threading.Thread(target=observer, daemon=True).start()
    found = beside(lambda: member(0), lambda: member(1), end)
    assert sorted(found, key=str) == [2, 2, None]


def test_a_state_that_takes_longer_than_the_watchdog_waits() -> None:
    endpoints = [Endpoint(secret="") for _ in range(3)]
    groups = make_groups(endpoints, 0.2)
    hurry = threading.Event()
    for group in groups:
        for _ in range(3):
            group.watch.watchdog.begin_step()
        group.watch.watchdog.observe(group.comm)
        sending = threading.Thread(target=hurry.wait, args=(LIMIT,), daemon=True)
        sending.start()
        group.sender._thread = sending
    threading.Thread(target=evaluate, args=(groups[0],), daemon=True).start()
    threading.Thread(target=evaluate, args=(groups[1],), daemon=True).start()
    threading.Thread(target=receive, args=(groups[2],), daemon=True).start()
    comm = groups[2].comm
    time.sleep(2)
    assert not comm.error
    hurry.set()  # no message is on its way any more
    until = time.monotonic() + LIMIT
    while not comm.error and time.monotonic() < until:
        time.sleep(0.05)
    assert "hangs" in str(comm.error)
    for group in groups:
        group.watch.close()
