# SPDX-License-Identifier: Apache-2.0
"""The ranks of a case, and their reports."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEAD_S, SILENT_S, LIMIT_S = 0.2, 4.0, 45.0
EPEER = -40


class Wrong(Exception):
    """A case failed; the text says why."""


@dataclass(frozen=True)
class Event:
    at: int  # nanoseconds of the monotonic clock
    word: str
    rest: str


@dataclass
class Case:
    fault: str
    link: str
    size: int
    operation: str
    seed: int

    def __str__(self) -> str:
        return f"{self.fault}, {self.operation}, {self.link}, {self.size} ranks"


@dataclass
class Outcome:
    case: Case
    seconds: list[float] = field(default_factory=list)  # of each survivor
    wrong: str = ""
    allowance: float = 0.0  # seconds beyond the bound that the machine's own delays excuse


class Build:
    """The programs, in a Release build of the library."""

    def __init__(self) -> None:
        tree = Path(os.environ.get("CHAOS_BUILD", ROOT / "build" / "release"))
        if "CHAOS_BUILD" not in os.environ:
            settings: list[str] = [
                "-DCMAKE_BUILD_TYPE=Release",
                "-DDDL_TESTS=ON",
                "--log-level=WARNING",
            ]
            subprocess.run(
                ["cmake", "-S", str(ROOT / "libddl"), "-B", str(tree), *settings], check=True
            )
            command = ["cmake", "--build", str(tree), "--parallel", str(os.cpu_count() or 1)]
            subprocess.run(
                [*command, "--target", "chaos_rank", "--target", "chaos_load"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        self.rank, self.load = str(tree / "tests/chaos_rank"), str(tree / "tests/chaos_load")


_ports = itertools.count(10000 + os.getpid() * 37 % 15000)


def free_port() -> int:
    """Return a port below those that the system gives to outgoing connections."""
    while True:
        port = next(_ports)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


class Job:
    """Some ranks, each with the lines that it prints. They are killed at the end in any case."""

    def __init__(self, build: Build, case: Case) -> None:
        self.build, self.case = build, case
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.events: dict[int, list[Event]] = {}
        self.workers: list[int] = []
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self.hung = False

    def start(
        self, rank: int, *settings: str, wrap: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> None:
        c = self.case
        command = [self.build.rank, self.url, str(rank), str(c.size), c.link, c.operation]
        self.events[rank] = []
        self.processes[rank] = subprocess.Popen(
            [*wrap, *command, *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "DDL_LOG": "off", **(env or {})},
        )

    def start_all(self, *settings: str) -> None:
        for rank in range(self.case.size):
            self.start(rank, *settings)

    def read(self, rank: int) -> Event | None:
        """Return the next line of a rank; None at its end."""
        out = self.processes[rank].stdout
        assert out
        line = out.readline()
        if not line:
            return None
        at, word, *rest = line.rstrip("\n").split(" ", 2)
        event = Event(int(at), word, rest[0] if rest else "")
        if word == "worker":
            self.workers.append(int(event.rest))
        self.events[rank].append(event)
        return event

    def await_word(self, word: str, ranks: Sequence[int] | None = None) -> None:
        for rank in range(self.case.size) if ranks is None else ranks:
            while (event := self.read(rank)) and event.word != word:
                pass
            if not event:
                raise Wrong(f'rank {rank} ended before "{word}": {self.words_of(rank)}')

    def words_of(self, rank: int) -> str:
        process = self.processes[rank]
        err = process.stderr.read() if process.stderr and process.poll() is not None else ""
        said = "; ".join(f"{e.word} {e.rest}" for e in self.events[rank])
        return f"said [{said}], ended with {process.poll()} {err.strip()}"

    def signal(self, rank: int, number: int) -> int:
        """Send the signal, and return the time."""
        at = time.monotonic_ns()
        os.kill(self.processes[rank].pid, number)
        return at

    def find(self, rank: int, word: str) -> Event | None:
        return next((e for e in self.events[rank] if e.word == word), None)

    def finish(self, ranks: Sequence[int]) -> None:
        """Read the ranks' lines until they end, without an error."""
        for rank in ranks:
            while self.read(rank):
                pass
            if self.processes[rank].wait() and not self.hung:
                raise Wrong(f"rank {rank}: {self.words_of(rank)}")

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for pid in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Job:
        def give_up() -> None:
            self.hung = True
            self.end()

        self.timer = threading.Timer(LIMIT_S, give_up)
        self.timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()
        self.end()
        for process in self.processes.values():
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
        if self.hung:
            raise Wrong(f"hangs after {LIMIT_S:g} s") from None


class Probe:
    """Measures how late the machine wakes a sleeping process. Bounds are multiplied by `times`."""

    def __init__(self, build: Build, times: float = 1.0) -> None:
        self.times = times
        self.process = subprocess.Popen([build.load, "probe"], stdout=subprocess.PIPE, text=True)
        self.delays: list[tuple[int, int]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            at, delay = line.split()
            self.delays.append((int(at), int(delay)))

    def worst(self, begin: int, end: int) -> float:
        """Return the worst delay in seconds between these times."""
        late = [d for at, d in reversed(self.delays) if at >= begin and at - d <= end]
        return max(late, default=0) * 1e-9


def judge(
    job: Job,
    probe: Probe,
    began: int,
    dead: Sequence[int],
    bound: float,
    striking: float = 0.0,
) -> Outcome:
    """Check that all other ranks get the right error in time, and continue together. The fault
    itself took `striking` seconds from `began` on."""
    bound *= probe.times
    case, outcome = job.case, Outcome(job.case)
    others = [rank for rank in range(case.size) if rank not in dead]
    time.sleep(0.005)  # the probe's last output
    for rank in others:
        failed = job.find(rank, "failed")
        if not failed:
            raise Wrong(f"rank {rank} has no error: {job.words_of(rank)}")
        status, text = failed.rest.split(" ", 1)
        if int(status) != EPEER:
            raise Wrong(f"rank {rank} got {failed.rest}")
        if not any(f"rank {lost} on " in text for lost in dead):
            raise Wrong(f"rank {rank} blames none of {dead}: {text}")
        seconds = (failed.at - began) * 1e-9
        if seconds > bound:
            overload = os.getloadavg()[0] / (os.cpu_count() or 1)
            excuse = bound * (overload - 1) if overload > 2 else 0.0
            excess, excuse = seconds - bound, max(excuse, 3 * probe.worst(began, failed.at))
            excuse += striking
            if excess > excuse:
                raise Wrong(f"rank {rank} knew it after {seconds:.3f} s, bound {bound} s: {text}")
            outcome.allowance = max(outcome.allowance, excess)
        outcome.seconds.append(seconds)
        shrunk = job.find(rank, "shrunk")
        if not shrunk or int(shrunk.rest) != len(others):
            raise Wrong(f"rank {rank} does not go on with {len(others)}: {job.words_of(rank)}")
    return outcome
