# SPDX-License-Identifier: Apache-2.0
"""What `ddl elastic resume` has to know of a job whose coordinator is gone.

It lies in a folder that only this user can enter, as a file of mode 0600, from the start of the job
to its end; also when the user logs out, or the machine starts again, meanwhile.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddl_elastic.base import environment
from ddl_elastic.coordinator.worker_registry import Size
from ddl_elastic.engines import Program


@dataclass(frozen=True)
class JobFile:
    """address: where agents dial in."""

    address: tuple[str, int]
    token: str
    job: str
    secret: str
    threads: int
    program: Program
    size: Size

    def write(self, name: str) -> None:
        """Raises OSError."""
        path = _path(name)
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


def read(name: str) -> JobFile:
    """Raises OSError, and ValueError for what is no such file."""
    path = _path(name)
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        host, port = found.pop("address")
        order, size = Program(**found.pop("program")), Size(**found.pop("size"))
        return JobFile(address=(host, port), program=order, size=size, **found)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None


def remove(name: str) -> None:
    """The job has ended."""
    _path(name).unlink(missing_ok=True)


def names() -> list[str]:
    """Of the jobs that run, or have lost their coordinator."""
    return sorted(path.stem for path in environment.state_folder().glob("*.job"))


def _path(name: str) -> Path:
    return environment.state_folder() / f"{name}.job"
