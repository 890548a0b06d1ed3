# SPDX-License-Identifier: Apache-2.0
"""What `ddl serve` keeps of a job beside the store: its lock, its socket, its logs, how it ended.

The lock is held by every process of the job, as each inherits it by fork. So whoever gets it knows
that the job does not run, and nobody can start it a second time. The kernel lets it go when the
last of them has ended, however that comes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddl_scheduler.base.store import JobRecord, Store


class JobFolder:
    """Of one job, below the store's file."""

    def __init__(self, store: Path, job: int) -> None:
        self.path = Path(f"{store}.jobs", str(job))

    def make(self) -> None:
        """Only this user can enter it. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)

    @property
    def events(self) -> Path:
        """What has happened to the job, line by line."""
        return self.path / "job.log"

    def log(self, worker: int) -> Path:
        """What this worker has written."""
        return self.path / f"worker{worker}.log"

    def logs(self) -> list[Path]:
        """Of all workers there were."""
        found = self.path.glob("worker*.log")
        return sorted(found, key=lambda path: (len(path.name), path.name))

    @property
    def curve(self) -> Path:
        """What it has reported over time, see ddl_scheduler.web.curve."""
        return self.path / "curve.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Those of a job that names no other place."""
        return self.path / "checkpoints"

    def give_checkpoints(self, user: int, group: int) -> None:
        """The workers are this user's: they may write there, and read nothing else here. The folder
        is made and given away once, while nobody else can write to the one that it is in."""
        for folder in (self.path.parent, self.path):
            folder.chmod(0o711)
        with suppress(FileExistsError):
            self.checkpoints.mkdir(mode=0o700)
        if self.checkpoints.lstat().st_uid == os.geteuid():  # also if who made it was killed then
            os.chown(self.checkpoints, user, group, follow_symlinks=False)

    def has_checkpoint(self) -> bool:
        """Return whether the job can begin again where it was."""
        return any(self.checkpoints.rglob("steps-*.json"))

    def lock(self) -> int | None:
        """A descriptor that holds the lock; None if the job has processes."""
        held = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return None
        return held

    # A socket's path may be at most 107 bytes long, which that through a descriptor is.

    def listen(self) -> socket.socket:
        """Where the job is steered. To be called with the lock."""
        (self.path / "control").unlink(missing_ok=True)
        listener, folder = socket.socket(socket.AF_UNIX), os.open(self.path, os.O_PATH)
        try:
            listener.bind(f"/proc/self/fd/{folder}/control")
        finally:
            os.close(folder)
        listener.listen()
        return listener

    def connect(self) -> socket.socket:
        """Raises OSError if nobody listens."""
        connection, folder = socket.socket(socket.AF_UNIX), os.open(self.path, os.O_PATH)
        try:
            connection.connect(f"/proc/self/fd/{folder}/control")
        except OSError:
            connection.close()
            raise
        finally:
            os.close(folder)
        return connection

    def result(self) -> dict[str, Any]:
        """How the last run ended; {} if it was killed, or there was none."""
        with suppress(OSError, ValueError):
            found = json.loads((self.path / "result.json").read_text())
            return found if isinstance(found, dict) else {}
        return {}

    def result_write(self, result: Mapping[str, Any]) -> None:
        """All of it or nothing. Raises OSError."""
        new = self.path / "result.new"
        with new.open("w") as file:
            json.dump(result, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / "result.json")


def archive(store: Store) -> bool:
    """Move some of the oldest jobs that have ended from the store to a file of JSON lines beside
    it, if there are too many, and remove their folders. Returns whether there were some."""

    def write(records: Sequence[JobRecord]) -> None:
        with open(f"{store.path}.archive", "a", opener=_private) as file:
            file.writelines(json.dumps(asdict(each)) + "\n" for each in records)

    removed = store.archive(write)
    for job in removed:
        shutil.rmtree(JobFolder(store.path, job).path, ignore_errors=True)
    return bool(removed)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
