# SPDX-License-Identifier: Apache-2.0
"""Read access to the logs of jobs, for the command line and the web.

The service has a folder for each job next to its store, with `job.log` for the job's events and
`workerN.log` for each worker's output. No part of a path comes from a job's own text, and symbolic
links are not followed, so these functions cannot read a file outside the folder.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from ddl_scheduler.base.text import printable

CHUNK = 1 << 16  # the most bytes that one call of log_read returns
NAME = re.compile(r"job|worker[0-9]{1,6}")


def log_folder(store: Path, job: int) -> Path:
    """Return the log folder of a job in the service with this store."""
    return Path(f"{store}.jobs", str(int(job)))


def log_names(store: Path, job: int) -> list[str]:
    """Return the names of the logs that exist, the job's own first."""
    try:
        folder = _open_folder(store, job)
    except FileNotFoundError:
        return []
    try:
        names = [name[:-4] for name in os.listdir(folder) if name.endswith(".log")]
    finally:
        os.close(folder)
    return sorted(
        (name for name in names if NAME.fullmatch(name)), key=lambda name: (len(name), name)
    )


def log_read(store: Path, job: int, name: str, offset: int, ended: bool) -> tuple[str, int]:
    """Return the lines from an offset on, and the offset after them. The text is safe to print.

    Returns no lines if there is no new line, or if the log does not exist. An offset beyond the end
    means the end. Raises OSError.

    ended   True if the log is complete, so that a last line without a line end also counts
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a log; use job or workerN")
    try:
        folder = _open_folder(store, job)
    except FileNotFoundError:
        return "", 0
    try:
        # A pipe would block the reader without O_NONBLOCK.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(f"{name}.log", flags, dir_fd=folder)
    except FileNotFoundError:
        return "", 0
    finally:
        os.close(folder)
    with os.fdopen(file, "rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{name}.log of job {job} is not a regular file")
        offset = min(offset, found.st_size)
        opened.seek(offset)
        data = opened.read(CHUNK)
    whole = len(data) < CHUNK and ended
    end = len(data) if whole else data.rfind(b"\n") + 1
    if not end and len(data) == CHUNK:  # a line that is longer than CHUNK
        end = CHUNK
    text = data[:end].decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return printable(text), offset + end


def _open_folder(store: Path, job: int) -> int:
    path = log_folder(store, job)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    above = os.open(path.parent, flags)
    try:
        return os.open(path.name, flags, dir_fd=above)
    finally:
        os.close(above)
