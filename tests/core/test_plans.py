# SPDX-License-Identifier: Apache-2.0
"""Plans of all ranks of random machines: no rank waits for ever, and wires carry the bytes that
docs/algorithms.md gives. libddl/tests checks the results."""

import pytest

from ddl_launch.commands.cluster import Cluster, Cores, Level
from ddl_launch.commands.simulation import OPERATIONS, SimulationError, simulate

pytestmark = pytest.mark.pure

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

SHARED = Level("host", 8e9, 1e-6)
WIRE = Level("wire", 1e8, 1e-5)
settings = hypothesis.settings(max_examples=300, deadline=None, derandomize=True, database=None)


def machine(hosts: list[int], fanout: list[int]) -> Cluster:
    """Ranks on each host, numbered host by host; hosts in a rack, racks in an aisle, aisles."""
    wires = (WIRE,) * len(fanout)
    return Cluster("", tuple(hosts), tuple(fanout), 8e9, SHARED, wires, Cores(), ())


@st.composite
def machines(draw: st.DrawFn) -> Cluster:
    """Up to 40 ranks on equal or unequal hosts, in one level of wires, two or three."""
    fanout = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    number = 1
    for n in fanout:
        number *= n
    if draw(st.booleans()):
        hosts = [draw(st.integers(1, 4))] * number
    else:
        hosts = draw(st.lists(st.integers(1, 5), min_size=number, max_size=number))
    hypothesis.assume(2 <= sum(hosts) <= 40)
    return machine(hosts, fanout)


HIERARCHICAL = ["hierarchical", "halving", "tree"]
cases = [(operation, plan) for operation, (_, plans) in OPERATIONS.items() for plan in plans]


@settings
@hypothesis.given(machines(), st.sampled_from(cases), st.integers(0, 1 << 20))
def test_every_plan_ends(cluster: Cluster, case: tuple[str, str], nbytes: int) -> None:
    operation, plan = case
    try:
        simulate(cluster, operation, nbytes, plan)
    except SimulationError as error:
        assert str(error).endswith("that plan cannot do it")


@settings
@hypothesis.given(machines(), st.sampled_from(list(OPERATIONS)), st.integers(0, 1 << 20))
def test_the_chosen_plan_ends(cluster: Cluster, operation: str, nbytes: int) -> None:
    assert simulate(cluster, operation, nbytes).spans > 0 or nbytes == 0


@settings
@hypothesis.given(
    machines(), st.sampled_from(["hierarchical", "halving", "tree"]), st.integers(1, 50_000)
)
def test_bytes_on_wires(cluster: Cluster, plan: str, count: int) -> None:
    """No plan can reduce and broadcast N over h hosts with less than 2 N (h - 1) on their wires."""
    hosts = len(cluster.hosts)
    hypothesis.assume(hosts > 1)
    found = simulate(cluster, "allreduce", 4 * count, plan)
    assert sum(found.sent[1:]) == 2 * 4 * count * (hosts - 1)


@settings
@hypothesis.given(machines(), st.integers(1, 1 << 22))
def test_the_choice_is_among_the_best_by_cost(cluster: Cluster, nbytes: int) -> None:
    hypothesis.assume(len(cluster.hosts) > 1)
    chosen = simulate(cluster, "allreduce", nbytes)
    for plan in OPERATIONS["allreduce"][1]:
        try:
            other = simulate(cluster, "allreduce", nbytes, plan)
        except SimulationError:
            continue
        assert chosen.estimated <= other.estimated
