# SPDX-License-Identifier: Apache-2.0
"""What an agent remembers of a worker, and what another coordinator makes of it."""

from dataclasses import replace
from typing import Any

import pytest

from ddl_elastic.base.messages import Message, checked, pack
from ddl_elastic.coordinator.recovery import CoordinatorRecovery, is_known, replay, unknown
from ddl_elastic.coordinator.worker_registry import Worker
from ddl_elastic.engines.worker_record import WorkerRecord

pytestmark = pytest.mark.pure


def told(memory: WorkerRecord, kind: str, heard: bool = True, **fields: Any) -> None:
    memory.told(checked(kind, fields), heard)


def ordered(memory: WorkerRecord, kind: str, **fields: Any) -> None:
    memory.ordered(checked(kind, fields))


def connected(member: int = 0) -> WorkerRecord:
    memory = WorkerRecord(member)
    told(memory, "ready", address="ab", pid=7)
    ordered(memory, "connect", members=[0, 1], addresses=["ab", "cd"], attempt=3)
    told(memory, "begin", steps=9, batch=4, logical=2, watchdog=10.0)
    return memory


def plan(number: int, members: list[int]) -> dict[str, Any]:
    empty: dict[str, Any] = {"newcomers": [], "addresses": {}, "speeds": []}
    return {"plan": number, "members": members, **empty}


def progress(memory: WorkerRecord, step: int, heard: bool = True) -> None:
    told(memory, "progress", heard, step=step, loss=0.5, shares=step, busy=0.1, audited=0)


def test_the_last_message_of_a_kind_counts() -> None:
    memory = connected()
    progress(memory, 1)
    progress(memory, 2, heard=False)
    standing = memory.snapshot()
    pack("standing", standing)  # raises ValueError for what cannot be sent
    assert [message.kind for message in replay(standing)] == ["ready", "begin", "progress"]
    assert [*replay(standing)][-1].fields["step"] == 2
    assert (standing["state"], standing["group"], standing["members"]) == ("running", 3, [0, 1])
    assert (standing["epoch"], standing["plan"], standing["trainings"]) == (3, 0, 1)


def test_events_are_kept_if_nobody_has_heard_them() -> None:
    memory = connected()
    recovery = {"step": 4, "died": [1], "adopted": 1, "seconds": 0.1}
    told(memory, "recovered", **recovery)
    told(memory, "recovered", heard=False, **{**recovery, "step": 5})
    told(memory, "line", heard=False, text="seen")
    assert [message.kind for message in memory.unheard] == ["recovered", "line"]
    assert memory.unheard[0].fields["step"] == 5


@pytest.mark.parametrize("end", ["void", "switched"])
def test_a_plan_is_under_way_until_it_is_void_or_done(end: str) -> None:
    memory = connected()
    ordered(memory, "plan", **plan(8, [0, 1, 2]))
    standing = memory.snapshot()
    assert (standing["epoch"], standing["plan"], standing["planned"]) == (8, 8, [0, 1, 2])
    if end == "void":
        told(memory, "void", plan=8, failed=[])
    else:
        told(memory, "switched", plan=8, step=5, seconds=0.0, members=[0, 1, 2], died=[])
    standing = memory.snapshot()
    assert (standing["epoch"], standing["plan"]) == (8, 0)
    assert standing["members"] == ([0, 1] if end == "void" else [0, 1, 2])


def test_who_needs_a_coordinator() -> None:
    memory = WorkerRecord(0)
    assert memory.is_waiting
    memory = connected()
    assert not memory.is_waiting
    progress(memory, 8)
    told(memory, "done", steps=9, loss=0.1, digest="ab", parts={})
    assert not memory.is_waiting and memory.has_trained
    told(
        memory, "begin", steps=18, batch=4, logical=2, watchdog=10.0
    )  # the next call of Loop.steps
    assert memory.state == "running"
    told(memory, "ready", address="ab", pid=7)  # it trains once more
    assert memory.is_waiting


def test_the_youngest_group_counts() -> None:
    older, newer = connected(0), connected(1)
    ordered(older, "plan", **plan(8, [0, 1, 2]))
    ordered(newer, "plan", **plan(8, [0, 1, 2]))
    told(newer, "switched", plan=8, step=5, seconds=0.0, members=[0, 1, 2], died=[])
    for order in ([older, newer], [newer, older]):
        recovery = CoordinatorRecovery(60.0)
        assert max(recovery.take(each.member, each.snapshot()) for each in order) == 2
        assert (recovery.members, recovery.plan) == ([0, 1, 2], 0)


def test_nobody_comes() -> None:
    recovery = CoordinatorRecovery(-1.0)
    assert recovery.is_too_late([])
    recovery.begin()
    assert not recovery.is_too_late([])


def there(member: int) -> Worker:
    found = unknown(member)
    slot = replace(found.handle.slot, id=member, state="used")
    return replace(found, handle=replace(found.handle, slot=slot), state="warming")


@pytest.mark.parametrize("was_told", [True, False])
def test_a_newcomer_comes_first(was_told: bool) -> None:
    newcomer = WorkerRecord(2)
    if was_told:
        told(newcomer, "ready", address="ef", pid=8)
        ordered(newcomer, "warm")
    recovery = CoordinatorRecovery(60.0)
    recovery.begin()
    recovery.take(2, newcomer.snapshot())
    workers = [unknown(0), unknown(1), there(2)]
    assert not recovery.is_complete(workers)
    recovery.take(0, connected(0).snapshot())
    workers[0] = there(0)
    assert not recovery.is_complete(workers)
    workers[1] = there(1)
    assert recovery.is_complete(workers)


def test_only_a_newcomer_comes() -> None:
    newcomer = WorkerRecord(2)
    ordered(newcomer, "warm")
    recovery = CoordinatorRecovery(-1.0)
    recovery.begin()
    recovery.take(2, newcomer.snapshot())
    assert recovery.is_too_late([unknown(0), unknown(1), there(2)])


def test_members_that_are_not_there_are_waited_for() -> None:
    recovery = CoordinatorRecovery(60.0)
    assert not recovery.is_complete([])
    recovery.begin()
    recovery.take(0, connected(0).snapshot())
    workers = [unknown(0), unknown(1)]
    assert not is_known(workers[0]) and not recovery.is_complete(workers)
    with pytest.raises(BrokenPipeError):
        workers[0].handle.channel.send("exit")


@pytest.mark.parametrize(
    "wrong",
    [
        {"told": [["connect", {}]]},
        {"told": [["ready", {"address": 1, "pid": 2}]]},
        {"told": [["ready", []]]},
        {"told": ["ready"]},
        {"members": [-1]},
        {"members": ["0"]},
        {"planned": [1 << 40]},
    ],
)
def test_a_wrong_standing_is_refused(wrong: dict[str, Any]) -> None:
    standing = {**connected().snapshot(), **wrong}
    with pytest.raises(ValueError):
        CoordinatorRecovery(60.0).take(0, standing)
        list[Message](replay(standing))
