# SPDX-License-Identifier: Apache-2.0
"""Plots for `ddl plan` and `ddl simulate`. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddl_launch.base.pictures import LIGHT, logarithmic, picture, whole
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
    """Plot the timeline of the wires to an image file. If there are points, plot the efficiency,
    too."""
    with _picture(path, [3.2, 2.8] if points else [3.2]) as axes:
        _draw_timeline(axes[0], cluster, prediction, nbytes)
        if points:
            _draw_efficiency(axes[1], points)


def plot_creation(path: Path, cluster: Cluster, found: Sequence[MembershipCost]) -> None:
    """Plot the costs of a comm against its number of ranks, to an image file."""
    ranks = [m.ranks for m in found]
    with _picture(path, [2.8, 2, 2, 2]) as (times, descriptors, rendezvous, idle):
        for label, values in {
            "creation": [m.creation for m in found],
            "processor time\nof creation,\nbusiest rank": [m.processor for m in found],
            "from a death\nuntil all know": [m.known for m in found],
            "shrink of\nthe survivors": [m.shrink for m in found],
        }.items():
            times.plot(ranks, values, "o-", label=label)
        times.figure.suptitle(cluster.name, x=0.01, ha="left", fontsize="medium")
        times.set_title("times")
        logarithmic(times.yaxis, show_seconds)
        descriptors.plot(ranks, [m.descriptors for m in found], "o-")
        descriptors.set_title("descriptors of a rank, before its first operation")
        descriptors.set_ylim(0)
        whole(descriptors.yaxis)
        rendezvous.plot(ranks, [m.rendezvous for m in found], "o-")
        rendezvous.set_title("bytes that rank 0 sends at the rendezvous")
        logarithmic(rendezvous.yaxis, show_bytes, base=2)
        idle.plot(ranks, [100 * m.idle for m in found], "o-")
        idle.set_title("heartbeats of a rank, share of a core")
        idle.set_ylim(0)
        idle.yaxis.set_major_formatter("{x:g} %")
        for axes in (times, descriptors, rendezvous, idle):
            logarithmic(axes.xaxis, "{:g}".format, base=2)
            axes.set_xlabel("ranks")


def plot_plans(
    path: Path, cluster: Cluster, curves: dict[str, list[tuple[int, float]]], chosen: PlanEstimate
) -> None:
    """Plot the steps of the chosen plan, and the times of all plans against the message size, to an
    image file."""
    with _picture(path, [1.6 + 0.35 * cluster.size, 3.2]) as (steps, times):
        _draw_steps(steps, cluster, chosen)
        for plan, points in curves.items():
            ours = plan == chosen.plan
            times.plot(*zip(*points, strict=True), "o-", lw=2.5 if ours else 1.2, label=plan)
        logarithmic(times.xaxis, show_bytes, base=2)
        logarithmic(times.yaxis, show_seconds)
        times.set_xlabel("size of the message")
        times.set_title(f"simulated time of all plans, {cluster.size} ranks")


@contextmanager
def _picture(path: Path, heights: Sequence[float]) -> Iterator[list[Any]]:
    try:
        with picture(path, heights) as axes:
            yield axes
    except (OSError, ValueError) as error:
        raise DescriptionError(f"--plot {path}: {error}") from None


def _draw_steps(axes: Any, cluster: Cluster, chosen: PlanEstimate) -> None:
    """Draw a lane for each rank, and an arrow for each message."""
    found = chosen.prediction
    assert found is not None
    host = [group for group, ranks in enumerate(cluster.hosts) for _ in range(ranks)]
    unit, scale = ("us", 1e6) if found.seconds < 1e-3 else ("ms", 1e3)
    for rank in range(cluster.size):
        axes.axhline(rank, color=LIGHT["grid"], lw=1, zorder=0)
    shown = found.messages
    for far, name, label in ((False, "blue", "within a host"), (True, "orange", "between hosts")):
        color = LIGHT[name]
        mine = [m for m in shown if (host[m.sender] != host[m.receiver]) == far]
        for m in mine:
            axes.annotate(
                "",
                (scale * m.end, m.receiver),
                (scale * m.start, m.sender),
                arrowprops={"arrowstyle": "->", "color": color, "shrinkA": 0, "shrinkB": 0},
            )
        if mine:
            axes.plot([], [], color=color, label=f"{label}, {show_bytes(mine[0].bytes)} each")
    axes.set_xlim(0, 1.03 * scale * found.seconds)
    axes.set_ylim(cluster.size - 0.5, -0.5)
    axes.set_yticks(range(cluster.size), [f"rank {r}, host {host[r]}" for r in range(cluster.size)])
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(f"{{x:g}} {unit}")
    left = f", the first {len(shown)} messages" if len(shown) == MESSAGES_MAX else ""
    axes.set_title(
        f"{chosen.plan}, {show_bytes(chosen.bytes)}, {show_seconds(found.seconds)}{left}"
    )
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.15))


def _draw_timeline(axes: Any, cluster: Cluster, prediction: Prediction, nbytes: int) -> None:
    wires: dict[tuple[int, int, bool], list[tuple[float, float]]] = {}
    for b in prediction.busy:
        spans = wires.setdefault((b.level, b.group, b.inward), [])
        spans.append((b.start, b.end - b.start))
    each = _WIRES_MAX // max(len(cluster.wires), 1)
    shown = sorted(key for key in wires if 2 * key[1] < each)  # the first groups of each level
    labels = []
    for row, key in enumerate(shown):
        level, group, inward = key
        name = cluster.wires[level - 1].name
        labels.append(f"{name} {group} {'in' if inward else 'out'}")
        axes.broken_barh(wires[key], (row - 0.4, 0.8), color=LIGHT["blue"])
    axes.set_yticks(range(len(shown)), labels)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda seconds, _: show_seconds(seconds) if seconds else "0")
    title = f"wires of {prediction.plan}, {show_bytes(nbytes)}, {cluster.size} ranks"
    if len(shown) < len(wires):
        title += f"\nnot shown: {len(wires) - len(shown)} of {len(wires)} wires"
    axes.set_title(title)
    axes.grid(axis="y", visible=False)


def _draw_efficiency(axes: Any, points: Sequence[Point]) -> None:
    ranks = [p.ranks for p in points]
    lines = {
        "chosen plan": [p.efficiency for p in points],
        "without overlap": [p.without_overlap for p in points],
        "flat ring": [p.ring for p in points],
        "flat ring,\nwithout overlap": [p.ring_without_overlap for p in points],
    }
    for (label, values), style in zip(lines.items(), ("o-", "s--", "^-", "v--"), strict=True):
        axes.plot(ranks, [100 * v for v in values], style, label=label)
    logarithmic(axes.xaxis, "{:g}".format, base=2)
    least = min(min(values) for values in lines.values())
    axes.set_ylim(max(0, 100 * least - 5), 101)
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.set_xlabel("ranks")
    axes.set_title("scaling efficiency")
