# SPDX-License-Identifier: Apache-2.0
"""A job's timeline for Chrome's tracing and Perfetto: the operations of all ranks, and recoveries.

The flight recorder of libddl holds the last 1024 operations of a comm. libddl writes them to a file
when a comm fails, and each worker does so at its end. A process that is killed writes no file.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ddl_core import Comm
from ddl_launch.commands import trace

_JOB = -1  # the process id of the row for events


def make_folder(wanted: Path | str | None) -> Path | None:
    """Create a temporary folder for the workers' files. Return None if none was requested."""
    return Path(tempfile.mkdtemp(prefix="ddl-traces-")) if wanted else None


def save(folder: Path, comm: Comm, number: int) -> None:
    """Write the operations of the process's comm with this number, which has not failed."""
    # The name has libddl's form for failed comms, with `number` in place of the comm's number.
    name = f"ddl-{(1 << 64) - 1 - number:016x}-rank{comm.rank}.json"
    (folder / name).write_text(json.dumps(comm.trace()))


def write(path: Path, folder: Path, events: Sequence[dict[str, Any]]) -> None:
    """Write a timeline of all files in a folder and the job's events, and remove the folder. Raises
    OSError."""
    records = trace.read([each for each in sorted(folder.glob("*.json")) if _is_whole(each)])
    merged = trace.merge(records)
    merged["traceEvents"] += marks(events)
    path.write_text(json.dumps(merged))
    shutil.rmtree(folder, ignore_errors=True)


def _is_whole(path: Path) -> bool:
    """Return False for the file of a process that was killed while it wrote the file."""
    try:
        return bool(trace.read([path]))
    except trace.TraceError:
        return False


def marks(events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the timeline entries of the job's row of events. Recoveries have a duration, other
    events do not. Pure."""
    yield {"name": "process_name", "ph": "M", "pid": _JOB, "tid": 0, "args": {"name": "job"}}
    for event in events:
        at = {"pid": _JOB, "tid": 0, "args": event, "ts": event["time"] * 1e6}
        if event["kind"] == "recovered":
            length = event["seconds"] * 1e6
            name = f"recovery in step {event['step']}"
            yield {**at, "name": name, "ph": "X", "ts": at["ts"] - length, "dur": length}
        elif event["kind"] != "died":
            yield {**at, "name": event["text"], "ph": "i", "s": "g"}
        else:
            name = f"rank {event['member']} died ({event['cause']})"
            yield {**at, "name": name, "ph": "i", "s": "g"}
