# SPDX-License-Identifier: Apache-2.0
"""The costs of a comm of all ranks of a cluster: its creation, its heartbeats, and a death.

The numbers of messages and descriptors follow from the protocol. Their costs in processor time were
measured with `bench/many_ranks.c` (see docs/scaling.md). The ranks of a machine share its cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from ddl_launch.base.quantities import show_bytes, show_seconds
from ddl_launch.commands.cluster import Cluster
from ddl_launch.commands.tables import show, show_cluster

FIRST_USE_LEAST = 9  # from this number of ranks on, links over wires open at their first use
SPARSE_LEAST = 33  # from this number of ranks on, only neighbours are connected at first
TREE_LEAST = 33  # from this number of ranks on, the list of addresses is sent along a tree
ALL_AT_ONCE = 16  # up to this number of ranks, all pairs exchange heartbeats at every beat
# Heartbeats: the default interval in seconds, neighbours, heartbeats per second to other ranks.
BEAT_S, NEAR, FAR_PER_S = 0.1, 4, 160
GRACE_S = 0.1  # seconds from the end of a process until the comm ends
OWN_DESCRIPTORS = 13  # Descriptors of the endpoint and the failure detector, and of shared memory.
ARENA_DESCRIPTORS = 2
RECORD, PROOF, ADDRESS = 1192, 32, 194  # bytes of a rendezvous' messages


@dataclass(frozen=True)
class Costs:
    """Costs in seconds of processor time on one rank. The cost of a pair counts once for each of
    its two ranks."""

    rank: float = 0.1e-3  # creation, at any size
    member: float = 13e-6  # creation, for each member: its address, name, settings
    rendezvous: float = 55e-6  # creation, on rank 0: each rank that connects
    # Creation, each pair in shared memory: both links, memory, control connection.
    shared_pair: float = 55e-6
    wire_pair: float = 70e-6  # creation, each pair over wires: its control connection
    first_use: float = 40e-6  # each link that opens
    idle: float = 0.4e-3  # idle time in each second, at any size
    heartbeat: float = 8e-6  # each heartbeat that is sent and received
    death: float = 1.2e-3  # finding a member dead and reporting it
    # The agreement of the survivors, for each pair of ranks. The next creation is not included.
    shrink_pair: float = 220e-6
    shrink_rank: float = 2.2e-3  # the same where only neighbours are connected
    shrink_wires: float = 8e-3  # the same over wires


@dataclass(frozen=True)
class MembershipCost:
    """The predicted costs of a comm. Times are in seconds."""

    ranks: int
    creation: float  # from the last call to the last return
    processor: float  # processor time of the creation on the busiest rank
    descriptors: int  # descriptors of one rank before its first operation
    rendezvous: int  # bytes that rank 0 sends
    idle: float  # share of a core while idle
    known: float  # from a death until all ranks know it
    shrink: float  # shrink of the survivors


def predict(cluster: Cluster, costs: Costs | None = None) -> MembershipCost:
    """Predict the costs of a comm of all ranks on the cluster."""
    costs = costs or Costs()
    size, rounds = cluster.size, ceil(log2(max(cluster.size, 2)))
    local = max(cluster.hosts) if cluster.shared else 1
    large = size >= FIRST_USE_LEAST
    over_wires = size - local
    sparse = size >= SPARSE_LEAST
    wires = min(over_wires, count_neighbours(size, local)) if sparse else over_wires
    shared = min(local - 1, count_neighbours(local)) if sparse else local - 1
    mean = costs.rank + (size - 1) * costs.member + shared * costs.shared_pair
    mean += wires * (costs.wire_pair if large else costs.wire_pair + 2 * costs.first_use)
    opened = min(2 * (rounds - int(log2(local))), over_wires) if large else 0
    mean += opened * costs.first_use
    busiest = mean + (size - 1) * costs.rendezvous
    descriptors = OWN_DESCRIPTORS + opened + wires * (1 if large else 3)
    descriptors += ARENA_DESCRIPTORS + 2 * shared if local > 1 else 0
    latency = sum(level.latency for level in cluster.wires) if over_wires else 0.0
    trips = 4 * rounds  # the rendezvous, settings in both directions, and the barrier
    per_core = _ranks_per_core(cluster)
    creation = max(per_core * mean, busiest) + trips * latency
    beats = NEAR / BEAT_S + FAR_PER_S if size > ALL_AT_ONCE else (size - 1) / BEAT_S
    by_leader = costs.shrink_wires if over_wires else costs.shrink_rank
    agreement = by_leader if sparse else (size - 1) * costs.shrink_pair
    return MembershipCost(
        size,
        creation,
        busiest,
        descriptors,
        _rendezvous_bytes(size, rounds),
        costs.idle + min(beats, (shared + wires) / BEAT_S) * costs.heartbeat,
        GRACE_S + per_core * costs.death + latency,
        per_core * (mean + agreement) + (trips + 6) * latency,
    )


def count_neighbours(size: int, local: int = 1) -> int:
    """Return the number of ranks 1, 2, 4, 8 ... places away in the ring, on both sides.

    If each host has `local` consecutive ranks, count only the ranks on other hosts, as seen from
    the last rank of a host.
    """
    apart = [1 << k for k in range(ceil(log2(size)))] if size > 1 else []
    return len({*apart, *(size - each for each in apart if each >= local)})


def _ranks_per_core(cluster: Cluster) -> float:
    if not cluster.cores.number:
        return 1.0
    each = cluster.cores.hosts
    machines = [sum(cluster.hosts[i : i + each]) for i in range(0, len(cluster.hosts), each)]
    return max(1.0, max(machines) / cluster.cores.number)


def _rendezvous_bytes(size: int, rounds: int) -> int:
    whole = RECORD + size * ADDRESS + PROOF
    if size < TREE_LEAST:
        return (size - 1) * whole
    return (size - 1 - rounds) * RECORD + rounds * whole


_HEAD = [
    *("ranks", "creation", "processor time", "death known", "shrink"),
    *("descriptors", "rank 0 sends", "idle, of a core"),
]


def creation_table(cluster: Cluster, found: Sequence[MembershipCost]) -> str:
    """Return the costs of creation as a text table, with a row for each number of ranks."""
    rows = [_HEAD]
    for m in found:
        times = [show_seconds(t) for t in (m.creation, m.processor, m.known, m.shrink)]
        numbers = [str(m.descriptors), show_bytes(m.rendezvous), f"{m.idle:.2%}"]
        rows.append([str(m.ranks), *times, *numbers])
    notes = "processor time: the busiest rank's; shrink: of the survivors after one death"
    return "\n".join([show_cluster(cluster), "", show(rows), "", notes])
