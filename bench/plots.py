"""Results as a picture. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.cases import UsageError, show_bytes
from bench.results import Result

_COLORS = {"libddl": "C3", "gloo": "C0", "openmpi": "C1", "mpich": "C2", "impi": "C4"}
_MARKERS = {"from C": "v", "async": "x", "named": "+"}


def check_plot(path: Path) -> None:
    """UsageError, before anything is measured, when no picture could be written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'libddl[plot]'") from None
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot {path}: a picture's name ends in .png, .svg or .pdf")


def plot(path: Path, results: Sequence[Result]) -> None:
    """Algorithm bandwidth against size, both logarithmic: a line for each library, a panel for each
    operation, dtype, number of ranks and state of the machine."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: dict[str, list[tuple[Result, str]]] = {}
    for r in results:
        for state in r.states():
            title = f"{r.case.operation} {r.case.dtype}, {r.ranks} ranks, {r.scene}, {state}"
            panels.setdefault(title, []).append((r, state))
    lines_of = {t: m for t, m in panels.items() if len({r.case.bytes for r, _ in m}) > 1}
    panels = lines_of or panels  # a point is no line
    columns = min(len(panels), 2) or 1
    rows = -(-len(panels) // columns) or 1
    figure = Figure(figsize=(8 * columns, 5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[len(panels) :]:
        axes.remove()
    for axes, (title, members) in zip(grid, panels.items(), strict=False):
        lines: dict[str, list[tuple[int, float]]] = {}
        for result, state in members:
            nbytes = result.case.bytes
            for row in result.rows:
                if row.state == state:
                    lines.setdefault(str(row.contestant), []).append((nbytes, nbytes / row.p50))
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
    with rc_context({"svg.fonttype": "none"}):  # letters as letters: a third of the size
        figure.savefig(path)
