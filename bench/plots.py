# SPDX-License-Identifier: Apache-2.0
"""Plots of results. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from bench.cases import UsageError
from bench.results import Result
from ddl_launch.base.quantities import show_bytes

_COLORS = {"libddl": "C3", "gloo": "C0", "openmpi": "C1", "mpich": "C2", "impi": "C4"}
_MARKERS = {"from C": "v", "async": "x", "named": "+"}


def check_plot(path: Path) -> None:
    """Raise UsageError, before anything is measured, if the plot cannot be written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'libddl[plot]'") from None
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot {path}: the name of a plot must end in .png, .svg or .pdf")


def panels(results: Sequence[Result]) -> dict[str, list[tuple[Result, str]]]:
    """Return the panels by title. Each has the results of one operation, dtype, number of ranks and
    state.

    A panel is left out if a library has fewer than two sizes in it and thus no line, unless no
    panel would be left.
    """
    groups: dict[str, list[tuple[Result, str]]] = {}
    for r in results:
        for state in r.states():
            title = f"{r.case.operation} {r.case.dtype}, {r.ranks} ranks, {r.placement}, {state}"
            groups.setdefault(title, []).append((r, state))

    def has_lines(members: list[tuple[Result, str]]) -> bool:
        sizes: dict[str, set[int]] = {}
        for r, state in members:
            for row in r.rows:
                if not row.candidate.way:
                    seen = sizes.setdefault(row.candidate.library, set())
                    seen |= {r.case.bytes} if row.state == state else set()
        return all(len(seen) > 1 for seen in sizes.values())

    return {title: m for title, m in groups.items() if has_lines(m)} or groups


def plot(path: Path, results: Sequence[Result]) -> None:
    """Plot algorithm bandwidth against size, both logarithmic, with a line for each candidate."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = panels(results)
    columns = min(len(shown), 2) or 1
    rows = -(-len(shown) // columns) or 1
    figure = Figure(figsize=(8 * columns, 5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[len(shown) :]:
        axes.remove()
    for axes, (title, members) in zip(grid, shown.items(), strict=False):
        lines: dict[str, list[tuple[int, float]]] = {}
        for result, state in members:
            nbytes = result.case.bytes
            for row in result.rows:
                if row.state == state:
                    lines.setdefault(str(row.candidate), []).append((nbytes, nbytes / row.p50))
            if state in result.limit:
                lines.setdefault("limit", []).append((nbytes, nbytes / result.limit[state]))
        for label, points in sorted(lines.items()):
            points.sort()
            library, _, way = label.partition(" ")
            axes.plot(
                [p[0] for p in points],
                [p[1] / 1e9 for p in points],
                marker=_MARKERS.get(way, "o"),
                linestyle="--" if label == "limit" else ":" if way else "-",
                color=_COLORS.get(library, "black"),
                label=label,
            )
        sizes = sorted({r.case.bytes for r, _ in members})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes, [show_bytes(s) for s in sizes], rotation=45)
        axes.minorticks_off()
        axes.set_ylabel("algorithm bandwidth, GB/s")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    with rc_context({"svg.fonttype": "none"}):  # text as text takes a third of the file size
        figure.savefig(path)
