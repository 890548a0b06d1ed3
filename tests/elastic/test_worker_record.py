# SPDX-License-Identifier: Apache-2.0
"""An agent's record of a worker, from which another coordinator continues."""

from dataclasses import replace

import pytest
from msgspec import structs

from ddl_elastic.base import protocol
from ddl_elastic.base.messages import decode, encode
from ddl_elastic.base.states import WorkerState
from ddl_elastic.coordinator.recovery import CoordinatorRecovery, is_known, unknown
from ddl_elastic.coordinator.worker_registry import Worker
from ddl_elastic.engines.worker_record import WorkerRecord

pytestmark = pytest.mark.pure


READY, BEGUN = protocol.WorkerReady(b"ab", 7), protocol.TrainingBegun(9, 4, 2, 10.0)


def connected(member: int = 0) -> WorkerRecord:
    memory = WorkerRecord(member)
    memory.told(READY, heard=True)
    memory.ordered(protocol.ConnectGroup([0, 1], [b"ab", b"cd"], 3))
    memory.told(BEGUN, heard=True)
    return memory


def plan(number: int, members: list[int]) -> protocol.GroupPlan:
    return protocol.GroupPlan(number, members, [], {}, [])


def switched(plan: int, members: list[int]) -> protocol.GroupSwitched:
    return protocol.GroupSwitched(plan, 5, 0.0, members, [])


def progress(step: int) -> protocol.StepCommitted:
    return protocol.StepCommitted(step, 0.5, step, 0.1, 0)


def test_the_last_message_of_a_kind_counts() -> None:
    memory = connected()
    memory.told(progress(1), heard=True)
    memory.told(progress(2), heard=False)
    found = protocol.FROM_WORKER.decode(encode(memory.snapshot()))
    kept = [READY, BEGUN, progress(2)]
    assert found == protocol.WorkerSnapshot(WorkerState.RUNNING, 3, 3, [0, 1], 0, [], 1, kept)


def test_events_are_kept_if_nobody_has_heard_them() -> None:
    memory = connected()
    unheard = [protocol.RanksRecovered(5, [1], 1, 0.1), protocol.OutputLine("seen")]
    memory.told(protocol.RanksRecovered(4, [1], 1, 0.1), heard=True)
    for message in unheard:
        memory.told(message, heard=False)
    assert memory.unheard == unheard


@pytest.mark.parametrize("end", ["void", "switched"])
def test_a_plan_is_under_way_until_it_is_void_or_done(end: str) -> None:
    memory = connected()
    memory.ordered(plan(8, [0, 1, 2]))
    found = memory.snapshot()
    assert (found.epoch, found.plan, found.planned) == (8, 8, [0, 1, 2])
    is_void = end == "void"
    message = protocol.PlanCancelled(8, []) if is_void else switched(8, [0, 1, 2])
    memory.told(message, heard=True)
    found = memory.snapshot()
    assert (found.epoch, found.plan, found.planned) == (8, 0, [])
    assert found.members == ([0, 1] if is_void else [0, 1, 2])


def test_who_needs_a_coordinator() -> None:
    memory = WorkerRecord(0)
    assert memory.is_waiting
    memory = connected()
    assert not memory.is_waiting
    memory.told(progress(8), heard=True)
    memory.told(protocol.TrainingDone(9, 0.1, "ab", {}), heard=True)
    assert not memory.is_waiting and memory.has_trained
    memory.told(BEGUN, heard=True)  # the next call of Loop.steps
    assert memory.state == "running"
    memory.told(READY, heard=True)  # it trains in another call
    assert memory.is_waiting


def test_the_youngest_group_counts() -> None:
    older, newer = connected(0), connected(1)
    older.ordered(plan(8, [0, 1, 2]))
    newer.ordered(plan(8, [0, 1, 2]))
    newer.told(switched(8, [0, 1, 2]), heard=True)
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
        newcomer.told(READY, heard=True)
        newcomer.ordered(protocol.WarmUp())
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
    newcomer.ordered(protocol.WarmUp())
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
        workers[0].handle.channel.send(protocol.ExitWorker())


@pytest.mark.parametrize(
    "wrong",
    [
        {"kept": [protocol.WarmUp()]},
        {"kept": [protocol.WorkerReady("ab", 7)]},
        {"state": "unknown"},
        {"members": [-1]},
        {"members": ["0"]},
        {"planned": [1 << 40]},
    ],
)
def test_a_wrong_standing_is_refused(wrong: dict[str, object]) -> None:
    snapshot = structs.replace(connected().snapshot(), **wrong)
    with pytest.raises(ValueError, match="an invalid message"):
        decode(protocol.FROM_WORKER, encode(snapshot))
