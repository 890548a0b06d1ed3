# SPDX-License-Identifier: Apache-2.0
"""`ddl trace --html`: writes a page with a lane for each rank, which needs only a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddl_launch.commands.trace import Record, TraceError, TraceEvent, blocking, missing
from ddl_launch.errors import CommandError

_OK, _FAILED, _LATE, _GONE = "#4c8bf5", "#d62728", "rgba(226, 115, 61, 0.25)", "rgba(0, 0, 0, 0)"
_SHORTEST = 1e-4  # share of the whole time; shorter operations would be invisible
_HEAD = """<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ddl trace</title>
<style>
@media (prefers-color-scheme: dark) {
  body { background: #131416; }
  .main-svg text { fill: #ccc !important; }
}
</style>
"""


def write(path: Path, records: Sequence[Record], size: int | None = None) -> None:
    """Write the page, including plotly's program. Mark the ranks that others waited for, and the
    ranks without a record. size: see `trace.summary`."""
    try:
        from plotly import graph_objects
    except ImportError:
        raise CommandError(
            "--html needs plotly, which is not installed: pip install 'libddl[plot]'"
        ) from None
    figure = _figure(graph_objects, records, size)
    try:
        page = figure.to_html(include_plotlyjs=True, full_html=True, config={"responsive": True})
        path.write_text(page.replace("<head>", f"<head>{_HEAD}", 1))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None


def _figure(graph_objects: Any, records: Sequence[Record], size: int | None) -> Any:
    one = len({r.comm for r in records}) == 1
    lanes = [r.name if one else f"{r.name}, comm {r.comm or '?'}" for r in records]
    starts = [e.start for r in records for e in r.events]
    begin = min(starts, default=0.0)
    end = max((e.start + e.length for r in records for e in r.events), default=begin + 1)
    late = _late(records)
    figure = graph_objects.Figure()
    for done, color, label in ((True, _OK, "succeeded"), (False, _FAILED, "failed")):
        found = [(n, e) for n, r in enumerate(records) for e in r.events if e.done == done]
        if found:
            figure.add_bar(
                orientation="h",
                name=label,
                marker_color=color,
                y=[lanes[n] for n, _ in found],
                base=[(e.start - begin) / 1e3 for _, e in found],
                x=[max(e.length, _SHORTEST * (end - begin)) / 1e3 for _, e in found],
                hovertext=[_about(e, begin) for _, e in found],
                hoverinfo="text",
            )
    for number, record in enumerate(records):
        if record in late:
            lasts = [e.start + e.length for e in record.events]
            figure.add_shape(
                type="rect",
                x0=(max(lasts, default=begin) - begin) / 1e3,
                x1=(end - begin) / 1e3,
                y0=number - 0.4,
                y1=number + 0.4,
                fillcolor=_LATE,
                line_width=0,
                label={"text": "the others wait for this rank"},
            )
    gone = missing(records, size) if one else []
    for number, rank in enumerate(gone, len(lanes)):
        lanes.append(f"rank {rank}")
        figure.add_shape(
            type="rect",
            x0=0,
            x1=(end - begin) / 1e3,
            y0=number - 0.4,
            y1=number + 0.4,
            fillcolor=_GONE,
            line={"color": _FAILED, "dash": "dot"},
            label={"text": "no file: killed, or not among those given"},
        )
    figure.update_layout(
        title=_title(records),
        barmode="overlay",
        bargap=0.2,
        height=200 + 40 * len(lanes),
        xaxis_title="ms since the first operation",
        yaxis={
            "categoryorder": "array",
            "categoryarray": lanes,
            "range": [len(lanes) - 0.5, -0.5],
        },
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        margin={"l": 10, "r": 10},
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(128, 128, 128, 0.12)",
        hovermode="closest",
    )
    return figure


def _late(records: Sequence[Record]) -> list[Record]:
    """Return the ranks that block others, of every comm."""
    found: list[Record] = []
    for comm in dict.fromkeys(r.comm for r in records):
        found += blocking([r for r in records if r.comm == comm])[1]
    return found


def _title(records: Sequence[Record]) -> str:
    late = _late(records)
    if not late:
        return f"{len(records)} ranks"
    first = blocking([r for r in records if r.comm == late[0].comm])[0]
    assert first is not None
    names = ", ".join(r.name for r in late)
    return f"waited for in {first.name} as operation {first.sequence}: {names}"


def _about(event: TraceEvent, begin: float) -> str:
    length = "short" if event.short else f"{event.length / 1e3:.3f} ms"
    return (
        f"{event.name}<br>operation {event.number}, at {(event.start - begin) / 1e3:.3f} ms"
        f"<br>{length}, {event.status}"
    )
