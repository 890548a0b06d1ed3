"""What runs one job of `ddl serve`: a process of its own, with the job's coordinator and engine.

The service steers it by a socket: it tells which slots the job may use, and hears which the job
still holds. When the service ends, the job goes on with the slots that it has, and the next service
connects to it. When the service is there, it takes the result; else that waits in a file.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddl_elastic import environment, program
from ddl_elastic.coordinator import Coordinator, JobFailed, Shows
from ddl_elastic.engines import AgentSpec
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.messages import Channel, Message
from ddl_elastic.scheduler.folder import JobFolder
from ddl_elastic.scheduler.granted import GrantedEngine
from ddl_elastic.scheduler.pace import Pace
from ddl_elastic.scheduler.requests import JobSpec, spec_read
from ddl_elastic.staff import Size, Worker

TELL_EVERY = 0.5  # seconds
LEAVE_LIMIT = 30.0  # seconds for a worker to leave by plan; then it is killed, and the others go on
PAUSE_LIMIT = 120.0  # seconds for a job to write its state and end
EVENTS = 100  # of a job that are told, the newest ones


@dataclass(frozen=True)
class Order:
    """What to run.

    store    the service's file
    spec     as it is in the store
    slots    the names of all slots of this host, by the engine's ids
    granted  those of them that the job begins with
    """

    store: str
    job: int
    spec: Mapping[str, Any]
    slots: Sequence[str]
    granted: Sequence[str]

    @property
    def job_folder(self) -> JobFolder:
        return JobFolder(Path(self.store), self.job)


class _Log(Shows):
    """Events go to a file. What the workers write is in files of their own."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def event(self, text: str) -> None:
        with suppress(OSError), self._path.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def run(order: Order, listener: socket.socket) -> None:
    """Run the job to its end, and write what has come of it."""
    folder = order.job_folder
    log, earlier = _Log(folder.events), folder.result()
    folder.result_write({**earlier, "state": "running"})  # which stays there if this is killed
    try:
        result = _run(order, spec_read(order.spec), listener, log, earlier)
    except JobFailed as error:
        result = {"state": "failed", "why": str(error), "code": error.code}
    except Exception as error:  # so that the job does not begin again
        result = {"state": "failed", "why": f"{type(error).__name__}: {error}", "code": 1}
    if why := result.get("why"):
        log.event(f"failed: {why}")
    folder.result_write({**earlier, **result})


def _run(
    order: Order, spec: JobSpec, listener: socket.socket, log: Shows, earlier: dict[str, Any]
) -> dict[str, Any]:
    os.chdir(spec.folder or order.job_folder.path)
    path, words, secret = program_path(spec), program_words(spec)[1:], secrets.token_hex()
    if not path.is_file():
        raise JobFailed(f"{path}: there is no such program")
    folder = order.job_folder
    environment.give_variables(spec.environment, folder.checkpoints)

    def work(agent: AgentSpec, channel: Channel) -> None:
        listener.close()
        program.work(agent, channel, path, words, secret, None)

    with LocalEngine(work, len(order.slots), spec.threads, folder.path) as local:
        engine = GrantedEngine(local, order.slots, order.granted)
        return Runner(engine, spec, listener, log, earlier).run()


def program_words(spec: JobSpec) -> Sequence[str]:
    """The program and its arguments, without a Python in front."""
    command = spec.command
    is_python = len(command) > 1 and Path(command[0]).name in ("python", "python3")
    return command[1:] if is_python else command


def program_path(spec: JobSpec) -> Path:
    """From the folder in which it runs, if it has one."""
    return Path(spec.folder or "", program_words(spec)[0])


class Runner:
    """One run of a job: from its start, or its newest checkpoint, to its end or a pause."""

    def __init__(
        self,
        engine: GrantedEngine,
        spec: JobSpec,
        listener: socket.socket,
        log: Shows,
        earlier: dict[str, Any],
    ) -> None:
        self._engine = engine
        size = Size(len(engine.granted), least=1, most=len(engine.slots()))
        self._pace = Pace()
        self._pace.load(earlier.get("measured", []))
        self._job = Coordinator(self._engine, size, spec.threads, log)
        self._listener = listener
        self._service: Channel | None = None
        self._told: dict[str, Any] = {}
        self._told_at = 0.0
        self._number = 0  # of the last grant
        self._leaving: dict[int, float] = {}  # when a worker was asked to leave, by member
        self._stops = ""  # paused or cancelled, once that is asked for
        self._kill_at = float("inf")

    def run(self) -> dict[str, Any]:
        """The result."""
        result: dict[str, Any] = {"state": "done"}
        try:
            self._job.run(self._wait_for_end)
        except JobFailed as error:
            result = {"state": "failed", "why": str(error) or self._ends(), "code": error.code}
        if self._stops and (result["state"] == "failed" or not self._job.report().get("hash")):
            result = {"state": self._stops}
        told = self._describe()
        return {**result, **{name: told[name] for name in ("report", "measured", "logical")}}

    def _wait_for_end(self) -> None:
        while self._job.alive():
            self._job.wait()
            self._hear()
            self._steer()
            self._tell()
        program.wait_for_end(self._job)

    def _ends(self) -> str:
        """Of workers that have not joined."""
        ended = [worker for worker in self._job.workers if worker.code]
        return "; ".join(f"{worker.name} has ended: {worker.cause}" for worker in ended)

    # ---- the service ----

    def _hear(self) -> None:
        waits_for: list[Any] = [self._listener, *([self._service] if self._service else [])]
        for one in select.select(waits_for, [], [], 0)[0]:
            if one is self._listener:
                connection, _ = self._listener.accept()
                if self._service:
                    self._service.close()
                self._service, self._told = Channel(connection), {}
                return
            try:
                for message in one.poll():
                    self._take(message)
            except (EOFError, ValueError):  # the service has ended; the job goes on
                one.close()
                self._service = None

    def _take(self, message: Message) -> None:
        if message.kind == "grant":
            if not self._stops:
                self._grant(**message.fields)
        elif message.kind == "pause":
            self._stop("paused", PAUSE_LIMIT)
        elif message.kind == "cancel":
            self._stop("cancelled", 0.0)
        else:
            raise ValueError(f"a message {message.kind!r}")

    def _grant(self, number: int, slots: list[str]) -> None:
        self._number = number
        self._engine.granted = frozenset(slots)
        self._job.staff.resize(max(1, len(slots)))

    def _stop(self, how: str, limit: float) -> None:
        self._stops = how
        self._kill_at = min(self._kill_at, time.monotonic() + limit)
        self._job.staff.pause()

    def _describe(self) -> dict[str, Any]:
        report = self._job.report()
        report["events"] = report["events"][-EVENTS:]
        return {
            "number": self._number,
            "report": report,
            "held": self._engine.held if self._job.alive() else [],
            "measured": self._pace.measured(),
            "logical": self._job.staff.logical,
        }

    def _tell(self) -> None:
        now, report = time.monotonic(), self._job.report()
        running = [w for w in report["workers"].values() if w["state"] == "running"]
        self._pace.see(now, report["steps"], len(running))
        if self._service is None:
            return
        known = (self._told.get("number"), self._told.get("held"))
        if now < self._told_at + TELL_EVERY and known == (self._number, self._engine.held):
            return
        self._told, self._told_at = self._describe(), now
        with suppress(OSError):  # about to be noticed
            self._service.send("told", **self._told)

    # ---- the workers ----

    def _steer(self) -> None:
        """Those in slots that the job has to give back leave, and so do all when it stops."""
        now = time.monotonic()
        alive = self._job.alive()
        if now >= self._kill_at:
            for worker in alive:
                self._job.stop(worker, self._stops)
            return
        begun = any(worker.joined for worker in alive)
        for worker in alive:
            if self._may_stay(worker):
                continue
            asked = self._leaving.setdefault(worker.member, now)
            worker.leaves = True
            is_last = len(alive) == 1 and not self._stops
            if not is_last and (not worker.joined or not begun or now > asked + LEAVE_LIMIT):
                self._engine.stop(worker.handle, 0)
        if self._stops and not begun:
            self._kill_at = now

    def _may_stay(self, worker: Worker) -> bool:
        return self._engine.name(worker.handle.slot) in self._engine.granted
