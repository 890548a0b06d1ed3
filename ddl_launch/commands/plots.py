"""Plots of busy wires over time, and of efficiency over ranks. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddl_launch.commands.cluster import Cluster
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
