# SPDX-License-Identifier: Apache-2.0
"""Tables of results."""

from collections.abc import Collection, Sequence

from tabulate import tabulate

from bench.machine import ALL_STATES
from bench.results import Result, Row
from ddl_launch.base.quantities import show_bytes, show_seconds

HEAD = ["size", "library", "p50", "p99", "alg GB/s", "bus GB/s", "x best other", "of limit", "n"]


def show_results(results: Sequence[Result], ours: Collection[str]) -> str:
    """Return a table for each operation, dtype, number of ranks and state of the machine, and
    notes."""
    parts = []
    groups: dict[tuple[str, str, str, int], list[Result]] = {}
    for result in results:
        case = result.case
        groups.setdefault((result.placement, case.operation, case.dtype, result.ranks), []).append(
            result
        )
    for (placement, operation, dtype, ranks), members in groups.items():
        for state in ALL_STATES:
            rows = [cells for r in members for cells in _rows(r, state, ours)]
            if rows:
                title = f"{operation} {dtype}, {ranks} ranks, {placement}, cores {state}"
                table = tabulate(
                    rows, HEAD, tablefmt="github", disable_numparse=True, colalign=_ALIGN
                )
                parts.append(f"{title}\n\n{table}")
    notes = sorted({note for r in results for note in r.notes})
    changed, disturbed = sum(r.changed for r in results), sum(r.disturbed for r in results)
    if changed:
        notes.append(f"{changed} turns dropped: the machine changed its state during them")
    if any(r.busy for r in results):
        notes.append(
            "* another program ran on the machine during these turns: only the ratios are reliable"
        )
    if (slowed := max((r.slowed for r in results), default=0.0)) > 0.1:
        notes.append(
            "the host let other guests use the cores' other threads before up to"
            f" {100 * slowed:.0f} % of a case's turns"
        )
    if disturbed:
        notes.append(f"{disturbed} turns dropped: another program ran during them")
    return "\n\n".join([*parts, "\n".join(notes)] if notes else parts)


_ALIGN = ("right", "left", *["right"] * 7)


def _rows(result: Result, state: str, ours: Collection[str]) -> list[list[str]]:
    case, cells = result.case, []
    size = show_bytes(case.bytes) + " *" * result.busy
    limit = result.limit.get(state)
    for row in sorted((r for r in result.rows if r.state == state), key=lambda r: r.p50):
        rate = case.bytes / row.p50 / 1e9
        cells.append(
            [
                size,
                str(row.candidate),
                show_seconds(row.p50),
                show_seconds(row.p99),
                _rate(rate),
                _rate(rate * case.bus_factor(result.ranks)),
                _ratio(result, row, ours),
                "" if (part := result.of_limit(row)) is None else f"{100 * part:.0f} %",
                str(row.iterations),
            ]
        )
    if limit and cells:
        rate = case.bytes / limit / 1e9
        shown = [_rate(rate), _rate(rate * case.bus_factor(result.ranks))]
        cells.append([size, "(limit)", show_seconds(limit), "", *shown, "", "", ""])
    return cells


def _rate(rate: float) -> str:
    return f"{rate:.3g}"


def _ratio(result: Result, row: Row, ours: Collection[str]) -> str:
    if row.candidate.library not in ours:
        return ""
    way = "" if row.candidate.way == "named" else row.candidate.way
    times = result.against_others(row, ours, way)
    return "" if times is None else f"{times:.2f}"
