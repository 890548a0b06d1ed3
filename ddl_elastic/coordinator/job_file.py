# SPDX-License-Identifier: Apache-2.0
"""The job file, from which `ddl elastic resume` replaces the lost coordinator of a job.

The file has mode 0600 and is in a folder that only this user can enter. It exists from the start to
the end of the job, even if the user logs out or the machine reboots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddl_elastic.base import environment
from ddl_elastic.coordinator.worker_registry import Size
from ddl_elastic.engines import Program


@dataclass(frozen=True)
class JobFile:
    """The contents of a job file.

    address  host and port at which agents connect
    barred   hosts on which an audit has found a wrong worker
    """

    address: tuple[str, int]
    token: str
    job: str
    secret: str
    threads: int
    program: Program
    size: Size
    barred: Sequence[str] = ()

    def write(self, name: str) -> None:
        """Write the file of the job `name` atomically. Raises OSError."""
        path = _path(name)
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


def read(name: str) -> JobFile:
    """Read the file of the job `name`. Raises OSError, and ValueError for invalid contents."""
    path = _path(name)
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        host, port = found.pop("address")
        order, size = Program(**found.pop("program")), Size(**found.pop("size"))
        return JobFile(address=(host, port), program=order, size=size, **found)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None


def remove(name: str) -> None:
    """Remove the file of the job `name`, because the job has ended."""
    _path(name).unlink(missing_ok=True)


def names() -> list[str]:
    """Return the names of jobs that are running or have lost their coordinator."""
    return sorted(path.stem for path in environment.state_folder().glob("*.job"))


def _path(name: str) -> Path:
    return environment.state_folder() / f"{name}.job"
