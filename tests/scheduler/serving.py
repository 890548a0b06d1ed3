# SPDX-License-Identifier: Apache-2.0
"""Functions for tests of `ddl serve`: a real service, and jobs that are submitted to its store."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from conftest import clean_environment

from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.base.store import JobRecord, Store

PROGRAM = Path(__file__).parent / "programs" / "served.py"
STEPS = ("--steps", 150)  # of the program
DDL = [sys.executable, "-m", "ddl_launch.commands"]
SLOT_MEMORY = 1 << 30  # bytes, as configured in the service
LIMIT = 120  # seconds, on a busy machine


def wait_for(condition: Callable[[], Any], what: str = "") -> Any:
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not so within {LIMIT} s: {what}"
        time.sleep(0.02)
    return found


class Serving:
    """`ddl serve` with its own store. Call `stop` or `kill`, and then `start` to restart it."""

    options: Sequence[object] = ()  # of the command

    def __init__(self, folder: Path, slots: int = 4) -> None:
        self.folder, self.path, self._slots = folder, folder / "jobs.db", slots
        self._keys = itertools.count()
        self.store = Store(self.path)
        self.store.tenant_put("t")
        self.start()

    def start(self) -> None:
        order: list[Any] = [
            *DDL,
            "serve",
            "--store",
            self.path,
            "--slots",
            str(self._slots),
            "--listen",
            "0",
        ]
        order += ["--slot-memory", str(SLOT_MEMORY), *self.options]
        with (self.folder / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                order, cwd=self.folder, env=clean_environment({}), stderr=log, stdout=log
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            for record in self.store.jobs("waiting", "running", "paused"):
                self.store.job_move(record.id, "cancelled", time.time())
            wait_for(lambda: self.process.poll() is not None or not self.store.intents())
            self.process.terminate()
        assert self.process.wait(LIMIT) == 0, (self.folder / "serve.log").read_text()
        self.store.close()

    def submit(self, *words: object, **spec: Any) -> int:
        command = [str(PROGRAM), *map(str, words)]
        spec = {"command": command, "logical": 12, "folder": str(self.folder), **spec}
        return self.store.job_submit("t", f"key{next(self._keys)}", spec, time.time())

    def record(self, job: int) -> JobRecord:
        return next(record for record in self.store.jobs() if record.id == job)

    def move(self, job: int, state: str) -> None:
        self.store.job_move(job, state, time.time())

    def wait(self, job: int, *states: str) -> JobRecord:
        wait_for(lambda: self.record(job).state in states, f"job {job} is {states}")
        return self.record(job)

    def wait_for_size(self, job: int, size: int) -> None:
        wait_for(
            lambda: len(self.store.slots().get(job, ())) == size and not self.store.intents(),
            f"job {job} has {size} slots",
        )

    def folder_of(self, job: int) -> JobFolder:
        return JobFolder(self.path, job)

    def written(self, job: int) -> str:
        return "".join(path.read_text() for path in self.folder_of(job).logs())

    def pids(self, job: int) -> list[int]:
        return [int(pid) for pid in re.findall(r"^pid (\d+)$", self.written(job), re.M)]

    def state(self, job: int) -> str:
        found = re.findall(r"^state (\w{64})$", self.written(job), re.M)
        assert len(found) == 1, self.written(job)
        return str(found[0])


def holders(path: Path) -> list[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(entry) == str(path):
                found.add(int(entry.parts[2]))
    return sorted(found)


def is_alive(pid: int) -> bool:
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return told.rpartition(")")[2].split()[0] != "Z"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
