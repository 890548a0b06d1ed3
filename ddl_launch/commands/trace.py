# SPDX-License-Identifier: Apache-2.0
"""`ddl trace`: joins the ranks' flight records into one timeline, and summarizes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddl_launch.base.quantities import show_seconds
from ddl_launch.commands.tables import show
from ddl_launch.errors import CommandError

_NAME = re.compile(r"ddl-([0-9a-f]{16})-rank\d+\.json")  # named by comm/black_box.c
_LANES = ("by order", "by name", "message")
_SLOWEST = 5
_SUCCESS = "ok"


class TraceError(CommandError):
    """An error in a trace file. The message names the file and the problem."""


@dataclass(frozen=True)
class TraceEvent:
    """An operation of a rank. Times are in microseconds; `start` is a time of the system clock."""

    name: str
    lane: int
    start: float
    length: float
    number: int
    sequence: int | None  # the number among operations by order, equal on all members of the comm
    status: str
    short: bool  # `length` was not measured

    @property
    def done(self) -> bool:
        return self.status == _SUCCESS


@dataclass(frozen=True)
class Record:
    """The record of one rank and comm, with the events in the order of their starts."""

    path: Path
    comm: str  # "" if the file's name does not contain it
    rank: int
    name: str
    events: tuple[TraceEvent, ...]
    raw: tuple[dict[str, Any], ...]
    missing: int = 0  # operations of a timeline that followed each other too fast to be copied

    def last(self, lane: int | None = None) -> TraceEvent | None:
        found = [e for e in self.events if lane is None or e.lane == lane]
        return found[-1] if found else None


def files(given: Iterable[Path]) -> list[Path]:
    """Return the given files, and all records in the given folders. Raises TraceError for a folder
    without records."""
    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(p for p in path.iterdir() if _NAME.fullmatch(p.name))
        if not inside:
            raise TraceError(f"{path}: the folder contains no file ddl-COMM-rankN.json")
        found += inside
    return found


def read(paths: Sequence[Path]) -> list[Record]:
    """Read the records, sorted by comm and rank. Raises TraceError for a file that is not a record,
    and for two records of one rank and comm."""
    records = [_read(path) for path in paths]
    seen: dict[tuple[str, int], Path] = {}
    for record in records:
        before = seen.setdefault((record.comm, record.rank), record.path)
        if before is not record.path:
            raise TraceError(
                f"{record.path} and {before} are both traces of rank {record.rank}; omit one"
            )
    begun = {r.comm: min((e.start for e in r.events), default=0.0) for r in reversed(records)}
    return sorted(records, key=lambda r: (begun[r.comm], r.comm, r.rank))


def _read(path: Path) -> Record:
    try:
        text = path.read_text()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: {error}") from None
    try:
        value = _parse(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}: the file is not JSON, or is truncated: {error}") from None
    try:
        raw = value["traceEvents"]
        (head,) = (e for e in raw if e["ph"] == "M" and e["name"] == "process_name")
        events = [_event(e) for e in raw if e["ph"] == "X"]
        rank, name = int(head["pid"]), str(head["args"]["name"])
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(
            f"{path}: the file is not a trace of one rank of libddl ({type(error).__name__}:"
            f" {error})"
        ) from None
    comm = _NAME.fullmatch(path.name)
    events.sort(key=lambda e: e.number)
    kept = tuple(e for e in raw if e["ph"] == "X")
    missing = int(value.get("missing", 0))
    return Record(path, comm[1] if comm else "", rank, name, tuple(events), kept, missing)


def _parse(text: str) -> Any:
    """Parse a record. A killed process leaves a timeline without its end."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        try:
            return json.loads(text[: text.rfind("}}") + 2] + "]}")
        except json.JSONDecodeError:
            raise error from None


def _event(e: dict[str, Any]) -> TraceEvent:
    more = e["args"]
    return TraceEvent(
        str(e["name"]),
        int(e["tid"]),
        float(e["ts"]),
        float(e["dur"]),
        int(more["number"]),
        more.get("sequence"),
        str(more["status"]),
        bool(more.get("short", False)),
    )


def merge(records: Sequence[Record]) -> dict[str, Any]:
    """Merge the records into one trace with a process row for each. If there is one comm, process
    ids are the ranks."""
    one = len({r.comm for r in records}) == 1
    events: list[dict[str, Any]] = []
    for i, record in enumerate(records):
        pid = record.rank if one else i
        label = record.name if one else f"{record.name}, comm {record.comm or '?'}"
        events.append(_head("process_name", pid, 0, name=label))
        events.append(_head("process_sort_index", pid, 0, sort_index=i))
        for lane in sorted({e.lane for e in record.events}):
            name = _LANES[lane] if lane < len(_LANES) else str(lane)
            events.append(_head("thread_name", pid, lane, name=name))
        events += [{**e, "pid": pid} for e in record.raw]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _head(name: str, pid: int, tid: int, /, **args: object) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def summary(records: Sequence[Record], size: int | None = None) -> str:
    """Return a text that lists, for each comm, the last operation of each rank, the ranks that were
    waited for, and the slowest operations.

    size   the size of the comms. None means unknown: missing records of the last ranks are then
           not noticed
    """
    by_comm: dict[str, list[Record]] = {}
    for record in records:
        by_comm.setdefault(record.comm, []).append(record)
    parts = [_comm_summary(comm, found, size) for comm, found in by_comm.items()]
    return "\n\n".join(parts)


def _comm_summary(comm: str, records: Sequence[Record], size: int | None) -> str:
    highest = records[-1].rank + 1
    known = f"{size}" if size else f"at least {highest}"
    size = max(size or 0, highest)
    lines = [f"comm {comm or '?'}: {len(records)} of {known} ranks"]
    rows = [["rank", "last operation", "number", "ended with", "after"]]
    for record in records:
        last = record.last()
        if last is None:
            rows.append([record.name, "none", "-", "-", "-"])
            continue
        number = last.number if last.sequence is None else last.sequence
        rows.append([record.name, last.name, str(number), last.status, _length(last)])
    lines += [show(rows), *_waited_for(records, size)]
    lines += [
        f"{r.name}: {r.missing} operations are missing, because they followed each other too fast"
        for r in records
        if r.missing
    ]
    late = late_starts(records)
    if any(wait for _, wait in late.values()):
        rows = [["started last", "operations", "the others waited for it"]]
        rows += [[r.name, str(late[r.rank][0]), show_seconds(late[r.rank][1])] for r in records]
        lines += ["", show(rows)]
    slow = sorted(
        ((e, r) for r in records for e in r.events if e.done and not e.short),
        key=lambda pair: -pair[0].length,
    )[:_SLOWEST]
    if slow:
        rows = [["slowest", "on", "number", "time"]]
        rows += [[e.name, r.name, str(e.number), _length(e)] for e, r in slow]
        lines += ["", show(rows)]
    return "\n".join(lines)


def _length(event: TraceEvent) -> str:
    return "short" if event.short else show_seconds(event.length * 1e-6)


def blocking(records: Sequence[Record]) -> tuple[TraceEvent | None, list[Record]]:
    """Return a comm's first failed operation that is matched by order, and the ranks that had not
    begun it."""
    lasts = {r.rank: r.last(0) for r in records}
    failed = [e for e in lasts.values() if e and not e.done and e.sequence is not None]
    if not failed:
        return None, []
    first = min(failed, key=lambda e: e.sequence or 0)
    number = first.sequence or 0
    late = [r for r in records if not (last := lasts[r.rank]) or (last.sequence or 0) < number]
    return first, late


def late_starts(records: Sequence[Record]) -> dict[int, tuple[int, float]]:
    """Return two figures for each rank of one comm: the number of operations that it was the last
    rank to start, and the total time in seconds that the first rank waited for it. Only operations
    that are matched by order and are in all records count."""
    starts: dict[int, list[tuple[float, int]]] = {}
    for record in records:
        for event in record.events:
            if event.lane == 0 and event.sequence is not None:
                starts.setdefault(event.sequence, []).append((event.start, record.rank))
    found = {record.rank: (0, 0.0) for record in records}
    for begun in starts.values():
        if len(begun) == len(records) > 1:
            (first, _), (last, rank) = min(begun), max(begun)
            number, wait = found[rank]
            found[rank] = number + 1, wait + (last - first) * 1e-6
    return found


def missing(records: Sequence[Record], size: int | None) -> list[int]:
    """Return the ranks of one comm without a record. `size` is the number of ranks in the comm;
    None means up to the highest rank with a record."""
    here = {r.rank for r in records}
    return [
        rank for rank in range(max(size or 0, *(rank + 1 for rank in here), 0)) if rank not in here
    ]


def _waited_for(records: Sequence[Record], size: int) -> list[str]:
    """Describe the ranks that block the others, and the ranks without a record: killed processes
    write none."""
    lines = []
    first, late = blocking(records)
    if first and late:
        names = ", ".join(record.name for record in late)
        lines.append(f"waited for in {first.name} as operation {first.sequence}: {names}")
    gone = [str(rank) for rank in missing(records, size)]
    if gone:
        word = "ranks" if len(gone) > 1 else "rank"
        lines.append(f"no file of {word} {', '.join(gone)}: killed, or not among those given")
    return lines
