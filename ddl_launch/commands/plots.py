"""Plots of busy wires over time, and of efficiency and creation over ranks. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddl_launch.commands.cluster import Cluster
from ddl_launch.commands.creation import Membership
from ddl_launch.commands.description import DescriptionError
from ddl_launch.commands.quantities import show_bytes
from ddl_launch.commands.scaling import Point
from ddl_launch.commands.simulation import Prediction

_WIRES_MAX = 16


def check_plot(path: Path) -> None:
    """Fail early if no picture can be written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise DescriptionError(
            "--plot needs matplotlib, which is not installed: pip install 'libddl[plot]'"
        ) from None
    if not path.parent.is_dir():
        raise DescriptionError(f"--plot {path}: there is no folder {path.parent}")


def plot(
    path: Path, cluster: Cluster, prediction: Prediction, nbytes: int, points: Sequence[Point]
) -> None:
    """Write a picture: the wires' timeline and, if there are points, the efficiency."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14 if points else 8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2 if points else 1, squeeze=False)[0]
    _draw_timeline(axes[0], cluster, prediction, nbytes)
    if points:
        _draw_efficiency(axes[1], points)
    _save(figure, path)


def plot_creation(path: Path, cluster: Cluster, found: Sequence[Membership]) -> None:
    """Write a picture: what a comm costs, over its ranks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    times, numbers = figure.subplots(1, 2)
    ranks = [m.ranks for m in found]
    for label, values in {
        "creation": [m.creation for m in found],
        "processor time of one rank's creation": [m.processor for m in found],
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


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise DescriptionError(f"--plot {path}: {error}") from None


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
    axes.set_title(title)


def _draw_efficiency(axes: Any, points: Sequence[Point]) -> None:
    ranks = [p.ranks for p in points]
    lines = {
        "chosen plan": [p.efficiency for p in points],
        "without overlap": [p.without_overlap for p in points],
        "flat ring": [p.ring for p in points],
        "flat ring, without overlap": [p.ring_without_overlap for p in points],
    }
    for label, values in lines.items():
        axes.plot(ranks, [100 * v for v in values], "o-", label=label)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 105)
    axes.set_xlabel("ranks")
    axes.set_ylabel("scaling efficiency, %")
    axes.legend()
