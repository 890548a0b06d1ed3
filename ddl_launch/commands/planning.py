# SPDX-License-Identifier: Apache-2.0
"""`ddl plan`: compares the possible plans for each size, and marks libddl's choice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddl_launch.base.quantities import show_bytes, show_seconds
from ddl_launch.commands.cluster import Cluster
from ddl_launch.commands.simulation import (
    OPERATIONS,
    SPANS_MAX,
    Prediction,
    SimulationError,
    TooLongError,
    headline,
    hops,
    simulate,
    split_operation,
)
from ddl_launch.commands.tables import level_names, shares, show, show_cluster

_SPANS_MAX = 3_000_000  # simulated within a few seconds


@dataclass(frozen=True)
class PlanEstimate:
    """A plan for messages of one size. `prediction` is None if it has too many messages to
    simulate."""

    bytes: int
    plan: str
    chosen: bool
    hops: int
    prediction: Prediction | None


def candidates(cluster: Cluster, operation: str, sizes: Sequence[int]) -> Iterator[PlanEstimate]:
    """Yield all possible plans for each size, the chosen one first."""
    possible = _possible(cluster, operation)
    for nbytes in sizes:
        chosen, best = _predict(cluster, operation, nbytes, None)
        yield PlanEstimate(nbytes, chosen, True, possible.get(chosen, 0), best)
        for plan, n in possible.items():
            if plan == chosen:
                continue
            try:
                _, other = _predict(cluster, operation, nbytes, plan)
            except SimulationError:  # the plan is for shorter messages only
                continue
            yield PlanEstimate(nbytes, plan, False, n, other)


def _possible(cluster: Cluster, operation: str) -> dict[str, int]:
    """Return the possible plans and their numbers of hops (0: not counted)."""
    found = {}
    for plan in OPERATIONS[split_operation(operation)[0]][1]:
        try:
            found[plan] = hops(cluster, operation, plan, _SPANS_MAX)
        except TooLongError:
            found[plan] = 0
        except SimulationError:
            continue
    return found


def curves(cluster: Cluster, operation: str, most: int) -> dict[str, list[tuple[int, float]]]:
    """Return the simulated time of each possible plan for sizes up to `most`, as (bytes,
    seconds)."""
    found: dict[str, list[tuple[int, float]]] = {}
    size = 1024
    while size <= most:
        for candidate in candidates(cluster, operation, [size]):
            if candidate.prediction:
                points = found.setdefault(candidate.plan, [])
                points.append((size, candidate.prediction.seconds))
        size *= 4
    return found


def steps(cluster: Cluster, operation: str, nbytes: int, most: int) -> PlanEstimate:
    """Return the chosen plan with its first `most` messages."""
    found = simulate(cluster, operation, nbytes, sent_max=most)
    return PlanEstimate(nbytes, found.plan, True, 0, found)


def _predict(
    cluster: Cluster, operation: str, nbytes: int, plan: str | None
) -> tuple[str, Prediction | None]:
    spans_max = _SPANS_MAX if plan else SPANS_MAX  # the chosen plan may take longer
    try:
        found = simulate(cluster, operation, nbytes, plan, spans_max=spans_max)
    except TooLongError as error:
        return error.plan, None
    return found.plan, found


def as_table(cluster: Cluster, operation: str, found: Sequence[PlanEstimate]) -> str:
    """Return the estimates of the plans as a text table."""
    names = level_names(cluster)
    rows = [["message", "  plan", "time", "cost", "hops", "pieces", *names]]
    last = None
    for c in found:
        size = show_bytes(c.bytes) if c.bytes != last else ""
        last = c.bytes
        if c.prediction:
            time, cost = show_seconds(c.prediction.seconds), show_seconds(c.prediction.estimated)
            sent = [show_bytes(c.prediction.piece)]
            sent += shares(cluster, c.prediction.busiest, c.bytes)
        else:
            time, cost, sent = "-", "-", ["-"] * (1 + len(names))
        plan = f"{'*' if c.chosen else ' '} {c.plan}"
        rows.append([size, plan, time, cost, str(c.hops or "-"), *sent])
    notes = [
        "*: chosen by libddl; N: size of the message; hops: sequential messages",
        "time: simulated; cost: by the formulas that libddl uses to choose",
        "pieces: largest part that is sent at once",
    ]
    if cluster.shared:
        notes.append(
            f"{cluster.shared.name}: bytes that the busiest rank sends through shared memory"
        )
    if cluster.wires:
        wires = ", ".join(level.name for level in cluster.wires)
        notes.append(f"{wires}: bytes on the busiest wire in each direction")
    if any(c.prediction is None for c in found):
        notes.append("-: too many messages to simulate")
    return "\n".join([show_cluster(cluster), "", headline(operation), show(rows), "", *notes])


def as_json(cluster: Cluster, operation: str, found: Sequence[PlanEstimate]) -> str:
    """Return the estimates as JSON for programs, in seconds and bytes. Values of plans that were
    not simulated are null."""
    names = level_names(cluster)
    skip = 0 if cluster.shared else 1
    items = [
        {
            "bytes": c.bytes,
            "plan": c.plan,
            "chosen": c.chosen,
            "hops": c.hops,
            "seconds": c.prediction.seconds if c.prediction else None,
            "cost": c.prediction.estimated if c.prediction else None,
            "piece": c.prediction.piece if c.prediction else None,
            "sent": dict(zip(names, c.prediction.sent[skip:], strict=True))
            if c.prediction
            else None,
            "busiest": dict(zip(names, c.prediction.busiest[skip:], strict=True))
            if c.prediction
            else None,
        }
        for c in found
    ]
    cluster_item = {"name": cluster.name, "ranks": cluster.size, "hosts": len(cluster.hosts)}
    return json.dumps(
        {"cluster": cluster_item, "operation": operation, "candidates": items}, indent=1
    )
