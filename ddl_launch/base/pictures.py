# SPDX-License-Identifier: Apache-2.0
"""The look of all plots: one palette, labels at the lines, and SVGs for light and dark pages.

Needs matplotlib, which it imports when the first picture is drawn.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Each color on a light page and on a dark page.
PALETTE = {
    "page": ("#ffffff", "#131416"),
    "ink": ("#1a1d23", "#e7e9ee"),
    "grid": ("#dfe3e8", "#323843"),
    "blue": ("#1d5fd1", "#7fb0ff"),
    "orange": ("#a15c00", "#f4b860"),
    "green": ("#1a7f4b", "#5fd39a"),
    "purple": ("#8b3fb5", "#d3a0f2"),
    "red": ("#b8322a", "#ff8a80"),
    "teal": ("#0f7480", "#5fd0dc"),
    "gray": ("#646c7a", "#9aa3b2"),
}
LIGHT = {name: light for name, (light, _) in PALETTE.items()}
SERIES = [LIGHT[name] for name in ("blue", "orange", "green", "purple", "red", "teal", "gray")]
LIBRARIES = {
    "libddl": LIGHT["blue"],
    "Open MPI": LIGHT["orange"],
    "MPICH": LIGHT["green"],
    "Intel MPI": LIGHT["purple"],
    "Gloo": LIGHT["red"],
    "UCX": LIGHT["teal"],
    "limit": LIGHT["gray"],
}
WIDTH = 5.0  # inches; a phone shows such a picture at three quarters of its size

_FONT = "font-family: system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT["gray"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": LIGHT["ink"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.facecolor": LIGHT["page"],
    "font.size": 10,
    "grid.color": LIGHT["grid"],
    "legend.frameon": False,
    "lines.markersize": 3,
    "patch.edgecolor": LIGHT["ink"],
    "savefig.dpi": 150,
    "svg.fonttype": "none",  # text as text takes a third of the file size
    "svg.hashsalt": "libddl",
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["ink"],
    "ytick.color": LIGHT["ink"],
}


@contextmanager
def picture(path: Path, heights: Sequence[float], width: float = WIDTH) -> Iterator[list[Any]]:
    """Yield a list of matplotlib axes, one below the other, and write them to an image file.

    heights  inches of each panel

    The label of a line is written at its end, in its color, unless the axes have a legend. An SVG
    contains the colors for light and for dark pages. Raises OSError, and ValueError for an unknown
    kind of file.
    """
    from cycler import cycler
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({**_STYLE, "axes.prop_cycle": cycler(color=SERIES)}):
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights))
        yield list(grid.flat)
        figure.draw_without_rendering()  # the lines have their places now
        for axes in figure.axes:
            _label_lines(axes)
        if path.suffix != ".svg":
            figure.savefig(path)
            return
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        path.write_text(in_both_modes(drawn.getvalue()))


def logarithmic(axis: Any, show: Callable[[float], str], base: int = 10) -> None:
    """Make an axis logarithmic, and format its ticks by `show`. Call it after the lines are
    drawn."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log", base=base)
    low, high = axis.get_view_interval()
    short = base == 10 and high < 50 * low
    ticks = 5 if axis.axis_name == "x" else 8
    axis.set_major_locator(LogLocator(base, subs=(1, 2, 5) if short else (1,), numticks=ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))


def whole(axis: Any) -> None:
    """Place the ticks of an axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def in_both_modes(svg: str) -> str:
    """Return matplotlib's SVG with the dark colors of the palette for dark pages, and with the
    reader's font."""
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in PALETTE.values()
        for what in ("fill", "stroke")
        if f"{what}: {light}" in svg
    ]
    style = f"<style>text{{{_FONT}}}\n@media (prefers-color-scheme:dark){{\n"
    style += "\n".join(rules) + "\n}</style>\n"
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r" *<metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL)
    return svg.replace(" <defs>", f" {style} <defs>", 1)


def _label_lines(axes: Any) -> None:
    """Write the label of each line to the right of the axes, as close to the line's end as the
    other labels allow."""
    lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    if not lines or axes.get_legend():
        return
    ends = {line: axes.transData.transform(line.get_xydata()[-1])[1] for line in lines}
    lines.sort(key=ends.__getitem__)
    heights = [12 * axes.figure.dpi / 72 * (1 + line.get_label().count("\n")) for line in lines]
    bottom, top = axes.bbox.y0, axes.bbox.y1
    places = _spread([ends[line] for line in lines], heights, top)
    for line, place in zip(lines, places, strict=True):
        axes.annotate(
            line.get_label(),
            (1.0, (place - bottom) / (top - bottom)),
            xycoords="axes fraction",
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
        )


def _spread(wanted: list[float], heights: list[float], top: float) -> list[float]:
    """Return the centers of boxes with these heights, as close as possible to the sorted positions
    `wanted`, such that no two boxes overlap and all are below `top`."""
    up, down = wanted[:], wanted[:]
    gaps = [(one + other) / 2 for one, other in itertools.pairwise(heights)]
    for n, gap in enumerate(gaps):
        up[n + 1] = max(up[n + 1], up[n] + gap)
    for n, gap in reversed([*enumerate(gaps)]):
        down[n] = min(down[n], down[n + 1] - gap)
    places = [(low + high) / 2 for low, high in zip(down, up, strict=True)]
    places[-1] = min(places[-1], top - heights[-1] / 2)
    for n, gap in reversed([*enumerate(gaps)]):
        places[n] = min(places[n], places[n + 1] - gap)
    return places
