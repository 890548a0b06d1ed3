# SPDX-License-Identifier: Apache-2.0
"""The folder that `ddl serve` keeps for each job: its lock, its socket, its logs and its result.

Every process of the job inherits the lock by fork. A process that gets the lock therefore knows
that the job does not run, and no other process can start the job a second time. The kernel releases
the lock when the last process of the job has exited, for whatever reason.
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
    """The folder of one job, next to the store's file."""

    def __init__(self, store: Path, job: int) -> None:
        self.path = Path(f"{store}.jobs", str(job))

    def make(self) -> None:
        """Create the folder. Only this user can enter it. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)

    @property
    def events(self) -> Path:
        """The file that logs the job's events, one a line."""
        return self.path / "job.log"

    def log(self, worker: int) -> Path:
        """Return the file with the output of a worker."""
        return self.path / f"worker{worker}.log"

    def logs(self) -> list[Path]:
        """Return the log files of all workers that the job has had."""
        found = self.path.glob("worker*.log")
        return sorted(found, key=lambda path: (len(path.name), path.name))

    @property
    def curve(self) -> Path:
        """The file of the job's measurements over time, see ddl_scheduler.web.curve."""
        return self.path / "curve.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder for the checkpoints of a job that names no other folder."""
        return self.path / "checkpoints"

    def give_checkpoints(self, user: int, group: int) -> None:
        """Allow the workers of this user to write to the checkpoints' folder, and to read nothing
        else here. The folder is created and handed over once, while no other user can write to its
        parent."""
        for folder in (self.path.parent, self.path):
            folder.chmod(0o711)
        with suppress(FileExistsError):
            self.checkpoints.mkdir(mode=0o700)
        # True even if an earlier service was killed between the two calls.
        if self.checkpoints.lstat().st_uid == os.geteuid():
            os.chown(self.checkpoints, user, group, follow_symlinks=False)

    def has_checkpoint(self) -> bool:
        """Return True if the job can resume from a checkpoint."""
        return any(self.checkpoints.rglob("steps-*.json"))

    def lock(self) -> int | None:
        """Return a descriptor that holds the lock, or None if the job has processes."""
        held = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return None
        return held

    # A socket's path may have at most 107 bytes. A path through a descriptor is always short
    # enough.

    def listen(self) -> socket.socket:
        """Return the listening socket on which the job is controlled. The caller holds the lock."""
        (self.path / "control").unlink(missing_ok=True)
        listener, folder = socket.socket(socket.AF_UNIX), os.open(self.path, os.O_PATH)
        try:
            listener.bind(f"/proc/self/fd/{folder}/control")
        finally:
            os.close(folder)
        listener.listen()
        return listener

    def connect(self) -> socket.socket:
        """Connect to the job's control socket. Raises OSError if no process listens."""
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
        """Return the result of the last run, or {} if it was killed or there was none."""
        with suppress(OSError, ValueError):
            found = json.loads((self.path / "result.json").read_text())
            return found if isinstance(found, dict) else {}
        return {}

    def result_write(self, result: Mapping[str, Any]) -> None:
        """Replace the result file in one step, so that after a crash the file has either the old or
        the new result. Raises OSError."""
        new = self.path / "result.new"
        with new.open("w") as file:
            json.dump(result, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / "result.json")


def archive(store: Store) -> bool:
    """Move some of the oldest finished jobs from the store to a file of JSON lines next to it, and
    remove their folders, if the store has too many. Return whether any job was moved."""

    def write(records: Sequence[JobRecord]) -> None:
        with open(f"{store.path}.archive", "a", opener=_private) as file:
            file.writelines(json.dumps(asdict(each)) + "\n" for each in records)

    removed = store.archive(write)
    for job in removed:
        shutil.rmtree(JobFolder(store.path, job).path, ignore_errors=True)
    return bool(removed)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
