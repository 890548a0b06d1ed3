# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of "How it works" as SVGs whose lines have the color of the page's text."""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
from ddl_launch.base.pictures import SERIES

ARROW = (
    '<defs><marker id="{id}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
)
COLORS = SERIES  # dark enough for white text, on light and dark pages


def write(folder: Path) -> None:
    """Write ring.svg, levels.svg and pipeline.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in (("ring", ring()), ("levels", levels()), ("pipeline", pipeline())):
        (folder / f"{name}.svg").write_text(picture)


def ring(ranks: int = 4) -> str:
    """Draw ranks in a circle, each of which sends a block to the next."""
    out = [ARROW.format(id="arrow-of-ring")]
    places = [
        (200 + 95 * math.sin(2 * math.pi * r / ranks), 125 - 85 * math.cos(2 * math.pi * r / ranks))
        for r in range(ranks)
    ]
    for r, (x, y) in enumerate(places):
        to_x, to_y = places[(r + 1) % ranks]
        length = math.hypot(to_x - x, to_y - y)
        dx, dy = (to_x - x) / length * 26, (to_y - y) / length * 26
        out.append(_arrow(x + dx, y + dy, to_x - dx, to_y - dy, "arrow-of-ring"))
        out.append(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="22" fill="{COLORS[r % 4]}"/>'
            + _text(x, y + 5, f"rank {r}", "#fff", 11)
        )
        middle_x, middle_y = (x + to_x) / 2 - 200, (y + to_y) / 2 - 125
        out.append(_text(200 + 1.75 * middle_x, 129 + 1.45 * middle_y, f"block {r}"))
    return _svg(400, 250, "Each rank of a ring sends a block to the next rank", out)


def levels(hosts: int = 3, ranks: int = 2) -> str:
    """Draw the three phases of a hierarchical all-reduce. Blocks go both ways in each."""
    out = [ARROW.format(id="arrow-of-levels")]
    for h in range(hosts):
        left = 10 + 130 * h
        out.append(
            f'<rect x="{left}" y="30" width="110" height="132" rx="6" fill="none"'
            ' stroke="currentColor"/>' + _text(left + 55, 22, f"host h{h + 1}")
        )
        for r in range(ranks):
            y = 62 + 68 * r
            out.append(
                f'<rect x="{left + 22}" y="{y - 16}" width="66" height="32" rx="5"'
                f' fill="{COLORS[r]}"/>' + _text(left + 55, y + 4, f"rank {h * ranks + r}", "#fff")
            )
            if h + 1 < hosts:
                out.append(_arrow(left + 90, y, left + 150, y, "arrow-of-levels", both=True))
                out.append(_text(left + 120, y - 6, "2"))
        out.append(_arrow(left + 55, 80, left + 55, 112, "arrow-of-levels", both=True))
        out.append(_text(left + 75, 100, "1, 3"))
    for n, words in enumerate(
        (
            "1  within a host: each rank sums its half",
            "2  between hosts: equal halves, in parallel",
            "3  within a host: each rank gathers both halves",
        )
    ):
        out.append(_text(10, 187 + 20 * n, words, anchor="start"))
    return _svg(400, 237, "Ranks first sum within a host, then between hosts", out)


def pipeline(chunks: int = 4) -> str:
    """Draw the steps of a buffer's chunks over time."""
    out = []
    for row, words in enumerate(("sum in the host", "send to the next host", "spread in the host")):
        y = 20 + 42 * row
        out.append(_text(5, y + 20, words, anchor="start"))
        for chunk in range(chunks):
            x = 145 + 41 * (chunk + row)
            out.append(
                f'<rect x="{x}" y="{y}" width="38" height="30" rx="4" fill="{COLORS[chunk]}"/>'
                + _text(x + 19, y + 20, str(chunk + 1), "#fff")
            )
    out.append(_text(395, 160, "time →", anchor="end"))
    return _svg(400, 170, "Chunks of a buffer are at different stages at the same time", out)


def _svg(width: int, height: int, title: str, parts: list[str]) -> str:
    return (
        f'<svg role="img" aria-label="{title}" viewBox="0 0 {width} {height}" style="max-width:'
        f'30rem;width:100%;font-family:sans-serif"><title>{title}</title>{"".join(parts)}</svg>\n'
    )


def _text(
    x: float,
    y: float,
    words: str,
    fill: str = "currentColor",
    size: int = 12,
    anchor: str = "middle",
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{fill}" font-size="{size}"'
        f' text-anchor="{anchor}">{words}</text>'
    )


def _arrow(x: float, y: float, to_x: float, to_y: float, marker: str, both: bool = False) -> str:
    start = f' marker-start="url(#{marker})"' * both
    return (
        f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{to_x:.0f}" y2="{to_y:.0f}" stroke="currentColor"'
        f' stroke-width="1.5" marker-end="url(#{marker})"{start}/>'
    )
