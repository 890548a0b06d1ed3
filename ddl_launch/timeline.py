# SPDX-License-Identifier: Apache-2.0
"""`ddlrun --timeline DIR`: the operations of all ranks in one file."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

from ddl_launch.commands import trace
from ddl_launch.errors import USAGE, LaunchError

_FILE = "timeline.json"


def prepare(folder: Path) -> None:
    """Create the folder, and remove the files of an earlier run. Raises LaunchError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(trace.TraceError):  # the folder is empty
            for file in trace.files([folder]):
                file.unlink()
    except OSError as error:
        raise LaunchError(USAGE, f"--timeline {folder}: {error.strerror}") from None


def join(folder: Path, size: int) -> str:
    """Merge the files of `size` ranks into one timeline. Return a message about it."""
    path = folder / _FILE
    try:
        records = trace.read(trace.files([folder]))
        path.write_text(json.dumps(trace.merge(records)))
    except trace.TraceError as error:
        return f"no timeline: {error}. A comm of one rank has none"
    except OSError as error:
        return f"no timeline: {path}: {error.strerror}"
    operations = sum(len(record.events) for record in records)
    missing = sum(record.missing for record in records)
    ranks = max(Counter(record.comm for record in records).values())
    return (
        f"wrote {operations} operations to {path}; open it at ui.perfetto.dev"
        + (f" ({missing} are missing, because they followed each other too fast)" * bool(missing))
        + _describe_absent(folder, path, ranks, size) * (ranks < size)
    )


def _describe_absent(folder: Path, path: Path, ranks: int, size: int) -> str:
    return (
        f". It has only {ranks} of {size} ranks. If the hosts do not share {folder}, copy the files"
        f" ddl-*.json of the other hosts there, and run: ddl trace {folder} -o {path}"
    )
