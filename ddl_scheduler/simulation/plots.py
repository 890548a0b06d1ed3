# SPDX-License-Identifier: Apache-2.0
"""A plot of a comparison: the slots of each job over time, and completion times. Needs
matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddl_launch.errors import CommandError
from ddl_scheduler.simulation.comparison import Result
from ddl_scheduler.simulation.simulate import Outcome

_COLORS = [f"C{number}" for number in range(10)]


def plot(path: Path, results: Sequence[Result], slots: int) -> None:
    """Plot each method's slots by job over time, for the first workload, and the completion times.
    Raises CommandError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3 * len(results) + 1), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(results), 2, width_ratios=[2, 1])
    end = max(stretch.end for result in results for stretch in result.outcomes[0].stretches)
    for row, result in enumerate(results):
        axes = figure.add_subplot(grid[row, 0])
        _draw_slots(axes, result.outcomes[0], slots)
        axes.set_xlim(0, end / 3600)
        axes.set_title(f"{result.method}: slots by job")
    axes.set_xlabel("hours")
    _draw_times(figure.add_subplot(grid[:, 1]), results)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise CommandError(f"--plot {path}: {error}") from None


def _draw_slots(axes: Any, outcome: Outcome, slots: int) -> None:
    """Draw one band for each job, as high as its number of slots, the first job lowest."""
    stretches = outcome.stretches
    edges = sorted({t for stretch in stretches for t in (stretch.start, stretch.end)})
    at = {edge: number for number, edge in enumerate(edges)}
    names = sorted(
        outcome.times, key=lambda name: min(s.start for s in stretches if s.name == name)
    )
    sizes = np.zeros((len(names), len(edges)))
    for number, name in enumerate(names):
        for stretch in (stretch for stretch in stretches if stretch.name == name):
            sizes[number, at[stretch.start] : at[stretch.end]] = stretch.size
    hours = [edge / 3600 for edge in edges]
    axes.stackplot(hours, sizes, step="post", colors=_COLORS, linewidth=0)
    axes.set_ylim(0, slots)
    axes.set_ylabel("slots")


def _draw_times(axes: Any, results: Sequence[Result]) -> None:
    """Draw the share of jobs that were completed within a time, for each method."""
    for result in results:
        minutes = sorted(t / 60 for outcome in result.outcomes for t in outcome.times.values())
        shares = np.arange(1, len(minutes) + 1) / len(minutes)
        axes.plot(minutes, 100 * shares, label=result.method)
    axes.set_xscale("log")
    axes.set_xlabel("minutes from arrival to end")
    axes.set_ylabel("% of the jobs")
    axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title("time to completion")
