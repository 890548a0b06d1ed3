# SPDX-License-Identifier: Apache-2.0
"""Draw docs/bandwidth.svg and docs/collectives.svg from the tables in docs/performance.md, and
docs/training.svg from the losses that examples/train_digits.py wrote.

python docs/site/plots.py [LOSSES]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent))

from bench.plots import Lines, draw  # noqa: E402
from ddl_launch.base.pictures import LIBRARIES, LIGHT, logarithmic, picture  # noqa: E402
from ddl_launch.base.quantities import parse_bytes, parse_seconds  # noqa: E402

TABLES = {  # the panels of collectives.svg, and the text above each one's table
    "2 ranks, cores near": "The first table is for 2 ranks on near cores",
    "2 ranks, cores far": "The next table is for far cores",
    "4 ranks on 2 cores, near": "The next table is for 4 ranks on 2 near cores",
    "2 hosts of one rank each": "The next table is for 2 simulated hosts",
}


def table(text: str, before: str) -> Lines:
    """Return bytes and bytes per second for each column of times in the table below `before`."""
    found = re.search(re.escape(before) + r".*?^(\| bytes .*?)\n\n", text, re.DOTALL | re.MULTILINE)
    assert found, before
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in found[1].split("\n")]
    lines: Lines = {}
    for name in LIBRARIES:
        cells = [(row[0], row[rows[0].index(name)]) for row in rows[2:] if name in rows[0]]
        sizes = [(parse_bytes(size), parse_seconds(time)) for size, time in cells if time]
        if sizes:
            lines[name] = [(size, size / seconds) for size, seconds in sizes]
    return lines


def draw_training(losses: Path) -> None:
    """Draw the loss of each step, and the mean of the last 20 steps."""
    each = [json.loads(line)["loss"] for line in losses.read_text().splitlines()]
    steps = range(1, len(each) + 1)
    means = [sum(each[max(0, n - 20) : n]) / min(n, 20) for n in steps]
    with picture(DOCS / "training.svg", [2.8]) as (axes,):
        axes.plot(steps, each, color=LIGHT["gray"], lw=0.6, label="each step")
        axes.plot(steps, means, lw=2, label="mean of\n20 steps")
        logarithmic(axes.yaxis, "{:g}".format)
        axes.set_title("loss of train_digits.py, 2 processes")
        axes.set_xlabel("step")


def main() -> None:
    text = (DOCS / "performance.md").read_text()
    near, *_ = panels = {title: table(text, before) for title, before in TABLES.items()}
    shown = {name: points for name, points in panels[near].items() if name != "limit"}
    draw(DOCS / "bandwidth.svg", {"All-reduce of f32, 2 ranks on one host: bytes / time": shown})
    draw(DOCS / "collectives.svg", panels)
    if len(sys.argv) > 1:
        draw_training(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
