# SPDX-License-Identifier: Apache-2.0
"""Plots for `ddl plan` and `ddl simulate`. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddl_launch.base.quantities import show_bytes, show_seconds
from ddl_launch.commands.cluster import Cluster
from ddl_launch.commands.creation import MembershipCost
from ddl_launch.commands.description import DescriptionError
from ddl_launch.commands.planning import PlanEstimate
from ddl_launch.commands.scaling import Point
from ddl_launch.commands.simulation import Prediction

_WIRES_MAX = 16
MESSAGES_MAX = 2000  # the most messages in a picture of a plan's steps


def check_plot(path: Path) -> None:
    """Raise DescriptionError if no picture can be written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise DescriptionError(
            "--plot needs matplotlib, which is not installed: pip install 'libddl[plot]'"
        ) from None
    if not path.parent.is_dir():
        raise DescriptionError(f"--plot {path}: the folder {path.parent} does not exist")


def plot(
    path: Path, cluster: Cluster, prediction: Prediction, nbytes: int, points: Sequence[Point]
) -> None:
    """Plot the timeline of the wires and, if there are points, the efficiency, in an image file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14 if points else 8, 5), layout="constrained")
    axes = figure.subplots(1, 2 if points else 1, squeeze=False)[0]
    _draw_timeline(axes[0], cluster, prediction, nbytes)
    if points:
        _draw_efficiency(axes[1], points)
    _save(figure, path)


def plot_creation(path: Path, cluster: Cluster, found: Sequence[MembershipCost]) -> None:
    """Plot the costs of a comm against its number of ranks, in an image file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    times, numbers = figure.subplots(1, 2)
    ranks = [m.ranks for m in found]
    for label, values in {
        "creation": [m.creation for m in found],
        "processor time of creation, busiest rank": [m.processor for m in found],
        "from a death until all know": [m.known for m in found],
        "shrink of the survivors": [m.shrink for m in found],
    }.items():
        times.loglog(ranks, values, "o-", base=2, label=label)
    times.set_yscale("log", base=10)
    times.set_ylabel("seconds")
    times.set_title(cluster.name)
    for label, values in {
        "descriptors of a rank, before its first operation": [float(m.descriptors) for m in found],
        "KiB that rank 0 sends at the rendezvous": [m.rendezvous / 1024 for m in found],
        "heartbeats, percent of a core": [100 * m.idle for m in found],
    }.items():
        numbers.loglog(ranks, values, "o-", base=2, label=label)
    numbers.set_yscale("log", base=10)
    for axes in (times, numbers):
        axes.set_xlabel("ranks")
        axes.legend(fontsize="small")
    _save(figure, path)


def plot_plans(
    path: Path, cluster: Cluster, curves: dict[str, list[tuple[int, float]]], chosen: PlanEstimate
) -> None:
    """Plot the steps of the chosen plan, and the times of all plans against the message size, in an
    image file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 5), layout="constrained")
    steps, times = figure.subplots(1, 2)
    _draw_steps(steps, cluster, chosen)
    for plan, points in curves.items():
        ours = plan == chosen.plan
        sizes, seconds = zip(*points, strict=True)
        times.plot(sizes, seconds, "o-", ms=3, lw=2.5 if ours else 1.2, label=plan)
    times.set_xscale("log", base=2)
    times.set_yscale("log")
    ticks = sorted({size for points in curves.values() for size, _ in points})[::2]
    times.set_xticks(ticks, [show_bytes(size) for size in ticks])
    times.set_xlabel("size of the message")
    times.set_ylabel("simulated time, s")
    times.set_title(f"all plans, {cluster.size} ranks")
    times.grid(alpha=0.3)
    times.legend()
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise DescriptionError(f"--plot {path}: {error}") from None


def _draw_steps(axes: Any, cluster: Cluster, chosen: PlanEstimate) -> None:
    """Draw a lane for each rank, and an arrow for each message."""
    found = chosen.prediction
    assert found is not None
    host = [group for group, ranks in enumerate(cluster.hosts) for _ in range(ranks)]
    unit, scale = ("us", 1e6) if found.seconds < 1e-3 else ("ms", 1e3)
    for rank in range(cluster.size):
        axes.axhline(rank, color="0.85", zorder=0)
    shown = found.messages
    for far, color, label in ((False, "C0", "within a host"), (True, "C3", "between hosts")):
        mine = [m for m in shown if (host[m.sender] != host[m.receiver]) == far]
        for m in mine:
            axes.annotate(
                "",
                (scale * m.end, m.receiver),
                (scale * m.start, m.sender),
                arrowprops={"arrowstyle": "->", "color": color, "alpha": 0.8, "shrinkA": 0},
            )
        if mine:
            axes.plot([], [], color=color, label=f"{label}, {show_bytes(mine[0].bytes)} each")
    axes.set_xlim(0, 1.03 * scale * found.seconds)
    axes.set_ylim(cluster.size - 0.5, -0.5)
    axes.set_yticks(range(cluster.size), [f"rank {r}, host {host[r]}" for r in range(cluster.size)])
    axes.set_xlabel(unit)
    left = f", the first {len(shown)} messages" if len(shown) == MESSAGES_MAX else ""
    axes.set_title(
        f"{chosen.plan}, {show_bytes(chosen.bytes)}, {show_seconds(found.seconds)}{left}"
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)


def _draw_timeline(axes: Any, cluster: Cluster, prediction: Prediction, nbytes: int) -> None:
    wires: dict[tuple[int, int, bool], list[tuple[float, float]]] = {}
    for b in prediction.busy:
        spans = wires.setdefault((b.level, b.group, b.inward), [])
        spans.append((b.start * 1e3, (b.end - b.start) * 1e3))
    each = _WIRES_MAX // max(len(cluster.wires), 1)
    shown = sorted(key for key in wires if 2 * key[1] < each)  # the first groups of each level
    labels = []
    for row, key in enumerate(shown):
        level, group, inward = key
        name = cluster.wires[level - 1].name
        labels.append(f"{name} {group} {'in' if inward else 'out'}")
        axes.broken_barh(wires[key], (row - 0.4, 0.8))
    axes.set_yticks(range(len(shown)), labels)
    axes.set_xlabel("ms")
    title = f"wires of {prediction.plan}, {show_bytes(nbytes)}, {cluster.size} ranks"
    if len(shown) < len(wires):
        title += f"\nnot shown: {len(wires) - len(shown)} of {len(wires)} wires"
    axes.set_title(title)
    axes.grid(axis="x", alpha=0.3)


def _draw_efficiency(axes: Any, points: Sequence[Point]) -> None:
    ranks = [p.ranks for p in points]
    lines = {
        "chosen plan": [p.efficiency for p in points],
        "without overlap": [p.without_overlap for p in points],
        "flat ring": [p.ring for p in points],
        "flat ring, without overlap": [p.ring_without_overlap for p in points],
    }
    for (label, values), style in zip(lines.items(), ("o-", "s--", "^-", "v--"), strict=True):
        axes.plot(ranks, [100 * v for v in values], style, ms=4, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(n) for n in ranks])
    least = min(min(values) for values in lines.values())
    axes.set_ylim(max(0, 100 * least - 5), 101)
    axes.grid(alpha=0.3)
    axes.set_xlabel("ranks")
    axes.set_ylabel("scaling efficiency, %")
    axes.legend()
