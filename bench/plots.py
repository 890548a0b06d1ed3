# SPDX-License-Identifier: Apache-2.0
"""Plots of results. Needs matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.cases import UsageError
from bench.results import Result
from ddl_launch.base.pictures import LIBRARIES, LIGHT, logarithmic, picture
from ddl_launch.base.quantities import show_bytes, show_rate

Lines = dict[str, list[tuple[float, float]]]  # bytes, and bytes per second

TITLES = {
    "gloo": "Gloo",
    "openmpi": "Open MPI",
    "openmpi_yield": "Open MPI yielding",
    "openmpi_ucx": "Open MPI over UCX",
    "mpich": "MPICH",
    "impi": "Intel MPI",
    "commux": "commux",
}
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
    drawn: dict[str, Lines] = {}
    for title, members in panels(results).items():
        lines = drawn.setdefault(title, {})
        for result, state in members:
            nbytes = result.case.bytes
            for row in result.rows:
                if row.state == state:
                    library = TITLES.get(row.candidate.library, row.candidate.library)
                    name = f"{library} {str(row.candidate).partition(' ')[2]}".strip()
                    lines.setdefault(name, []).append((nbytes, nbytes / row.p50))
            if state in result.limit:
                lines.setdefault("limit", []).append((nbytes, nbytes / result.limit[state]))
    draw(path, drawn)


def draw(path: Path, drawn: Mapping[str, Lines]) -> None:
    """Draw a panel for each title. The label of a line is its library, and its way, if any."""
    with picture(path, [3.0] * len(drawn)) as all_axes:
        for axes, (title, lines) in zip(all_axes, drawn.items(), strict=True):
            for label, points in sorted(lines.items()):
                library = next((name for name in LIBRARIES if label.startswith(name)), "")
                way = label.removeprefix(library).strip()
                axes.plot(
                    *zip(*sorted(points), strict=True),
                    marker=_MARKERS.get(way, "o"),
                    linestyle="--" if label == "limit" else ":" if way else "-",
                    linewidth=2.4 if label == "libddl" else 1.3,
                    color=LIBRARIES.get(library, LIGHT["ink"]),
                    label=label,
                )
            logarithmic(axes.xaxis, show_bytes, base=2)
            logarithmic(axes.yaxis, show_rate)
            axes.set_title(title)
