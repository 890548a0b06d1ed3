# SPDX-License-Identifier: Apache-2.0
"""The ranks of one library. They stay alive over the whole run, and sleep except in their turn."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.environments import cache_folder
from bench.libraries import Library, Placement

START_LIMIT = 60.0  # seconds
ANSWER_LIMIT = 120.0


class WorkerError(Exception):
    """A failed request to a library. The message says why."""


class WorkerGroup:
    """The worker processes of one library, one for each rank, controlled through a Unix socket.

    `alive` is False once a worker has died or failed to answer; the group is then unusable.
    `timeout` is the number of seconds within which a worker must answer a command.
    """

    def __init__(
        self, library: Library, placement: Placement, timeout: float = ANSWER_LIMIT
    ) -> None:
        self.library, self.placement, self.timeout = library, placement, timeout
        self.size = sum(placement.hosts)
        self.version = ""
        self.alive = False
        self._folder = tempfile.TemporaryDirectory(prefix="ddl-bench-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._streams: list[Any] = []
        logs = cache_folder() / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / f"{library.name}.log"

    def start(self) -> None:
        path = str(Path(self._folder.name) / "control")
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(path)
            listener.listen(self.size)
            for spec in self.library.process_specs(self.placement, path):
                process = subprocess.Popen(
                    spec.command,
                    env={**_clean(os.environ), **spec.env},
                    cwd=self._folder.name,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=os.setpgrp,  # as ddlrun does, for every library
                )
                self._processes.append(process)
            ranks: dict[int, Any] = {}
            hosts: dict[str, int] = {}
            deadline = time.monotonic() + START_LIMIT
            listener.settimeout(0.2)
            while len(ranks) < self.size:
                if any(p.poll() not in (None, 0) for p in self._processes):
                    raise self._failed("did not start")
                if time.monotonic() > deadline:
                    raise self._failed(f"did not start within {START_LIMIT:.0f} s")
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                connection.settimeout(self.timeout)
                stream = connection.makefile("rw")
                connection.close()  # the stream keeps the socket open
                hello = json.loads(stream.readline())
                ranks[hello["rank"]] = stream
                hosts[hello["host"]] = hosts.get(hello["host"], 0) + 1
                self.version = hello["version"]
                if hello["size"] != self.size:
                    raise self._failed(f"started as {hello['size']} ranks, not {self.size}")
        if sorted(hosts.values()) != sorted(self.placement.hosts):
            raise self._failed(
                f"put {list(hosts.values())} ranks on the hosts; must be {self.placement.hosts}"
            )
        self._streams = [ranks[r] for r in range(self.size)]
        self.alive = True

    def ask(self, **command: Any) -> list[dict[str, Any]]:
        """Send a command to all ranks, and return their answers, by rank.

        Raises WorkerError if a rank reports an error, has died or does not answer. In the latter
        two cases the group is no longer alive.
        """
        try:
            for stream in self._streams:
                stream.write(json.dumps(command) + "\n")
                stream.flush()
            lines = [stream.readline() for stream in self._streams]
        except OSError as error:
            self.alive = False
            raise self._failed(f"does not answer ({error})") from None
        if not all(lines):
            self.alive = False
            raise self._failed("died")
        answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for answer in answers:
            if "error" in answer:
                raise WorkerError(f"{self.library.name}: {answer['error']}")
        return answers

    def run(self, way: str, iterations: int, batch: int) -> tuple[list[float], float]:
        """Time `iterations` batches of calls.

        Returns the seconds of each iteration, per call, on the slowest rank, and the total seconds,
        including rewriting and checking the buffers. Those of a burst are the fastest rank's, which
        was the last to begin it: the others wait for its computing.
        """
        answers = self.ask(do="run", way=way, iterations=iterations, batch=batch)
        one = min if way == "burst" else max
        seconds = [one(of_ranks) for of_ranks in zip(*(a["seconds"] for a in answers), strict=True)]
        return seconds, max(a["wall"] for a in answers)

    def _failed(self, what: str) -> WorkerError:
        tail = self._log.read_text(errors="replace").splitlines()[-8:]
        return WorkerError("\n  ".join([f"{self.library.name} {what}", *tail]))

    def end(self) -> None:
        for stream in self._streams:
            with suppress(OSError):  # unsent data to a worker that died
                stream.close()
        deadline = time.monotonic() + (5 if self.alive else 0)
        for process in self._processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.05))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(3)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        self._folder.cleanup()


def _clean(env: Any) -> dict[str, str]:
    foreign = ("OMPI_", "PMI", "PRTE_", "I_MPI_", "HYDRA", "DDL_", "PYTHON", "VIRTUAL_ENV")
    return {k: v for k, v in env.items() if not k.startswith(foreign)}
