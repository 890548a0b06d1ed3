# SPDX-License-Identifier: Apache-2.0
"""The logs of jobs, as the interfaces read them.

The service has a folder for each job beside its store, with `job.log` for what happened to the job
and `workerN.log` for what each worker wrote. No part of a path comes from a job's own text, and no
folder or file on the way is followed as a link. So a log cannot lie elsewhere.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from ddl_scheduler.base.text import printable

CHUNK = 1 << 16  # bytes of one answer
NAME = re.compile(r"job|worker[0-9]{1,6}")


def log_folder(store: Path, job: int) -> Path:
    """Of one job of the service with this store."""
    return Path(f"{store}.jobs", str(int(job)))


def log_names(store: Path, job: int) -> list[str]:
    """Those that there are, that of the job first."""
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
    """Lines from an offset on, harmless to print, and the offset of what follows. No lines if there
    are none, or no log. An offset beyond the end is the end's. Raises OSError.

    ended   whether nothing more will come, and so a line without an end is whole
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is the name of no log")
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
            raise PermissionError(f"{name}.log of job {job} is no file")
        offset = min(offset, found.st_size)
        opened.seek(offset)
        data = opened.read(CHUNK)
    whole = len(data) < CHUNK and ended
    end = len(data) if whole else data.rfind(b"\n") + 1
    if not end and len(data) == CHUNK:  # a line that is too long for an answer
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
