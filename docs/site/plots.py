# SPDX-License-Identifier: Apache-2.0
"""Draw docs/bandwidth.svg, the README's picture, from the first table in docs/performance.md.

python docs/site/bandwidth.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
LIBRARIES = ("libddl", "Open MPI", "MPICH", "Intel MPI", "Gloo")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def quantity(text: str) -> float:
    """Return the number in "64 KiB" or "8.69 us"."""
    number, unit = text.split()
    return float(number) * UNITS[unit]


def table() -> dict[str, list[tuple[float, float]]]:
    """Return bytes and gigabytes per second, for each library."""
    text = (DOCS / "performance.md").read_text()
    found = re.search(r"^\| bytes \| libddl.*?\n\n", text, re.DOTALL | re.MULTILINE)
    assert found
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in found[0].strip().split("\n")]
    out: dict[str, list[tuple[float, float]]] = {}
    for name in LIBRARIES:
        column = rows[0].index(name)
        sizes = [(quantity(row[0]), quantity(row[column])) for row in rows[2:] if row[column]]
        out[name] = [(size, size / time / 1e9) for size, time in sizes]
    return out


def draw(axes: Any) -> None:
    axes.set_facecolor("white")
    for name, points in table().items():
        ours = name == "libddl"
        axes.plot(*zip(*points, strict=True), "o-", ms=3, lw=2.4 if ours else 1.3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2**n for n in range(4, 29, 4)])
    axes.set_xticklabels(["16 B", "256 B", "4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB"])
    axes.set_yscale("log")
    axes.set_ylabel("GB/s")
    axes.set_title("All-reduce of f32, 2 ranks on one host: bytes / time", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def main() -> None:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "libddl"
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    draw(figure.subplots())
    figure.savefig(DOCS / "bandwidth.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
