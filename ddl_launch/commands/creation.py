# SPDX-License-Identifier: Apache-2.0
"""What a comm of all ranks of a cluster costs: its creation, its heartbeats, and a death.

Counts of messages and descriptors follow from the protocol. Their costs in processor time were
measured with `bench/many_ranks.c` (see docs/scaling.md). Ranks of a machine share its cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from ddl_launch.commands.cluster import Cluster
from ddl_launch.commands.quantities import show_bytes, show_seconds
from ddl_launch.commands.tables import show, show_cluster

FIRST_USE_LEAST = 9  # ranks from which on links over wires open when they are used
SPARSE_LEAST = 33  # ranks from which on only neighbours are connected at first
TREE_LEAST = 33  # ranks from which on the list of addresses is handed out along a tree
ALL_AT_ONCE = 16  # ranks up to which all pairs exchange heartbeats at every beat
BEAT_S, NEAR, FAR_PER_S = 0.1, 4, 160  # heartbeats: default interval; neighbours; to the others
GRACE_S = 0.1  # from the end of a process until the comm ends
OWN_DESCRIPTORS = 13  # of the endpoint and the failure detector; and of memory that is shared:
ARENA_DESCRIPTORS = 2
RECORD, PROOF, ADDRESS = 1192, 32, 194  # bytes of a rendezvous


@dataclass(frozen=True)
class Costs:
    """Seconds of processor time, each of one of the two ranks."""

    rank: float = 0.1e-3  # of creation, whatever the size
    member: float = 13e-6  # of creation: its address, name, settings
    rendezvous: float = 55e-6  # of creation, on rank 0: a rank that comes
    shared_pair: float = 55e-6  # of creation: both links, memory, control connection
    wire_pair: float = 70e-6  # its control connection
    first_use: float = 40e-6  # a link that opens
    idle: float = 0.4e-3  # of a second, whatever the size
    heartbeat: float = 8e-6  # sent and received
    death: float = 1.2e-3  # to find a member dead and to tell others
    shrink_pair: float = 220e-6  # of the survivors' agreement, besides the next creation
    shrink_rank: float = 2.2e-3  # the same where only neighbours are connected
    shrink_wires: float = 8e-3  # the same over wires


@dataclass(frozen=True)
class MembershipCost:
    """What is predicted of a comm."""

    ranks: int
    creation: float  # from the last entry to the last return
    processor: float  # of the creation, of the busiest rank
    descriptors: int  # of one rank, before its first operation
    rendezvous: int  # bytes that rank 0 sends
    idle: float  # share of a core
    known: float  # from a death until all know it
    shrink: float  # of the survivors


def predict(cluster: Cluster, costs: Costs | None = None) -> MembershipCost:
    """What a comm of all ranks costs on the cluster."""
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
    trips = 4 * rounds  # rendezvous, settings there and back, and the barrier
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
    """Ranks 1, 2, 4, 8 ... places away in the ring, on both sides: those on other hosts, for the
    last one of `local` ranks that follow each other on its host."""
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
    """For people."""
    rows = [_HEAD]
    for m in found:
        times = [show_seconds(t) for t in (m.creation, m.processor, m.known, m.shrink)]
        numbers = [str(m.descriptors), show_bytes(m.rendezvous), f"{m.idle:.2%}"]
        rows.append([str(m.ranks), *times, *numbers])
    notes = "processor time: of the busiest rank; shrink: of the survivors of one death"
    return "\n".join([show_cluster(cluster), "", show(rows), "", notes])
