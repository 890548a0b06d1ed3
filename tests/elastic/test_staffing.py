# SPDX-License-Identifier: Apache-2.0
"""The staff's reports of workers that get an error, are not replaced, or have no share."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from ddl_elastic.base.messages import Message
from ddl_elastic.base.protocol import (
    Fingerprint,
    GroupPlan,
    GroupSwitched,
    PlanCancelled,
    PositionReached,
    ReferenceBits,
    WarmedUp,
    WorkerRefused,
)
from ddl_elastic.coordinator.worker_registry import Size, Worker, WorkerRegistry
from ddl_elastic.engines import Handle, Slot

pytestmark = pytest.mark.pure

FIRST = Fingerprint(0, "a", "s", "g", {}, job={"len(data)": 150})
OTHERS = {
    "its data": (replace(FIRST, member=1, job={"len(data)": 151}), "len(data) is 151, and 150 on"),
    "its state": (replace(FIRST, member=1, state="t"), "start from different states"),
    "its bits": (replace(FIRST, member=1, share="h"), "it computes other bits than rank 0"),
}


def make_worker(member: int) -> Worker:
    handle = Handle(Slot(member, "a", "", 1, "used"), member, None)  # type: ignore[arg-type]
    return Worker(member, handle, iter(()))


class Job:
    """A job of two workers, as its staff sees it. The first worker trains."""

    def __init__(self, **size: Any) -> None:
        self.sent: list[tuple[int, type[Message]]] = []
        self.plans: dict[int, GroupPlan] = {}  # by member
        self.told: list[tuple[str, Worker | None, str]] = []
        self.stopped: list[Worker] = []
        self.has_place = False
        self.workers = [make_worker(member) for member in range(2)]
        self.registry = WorkerRegistry(
            self.workers,
            Size(2, **size),
            send=self.send,
            start=self.start,
            stop=self.stop,
            epoch=lambda: 1,
            tell=lambda kind, worker, text, **_: self.told.append((kind, worker, text)),
        )
        self.registry.connected()
        self.workers[0].state, self.workers[0].joined = "running", True

    def send(self, to: Collection[Worker], message: Message) -> None:
        self.sent += [(each.member, type(message)) for each in to]
        if isinstance(message, GroupPlan):
            self.plans |= {each.member: message for each in to}

    def stop(self, worker: Worker, cause: str) -> None:
        worker.cause = cause
        self.stopped.append(worker)

    def start(self) -> bool:
        if self.has_place:
            self.workers.append(make_worker(len(self.workers)))
        return self.has_place

    def lose(self) -> None:
        self.workers[1].joined, self.workers[1].state = True, "ended"
        self.registry.ended(self.workers[1])


def test_no_place_for_another_worker() -> None:
    job = Job()
    job.lose()
    for _ in range(3):
        job.registry.update(3)
    text = "rank 1 on a is not replaced yet: no slot is free"
    assert job.told == [("not replaced", job.workers[1], text)]
    job.has_place = True
    job.registry.update(3)
    assert len(job.workers) == 3


def test_a_number_for_which_no_slot_is_free_is_reported_once() -> None:
    job = Job(most=4)
    job.workers[1].state, job.workers[1].joined = "running", True
    job.registry.resize(4)
    for _ in range(3):
        job.registry.update(3)
    text = "4 workers were requested, but no slot is free for 2 of them; they start when slots are"
    assert job.told == [("waits", None, f"{text} free")]
    job.has_place = True
    job.registry.update(3)
    assert len(job.workers) == 4


def test_a_death_in_a_program_that_trains_again() -> None:
    job = Job()
    job.registry.begun(16)
    job.registry.connected()
    job.lose()
    job.registry.update(3)
    ((_, _, text),) = job.told
    assert text.endswith("is not replaced: workers join during a program's first job only")


def test_newcomers_that_have_died() -> None:
    job = Job()
    job.has_place = True
    for _ in range(3):
        job.registry.update(3)
        newcomer = next(each for each in job.workers if each.state == "starting")
        newcomer.state = "ended"
        job.registry.ended(newcomer)
    job.workers[1].state = "ended"
    job.lose()
    job.registry.update(3)
    kinds = [kind for kind, _, _ in job.told]
    assert kinds == ["gave up", "not replaced"]
    assert job.told[1][2].endswith(
        "is not replaced: too many workers have exited before they joined"
    )


def test_a_plan_brings_each_the_addresses_that_it_does_not_know() -> None:
    job = Job()
    for worker, address in zip(job.workers, (b"a", b"b"), strict=True):
        worker.address = address
    job.workers[1].state = "admitted"
    job.registry.update(3)
    assert {member: plan.addresses for member, plan in job.plans.items()} == {
        0: {1: b"b"},
        1: {0: b"a", 1: b"b"},
    }


def test_who_is_replaced_or_not_to_be() -> None:
    for size, has_place in (({}, True), ({"replace": False}, False)):
        job = Job(**size)
        job.has_place = has_place
        job.lose()
        job.registry.update(3)
        assert job.told == []


def test_workers_without_a_share() -> None:
    job = Job(most=4)
    for logical in (2, 1, 1):
        job.registry.begun(logical)
    job.registry.resize(4)
    assert [text for _, _, text in job.told] == [
        "a step has logical=1 shares, so at most 1 workers compute; the job may have 2",
        "a step has logical=1 shares, so at most 1 workers compute; the job may have 4",
    ]


@pytest.mark.parametrize("what", OTHERS)
def test_a_newcomer_that_differs(what: str) -> None:
    job = Job()
    first, newcomer = job.workers
    bits, text = OTHERS[what]
    job.registry.handle_message(first, ReferenceBits(FIRST))
    job.registry.handle_message(newcomer, WarmedUp(bits))
    job.registry.update(3)
    assert newcomer.state == "refused"
    assert job.sent == [(1, WorkerRefused)]
    ((kind, worker, why),) = job.told
    assert (kind, worker) == ("refused", newcomer)
    assert text in why


def test_a_newcomer_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    job.registry.begun(16, 0.5)
    for now in range(8):
        monkeypatch.setattr("time.monotonic", lambda now=now: float(now))
        job.registry.update(3)
    assert {each.member for each in job.stopped} == {1}
    assert job.workers[1].cause == "hung: it did not start in 7 s"


@pytest.mark.parametrize("has_arrived", [False, True])
def test_cancelled_plans_of_a_slow_newcomer(
    has_arrived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next plan contains it again, so that no other worker could join or leave."""
    job = Job(most=3)
    job.registry.begun(16, 0.5)
    job.workers[1].state = "admitted"
    for now in range(20):
        monkeypatch.setattr("time.monotonic", lambda now=now: float(now))
        job.registry.update(now)
        if now % 4 == 3:
            job.registry.handle_message(job.workers[0], PlanCancelled(1, []))
        elif has_arrived:
            job.registry.handle_message(job.workers[1], PositionReached(1))
    assert {each.member for each in job.stopped} == (set() if has_arrived else {1})


def test_a_newcomer_that_the_others_have_lost() -> None:
    """Only the planned worker is ended."""
    job = Job(most=3)
    job.workers[1].state = "admitted"
    job.registry.handle_message(job.workers[0], PlanCancelled(1, [0, 1]))
    assert job.stopped == [job.workers[1]]


def test_other_shares_whose_plan_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    job.registry.begun(16)
    job.workers[1].state, job.workers[1].joined = "running", True
    job.workers[0].pace.record(1, 0.1)
    job.workers[1].pace.record(1, 0.3)
    plans = []
    for now in range(60):
        monkeypatch.setattr("time.monotonic", lambda now=now: float(now))
        job.registry.update(now)
        if job.plans:
            plans.append((now, job.plans.pop(0).speeds))
            job.plans.clear()
            if len(plans) == 1:
                job.registry.handle_message(job.workers[0], PlanCancelled(1, []))
            else:
                message = GroupSwitched(1, now, 0.0, [0, 1], [])
                job.registry.handle_message(job.workers[0], message)
    (first, speeds), (second, again) = plans
    assert second == first + 1
    assert again == speeds
    (text,) = [text for kind, _, text in job.told if kind == "balanced"]
    assert text.endswith("rank 0 12, rank 1 4")
