# SPDX-License-Identifier: Apache-2.0
"""The step's pure parts: partial sums in the tree's order, and the consequences of a death."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddl_core
from ddl_elastic.base.audits import AuditError
from ddl_elastic.base.protocol import AuditFinding
from ddl_elastic.shares.order import children, parent, parts_of, tree_size
from ddl_elastic.step.audit import Audit
from ddl_elastic.step.digest import ShareDigest
from ddl_elastic.step.partial import PartialSums
from ddl_elastic.step.reform import LOST, Action, RankProgress, Watch, decide
from ddl_elastic.step.step import Phase, PlainArrays, RankGroup, Step

pytestmark = pytest.mark.pure


def tree_sum(values: list[np.ndarray], first: int, size: int) -> np.ndarray:
    if size == 1:
        return values[first]
    half = size // 2
    left = tree_sum(values, first, half)
    return left if first + half >= len(values) else left + tree_sum(values, first + half, half)


@given(workers=st.integers(1, 64), seed=st.integers(0, 2**32 - 1), ranks=st.integers(1, 6))
def test_bits_do_not_depend_on_owners(workers: int, seed: int, ranks: int) -> None:
    random = np.random.default_rng(seed)
    values = [
        (random.standard_normal(3) * 10.0 ** random.integers(-6, 6)).astype("f4")
        for _ in range(workers)
    ]
    owners = random.integers(0, ranks, workers)
    nodes = {}
    for rank in range(ranks):
        partial = PartialSums(workers)
        for worker in random.permutation(np.flatnonzero(owners == rank)).tolist():
            partial.add(worker, [values[worker].copy()])
        order = parts_of(partial.held, workers)
        nodes.update(zip(order, partial.arrays(order, 0), strict=True))

    def value(node: tuple[int, int]) -> np.ndarray:
        if node in nodes:
            return nodes[node]
        return np.add(*map(value, children(node)))

    expected = tree_sum(values, 0, tree_size(workers))
    assert value((0, workers)).tobytes() == expected.tobytes()


@given(workers=st.integers(2, 200), data=st.data())
def test_parents_and_children(workers: int, data: st.DataObject) -> None:
    node = (data.draw(st.integers(0, workers - 1)), 1)
    while node != (0, workers):
        above = parent(node, workers)
        assert node in children(above)
        assert sum(count for _, count in children(above)) == above[1]
        node = above


def test_a_contiguous_range_needs_few_arrays() -> None:
    partial = PartialSums(64)
    for worker in range(40):
        partial.add(worker, [np.ones(1)])
        assert len(partial._nodes) <= 6
    assert partial.arrays([(0, 32), (32, 8)], 0)[0][0] == 32


def test_a_share_counts_once() -> None:
    partial = PartialSums(4)
    partial.add(1, [np.ones(1)])
    with pytest.raises(RuntimeError, match="logical worker 1 was computed twice"):
        partial.add(1, [np.ones(1)])
    with pytest.raises(RuntimeError, match=r"must be over \[\(0, 2\)\]"):
        partial.arrays([(0, 2)], 0)


@given(workers=st.integers(1, 20), counts=st.lists(st.integers(0, 3), min_size=20), data=st.data())
def test_shares_that_come_in_pieces(workers: int, counts: list[int], data: st.DataObject) -> None:
    """The sums of their first arrays are complete before the others. All shares are freed, once."""
    freed: list[list[np.ndarray]] = []
    partial = PartialSums(workers, freed.append)
    shares = [[np.full(2, 10.0 * v + k) for k in range(4)] for v in range(workers)]
    for number, worker in enumerate(data.draw(st.permutations(range(workers)))):
        partial.add(worker, shares[worker], counts[worker])
        assert worker not in partial.held
        if number == workers - 1:
            for array in range(counts[worker]):
                (found,) = partial.arrays([(0, workers)], array)
                assert found[0] == sum(10 * v + array for v in range(workers))
        partial.add(worker, shares[worker])
    (found,) = partial.arrays([(0, workers)], 3)
    assert found[1] == sum(10 * v + 3 for v in range(workers))
    partial.clear()
    assert sorted(map(id, freed)) == sorted(map(id, shares))


class Numbers:
    """A framework whose shares are given arrays."""

    def __init__(self) -> None:
        self.sum, self.freed = [np.zeros(2), np.zeros(3), np.zeros(1)], 0

    def result(self) -> list[np.ndarray]:
        return self.sum

    def ops(self) -> list[str]:
        return ["average", "sum", "average"]

    def free(self, share: list[np.ndarray]) -> None:
        self.freed += 1


def test_sums_start_in_the_last_share() -> None:
    framework = Numbers()
    with ddl_core.Endpoint(secret="") as endpoint:
        group = RankGroup(endpoint.connect([endpoint.address], 0), [0], (0, 0, 0))
        step = Step(group, 0, framework)
        for worker in step.shares():
            share = [np.full(2, worker), np.full(3, worker), np.full(1, worker)]
            share = [array.astype(float) for array in share]
            ready = step.early(worker)
            assert (ready is None) == (worker < 2)
            if ready:
                ready(share, 1)
                ready(share, 2)
                assert [work.done() for work in step._works] == [True, True]
            step.add(worker, share)
        group.watch.close()
        group.comm.close()
    assert [array.tolist() for array in framework.sum] == [[1, 1], [3, 3, 3], [1]]
    assert framework.freed == 3


def test_nothing_is_submitted_on_a_dead_comm() -> None:
    watch, called = Watch(), []
    watch.submit(lambda: called.append("alive"))
    watch.noticed = 1.0
    watch.submit(lambda: called.append("dead"))
    assert called == ["alive"]


@given(workers=st.integers(1, 130), owners=st.lists(st.integers(-1, 3), min_size=130, max_size=130))
def test_standings_travel(workers: int, owners: list[int]) -> None:
    owned = [v for v in range(workers) if owners[v] == 0]
    sent = RankProgress(7, 2**40, True, owned, is_new=bool(owners[0] % 2), plan=workers)
    assert RankProgress.from_words(sent.words(workers).tolist(), workers) == sent


@given(
    owners=st.lists(st.integers(-1, 3), min_size=8, max_size=8),
    has_result=st.lists(st.booleans(), min_size=4, max_size=4),
    behind=st.lists(st.booleans(), min_size=4, max_size=4).filter(lambda b: not all(b)),
)
def test_decisions(owners: list[int], has_result: list[bool], behind: list[bool]) -> None:
    ranks = [
        RankProgress(10 + r, 4, True, [0, 1])
        if behind[r]
        else RankProgress(10 + r, 5, has_result[r], [v for v in range(8) if owners[v] == r])
        for r in range(4)
    ]
    decisions = [decide(ranks, rank, 8) for rank in range(4)]
    assert len({each.owners for each in decisions}) == 1
    assert all(each.step == 5 for each in decisions)
    for rank, each in enumerate(decisions):
        kept = [v for v in range(8) if owners[v] == rank and not behind[rank]]
        assert {v for v in range(8) if each.owners[v] == rank} >= set(kept)
        if behind[rank]:
            assert each.action is Action.APPLY
        elif all(has_result) and not any(behind):
            assert each.action is Action.VOTE
            assert each.owners == tuple(owners)
        else:
            assert each.action is Action.COMPUTE
            orphans = 8 - sum(o >= 0 and not behind[o] for o in owners)
            assert each.adopted == orphans


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            [RankProgress(0, 5, False, []), RankProgress(1, 4, False, [])],
            "member 1 is in step 4 and lacks",
        ),
        ([RankProgress(0, 5, False, []), RankProgress(1, 3, True, [])], "member 1 is in step 3"),
        (
            [RankProgress(0, 5, False, [1]), RankProgress(1, 5, False, [1])],
            "worker 1 of step 5 has two",
        ),
    ],
)
def test_what_cannot_be(ranks: list[RankProgress], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        decide(ranks, 0, 2)


def run_ranks(run: Callable[[RankGroup], Any], ranks: int = 2) -> list[Any]:
    def connect(rank: int) -> Any:
        with endpoints[rank].connect(addresses, rank) as comm:
            group = RankGroup(comm, [5 + rank for rank in range(ranks)], tuple(range(ranks)))
            group.audit = Audit(0.0, "rollback", 0)
            try:
                return run(group)
            finally:
                group.watch.close()
                group.comm.close()

    with ExitStack() as stack:
        endpoints = [stack.enter_context(ddl_core.Endpoint(secret="")) for _ in range(ranks)]
        addresses = [each.address for each in endpoints]
        with ThreadPoolExecutor(ranks) as threads:
            return list(threads.map(connect, range(ranks)))


def test_first_share_of_joined_rank_is_computed_twice() -> None:
    """Only in a training step, and only once. The error names the rank if its two computations
    differ."""

    def run(group: RankGroup) -> tuple[list[list[int]], list[str]]:
        group.joined, texts, computed = frozenset({6}), list[str](), list[list[int]]()
        assert group.audit
        group.audit.report_hidden = lambda text, _: texts.append(text)
        for number, trains in enumerate((False, True, True)):
            result = np.zeros(3)
            step = Step(group, number, PlainArrays([result]), trains=trains)
            computed.append([])
            for worker in step.shares():
                computed[-1].append(worker)
                share = np.full(3, 1.0 + worker)
                if trains and step.needs_digest(worker):
                    digest = {"a": 7, "b": group.comm.rank * wrong}
                    step.record(worker, ShareDigest(digest))
                if not step.is_audit:
                    step.add(worker, [share])
            assert result.tolist() == [1.5] * 3
        return computed, texts

    for wrong in (0, 1):
        found = run_ranks(run)
        assert [computed for computed, _ in found] == [[[0], [1, 0], [0]], [[1], [1], [1]]]
        for _, texts in found:
            assert len(texts) == wrong
            assert all("rank 6 on" in each and "share 1, tensor b" in each for each in texts)


def test_other_rank_continues_after_the_wrong_one_has_left() -> None:
    """Half of the ranks, without the lowest one, could not expel it."""
    finding = AuditFinding(0, 0, [5], "a", 0, False, "rank 5 computes wrongly")

    def run(group: RankGroup) -> list[int]:
        group.membership = Mock(is_agreed=False, ballot=0)
        step = Step(group, 0, PlainArrays([np.zeros(1)]), may_switch=True, trains=True)
        if group.comm.rank == 0:
            with pytest.raises(AuditError):
                step._end_contest([0], finding)
            return []
        with pytest.raises(LOST):
            step._end_contest([0], finding)
        group.membership.voted.assert_called_once_with(0, 0)
        step._recover(0.0)
        assert step.recovery and step.recovery.died == [5]
        return group.members

    assert run_ranks(run) == [[], [6]]


def test_rank_that_switched_to_the_planned_comm_has_not_died() -> None:
    """A rank dies in the vote for a plan. Only rank 0 has seen the vote end."""
    together = Barrier(5, timeout=60)

    def run(group: RankGroup) -> list[int] | None:
        together.wait()  # until all have connected
        rank = group.comm.rank
        group.membership = Mock(is_agreed=True, ballot=7)
        step = Step(group, 0, PlainArrays([np.zeros(1)]))
        step.phase = Phase.VOTE
        if rank == 0:
            group.comm.close()
        if rank == 1:
            group.comm.expel(4)
        if rank not in (0, 4):
            while group.comm.error is None:
                time.sleep(0.001)
            step._recover(0.0)
        together.wait()
        return step.recovery and step.recovery.died

    assert run_ranks(run, 5) == [None, [9], [9], [9], None]


@pytest.mark.parametrize(("ballots", "switch"), [((7, 7), True), ((7, 0), False), ((7, 8), False)])
def test_rank_that_fails_in_a_vote_for_a_plan_has_not_switched(
    ballots: tuple[int, int], switch: bool
) -> None:
    """Rank 0 closes the comm while the other ranks vote. If their ballots differ, the vote cannot
    have ended on rank 0."""
    together = Barrier(3, timeout=60)

    def run(group: RankGroup) -> Any:
        together.wait()  # until all have connected
        rank = group.comm.rank
        if rank == 0:
            group.comm.close()
            together.wait()
            return None
        group.membership = Mock(is_agreed=False, ballot=ballots[rank - 1])
        step = Step(group, 0, PlainArrays([np.zeros(1)]), may_switch=True, trains=True)
        step.phase = Phase.VOTE
        while group.comm.error is None:
            with suppress(*LOST):
                group.comm.barrier()
        step._recover(0.0)
        together.wait()
        return group.membership.recovered.call_args.args

    assert run_ranks(run, 3) == [None, (switch,), (switch,)]


def test_ranks_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "_checksum", lambda step: step._group.comm.rank)

    def run(group: RankGroup) -> str:
        step = Step(group, 0, PlainArrays([np.zeros(3)]), "step 7")
        with pytest.raises(RuntimeError) as caught:
            for worker in step.shares():
                step.add(worker, [np.ones(3)])
        return str(caught.value)

    assert run_ranks(run)[1] == (
        "the ranks differ in step 7: this rank's checksum is 0x1, and the checksums of all ranks"
        " are from 0x0 to 0x1"
    )
