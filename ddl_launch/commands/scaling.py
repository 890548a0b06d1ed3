# SPDX-License-Identifier: Apache-2.0
"""`ddl simulate`: predicts the times of operations, and how a training step scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from ddl_launch.base.quantities import show_bytes, show_seconds
from ddl_launch.commands.cluster import Cluster
from ddl_launch.commands.model import Model
from ddl_launch.commands.simulation import (
    OPERATIONS,
    Prediction,
    TooLongError,
    headline,
    simulate,
    split_operation,
)
from ddl_launch.commands.tables import show, show_cluster

BUSY_MAX = 200_000  # the most intervals in a picture


@dataclass(frozen=True)
class Point:
    """The predictions of a training step on some of the hosts, with the chosen plan and with a flat
    ring."""

    hosts: int
    ranks: int
    step: float
    efficiency: float
    without_overlap: float  # the efficiency without overlap
    ring: float
    ring_without_overlap: float


def host_counts(cluster: Cluster) -> list[int]:
    """Return the powers of two up to the number of hosts, and that number."""
    counts = [1 << i for i in range(len(cluster.hosts).bit_length())]
    return sorted({n for n in counts if n <= len(cluster.hosts)} | {len(cluster.hosts)})


def scale(cluster: Cluster, model: Model, hosts: Sequence[int]) -> list[Point]:
    """For each n in `hosts`, predict a training step on the first n hosts. Efficiency is the
    speed of a rank compared with one rank alone."""
    return [_point(cluster.first_hosts(n), model) for n in hosts]


def _point(cluster: Cluster, model: Model) -> Point:
    chosen, ring = _reducer(cluster, None), _reducer(cluster, "ring")
    step = model.step(chosen)
    return Point(
        len(cluster.hosts),
        cluster.size,
        step,
        model.seconds / step,
        model.seconds / model.step_without_overlap(chosen),
        model.seconds / model.step(ring),
        model.seconds / model.step_without_overlap(ring),
    )


def _reducer(cluster: Cluster, plan: str | None) -> Callable[[int], float]:
    @cache
    def reduce(nbytes: int) -> float:
        alone = cluster.size == 1
        return 0.0 if alone else simulate(cluster, "allreduce", nbytes, plan).seconds

    return reduce


def scaling_table(cluster: Cluster, model: Model, points: Sequence[Point]) -> str:
    """Return the predictions as a table with aligned columns."""
    rows = [
        ["hosts", "ranks", "step", "images/s", "efficiency", "no overlap", "ring", "no overlap"]
    ]
    for p in points:
        shares = (p.efficiency, p.without_overlap, p.ring, p.ring_without_overlap)
        rate = f"{p.ranks * model.images / p.step:.0f}"
        percents = [f"{share:.1%}" for share in shares]
        rows.append([str(p.hosts), str(p.ranks), show_seconds(p.step), rate, *percents])
    total = sum(bucket.bytes for bucket in model.buckets)
    buckets = f"{len(model.buckets)} all-reduces of {show_bytes(total)} in all"
    lines = [
        show_cluster(cluster),
        f"{model.name}: {show_seconds(model.seconds)} of computation, {buckets}",
        "",
        show(rows),
        "",
        "efficiency: speed of a rank relative to a single rank; ring: the same with a flat ring",
        "no overlap: gradients are reduced after the backward pass, not during it",
    ]
    for known in model.published:
        for p in points:
            if p.ranks == known.ranks:
                lines.append(
                    f"published for {known.ranks} ranks: {known.efficiency:.1%} ({known.source});"
                    f" predicted {p.efficiency:.1%}, {p.without_overlap:.1%} without overlap"
                )
    return "\n".join(lines)


def predict(cluster: Cluster, operation: str, sizes: Sequence[int]) -> list[tuple[int, Prediction]]:
    """Predict the time of the chosen plan for each size, and of the flat ring where it is
    possible."""
    found = []
    for nbytes in sizes:
        chosen = simulate(cluster, operation, nbytes, busy_max=BUSY_MAX)
        found.append((nbytes, chosen))
        if "ring" in OPERATIONS[split_operation(operation)[0]][1] and chosen.plan != "ring":
            try:
                found.append((nbytes, simulate(cluster, operation, nbytes, "ring")))
            except TooLongError:
                continue
    return found


def prediction_table(
    cluster: Cluster, operation: str, found: Sequence[tuple[int, Prediction]]
) -> str:
    """Return the predictions as a text table, with the measured times if there are any."""
    known = {(m.bytes, m.plan): m.seconds for m in cluster.measured if operation == "allreduce"}
    rows = [["message", "plan", "time", "N / time", "messages", "measured", "difference"]]
    for nbytes, p in found:
        rate = f"{nbytes / p.seconds / 1e9:.3g} GB/s" if p.seconds else "-"
        row = [show_bytes(nbytes), p.plan, show_seconds(p.seconds), rate, str(p.spans)]
        measured = known.get((nbytes, p.plan))
        if measured:
            row += [show_seconds(measured), f"{p.seconds / measured - 1:+.1%}"]
        rows.append(row + [""] * (len(rows[0]) - len(row)))
    return "\n".join([show_cluster(cluster), "", headline(operation), show(rows)])
