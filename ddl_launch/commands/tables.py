# SPDX-License-Identifier: Apache-2.0
"""The tables that `ddl` prints."""

from __future__ import annotations

from collections.abc import Sequence

from ddl_launch.base.quantities import show_seconds
from ddl_launch.commands.cluster import Cluster


def show(rows: Sequence[Sequence[str]]) -> str:
    """Format a table. The first two columns are left-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def show_cluster(cluster: Cluster) -> str:
    """Return a heading, and a line for each level."""
    lines = [f"{cluster.name}: {cluster.size} ranks on {len(cluster.hosts)} hosts"]
    for i, level in enumerate(cluster.levels):
        if level:
            kind = "shared memory" if i == 0 else "wires, each way"
            rate = f"{level.bandwidth / 1e9:.3g} GB/s, {show_seconds(level.latency)}"
            lines.append(f"  {level.name}: {kind}, {rate}")
    return "\n".join(lines)


def level_names(cluster: Cluster) -> list[str]:
    """Return the column heads of the levels."""
    return [level.name for level in cluster.levels if level]


def shares(cluster: Cluster, busiest: Sequence[int], nbytes: int) -> list[str]:
    """Return the bytes that the busiest rank or wire of each level sends, as multiples of the
    message."""
    levels = zip(cluster.levels, busiest, strict=True)
    return [f"{sent / max(nbytes, 1):.3g} N" for level, sent in levels if level]
