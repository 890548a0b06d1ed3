# SPDX-License-Identifier: Apache-2.0
"""The side of a divided group that the coordinator lets continue."""

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl_elastic.base.protocol import QuorumRequest
from ddl_elastic.coordinator.quorum import MORE, QuorumArbiter
from ddl_elastic.coordinator.worker_registry import Worker
from ddl_elastic.engines import Handle, Slot

pytestmark = pytest.mark.pure

SILENCE = 6.0
LATE = SILENCE + MORE


class Job:
    """Four workers. `ends` says by member how their ends are known; all ended at 0 s."""

    def __init__(self, ends: Mapping[int, str], dead: Collection[int] = ()) -> None:
        slot = Slot(0, "a", "", 1, "used")
        self.workers = [
            Worker(member, Handle(slot, member, None), iter(()), evidence=ends.get(member, ""))  # type: ignore[arg-type]
            for member in range(4)
        ]
        self.answers: dict[int, str] = {}
        self.granted: list[tuple[list[int], list[int]]] = []
        self.arbiter = QuorumArbiter(
            self.workers,
            SILENCE,
            dead,
            lambda worker, why: self.answers.update({worker.member: why}),
            lambda side, missing: self.granted.append(([*side], [*missing])),
        )

    def ask(self, member: int, missing: list[int], now: float) -> str | None:
        request = QuorumRequest([0, 1, 2, 3], missing)
        self.arbiter.add(self.workers[member], request, 0.0)
        self.arbiter.update(now)
        return self.answers.get(member)


@pytest.mark.parametrize("lost", [[0, 1], [0, 1, 2]])
def test_those_whose_agents_have_told_of_their_end(lost: list[int]) -> None:
    job = Job(dict.fromkeys(lost, "told"))
    assert job.ask(3, lost, 0.0) == ""
    assert job.granted == [([each for each in range(4) if each not in lost], lost)]


def test_an_agent_that_may_come_back_is_waited_for() -> None:
    job = Job({0: "closed", 1: "closed"})
    assert job.ask(2, [0, 1], SILENCE - 0.1) is None
    job.arbiter.update(SILENCE)
    assert job.answers == {2: ""}


@pytest.mark.parametrize("end", ["silent", ""])
def test_a_host_that_does_not_answer_proves_nothing(end: str) -> None:
    job = Job({0: end, 1: end})
    assert job.ask(2, [0, 1], LATE - 0.1) is None
    job.arbiter.update(LATE)
    assert job.answers[2] == "rank 0 on a, rank 1 on a may be alive, and continue"
    assert not job.granted


def test_half_of_those_who_may_be_alive() -> None:
    """The half with the lowest of them continues."""
    for member, why in ((1, ""), (2, "rank 1 on a may be alive, and continue")):
        job = Job({0: "told", 3: "told"})
        assert job.ask(member, [0, 3, 3 - member], LATE) == why


@pytest.mark.parametrize("member", [0, 1])
def test_one_without_whom_others_go_on(member: int) -> None:
    job = Job({0: "closed", 1: "closed"}, dead=[1])
    assert job.ask(2, [0], LATE) == ""
    for worker in job.workers:
        worker.evidence = ""  # their agents have reconnected
    assert job.ask(member, [2, 3], LATE) == "other workers continue without it"


@given(
    ends=st.lists(st.sampled_from(["", "silent", "closed", "told"]), min_size=4, max_size=4),
    side=st.sets(st.integers(0, 3), min_size=1, max_size=3),
    waits=st.floats(0, 2 * LATE),
)
def test_one_side_goes_on_at_most(ends: list[str], side: set[int], waits: float) -> None:
    job = Job(dict(enumerate(ends)))
    other = sorted({0, 1, 2, 3} - side)
    for asking, missing in ((sorted(side), other), (other, sorted(side))):
        for member in asking:
            job.ask(member, missing, waits)
    assert len(job.granted) <= 1
    answers = (
        {job.answers.get(member) == "" for member in side},
        {job.answers.get(member) == "" for member in other},
    )
    assert answers != ({True}, {True})


@pytest.mark.parametrize("question", [QuorumRequest([0, 9], [9]), QuorumRequest([0, 1], [2])])
def test_a_question_of_no_group(question: QuorumRequest) -> None:
    job = Job({})
    with pytest.raises(ValueError, match="missing"):
        job.arbiter.add(job.workers[0], question, 0.0)
