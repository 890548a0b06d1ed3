# SPDX-License-Identifier: Apache-2.0
"""A plot of a comparison: the slots of each job over time, and completion times. Needs
matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddl_launch.base.pictures import SERIES, logarithmic, picture, whole
from ddl_launch.errors import CommandError
from ddl_scheduler.simulation.comparison import Result
from ddl_scheduler.simulation.simulate import Outcome


def plot(path: Path, results: Sequence[Result], slots: int) -> None:
    """Plot each method's slots by job over time, for the first workload, and the completion times.
    Raises CommandError."""
    end = max(stretch.end for result in results for stretch in result.outcomes[0].stretches)
    try:
        with picture(path, [2.2] * len(results) + [3.0]) as (*slot_axes, times):
            for axes, result in zip(slot_axes, results, strict=True):
                _draw_slots(axes, result.outcomes[0], slots)
                axes.set_xlim(0, end / 3600)
                axes.set_title(f"{result.method}: slots of each job")
            _draw_times(times, results)
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
    axes.stackplot(hours, sizes, step="post", colors=SERIES, linewidth=0)
    axes.set_ylim(0, slots)
    axes.xaxis.set_major_formatter("{x:g} h")
    whole(axes.yaxis)


def _draw_times(axes: Any, results: Sequence[Result]) -> None:
    """Draw the share of jobs that were completed within a time, for each method."""
    for result in results:
        minutes = sorted(t / 60 for outcome in result.outcomes for t in outcome.times.values())
        shares = np.arange(1, len(minutes) + 1) / len(minutes)
        axes.plot(minutes, 100 * shares, label=result.method.replace(", ", ",\n"))
    logarithmic(axes.xaxis, "{:g} min".format)
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.set_title("jobs that were completed within a time")
