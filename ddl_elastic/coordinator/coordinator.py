# SPDX-License-Identifier: Apache-2.0
"""The coordinator of one job: starts the workers, connects them to a group, and monitors them.

No training step waits for the coordinator. It runs in the process that called `Job.train`, or in
`ddl elastic run`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from ddl_elastic.base import environment, protocol, timeline
from ddl_elastic.base.audits import EXIT_CODE
from ddl_elastic.base.messages import Message, pack
from ddl_elastic.base.states import WorkerState
from ddl_elastic.base.waiting import ready
from ddl_elastic.coordinator.quorum import QuorumArbiter
from ddl_elastic.coordinator.rate import Rate
from ddl_elastic.coordinator.recovery import OTHERS, CoordinatorRecovery, unknown
from ddl_elastic.coordinator.worker_registry import Size, Worker, WorkerRegistry
from ddl_elastic.engines import AgentSpec, Engine, Event, Handle
from ddl_elastic.frameworks.protocol import Digest

TICK = 0.05  # maximum seconds between two polls of the engine
PAUSE = 20e-6  # seconds per worker between two polls: polling 1000 workers takes some ms
OUTPUTS = 64  # workers whose output is read in one poll
CAUSE_LIMIT = 2.0  # seconds to wait for a dead worker's exit code before a recovery is logged
WRONG = "an audit has found that it computes wrongly"
HUNG = "hung: the other workers expelled it, and its agent killed it"


class JobFailed(RuntimeError):
    """The error for a job that no worker can continue, or whose workers have different final
    states. `code` is the exit code for a program that ends because of this error."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class EventListener:
    """A listener for the events of a job. This one ignores them; see progress.py for another."""

    def step(self, report: dict[str, Any]) -> None:
        """Handle the report of the job after a committed step."""

    def event(self, text: str) -> None:
        """Handle an event, such as a death or a resize. `text` describes it."""

    def output(self, text: str) -> None:
        """Handle a line of a worker's output."""


class Coordinator:
    """The coordinator of one job, whose workers run on an engine.

    returns  0 for a new job. Otherwise this coordinator replaces the lost one of a running job,
             and `returns` is the number of seconds in which the job's agents may reconnect
    """

    def __init__(
        self,
        engine: Engine,
        size: int | Size,
        threads: int,
        listener: EventListener,
        returns: float = 0.0,
    ) -> None:
        self._engine, self._threads, self._listener = engine, threads, listener
        self._state, self._began, self._ended = "running", time.monotonic(), 0.0
        self._training = protocol.TrainingBegun(0, 0, 0, 0.0)  # zeros until a worker reports it
        self._steps, self._loss, self._hash = 0, float("nan"), ""
        self._rate = Rate()
        self._events: list[dict[str, Any]] = []
        self._recoveries: list[tuple[float, dict[str, Any]]] = []  # times and fields, not logged
        self._dead: set[int] = set()  # members that other members have declared dead
        self._findings: set[tuple[Any, ...]] = set()  # audit results: step, share, bad members
        self._rollbacks: set[str] = set()  # texts of the rollbacks that were logged
        self._barred: set[str] = set()  # hosts on which an audit found wrong results
        self._write_barred: Callable[[Collection[str]], None] = lambda _: None
        self._stopped = ""  # the reason if an audit has stopped the job
        self.workers: list[Worker] = []
        self._quorum = QuorumArbiter(
            self.workers, 2 * environment.dead(), self._dead, self._answer, self._tell_granted
        )
        self._epoch = 0
        self._most = 0  # the largest number of workers that were alive at one time
        self._shown = 0  # the worker whose output was read last
        self.registry = WorkerRegistry(
            self.workers,
            size if isinstance(size, Size) else Size(size, replace=False),
            send=self.send_all,
            start=self._start,
            stop=self._stop_newcomer,
            epoch=self._next_epoch,
            tell=self._tell,
        )
        self._recovery = CoordinatorRecovery(returns) if returns else None
        while not returns and len(self.workers) < self.registry.target and self._start():
            pass

    def bar(self, hosts: Collection[str], write: Callable[[Collection[str]], None]) -> None:
        """Start no worker on these hosts. When an audit adds a host, `write` is called with all
        barred hosts."""
        self._barred.update(hosts)
        self._write_barred = write

    def _start(self) -> bool:
        """Start a worker in a free slot. Return False if no slot is free."""
        slots = [slot for slot in self._engine.slots() if slot.host not in self._barred]
        free = [slot for slot in slots if slot.state == "free"]
        if free:
            handle = self._engine.start(free[0], AgentSpec(len(self.workers), self._threads))
            output = self._engine.logs(handle, follow=True)
            self.workers.append(Worker(handle.member, handle, output))
            self._most = max(self._most, len(self.alive()))
        return bool(free)

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def run(self, job: Callable[[], Any]) -> Any:
        """Call `job`, which waits for the workers, and return its result. Raises JobFailed."""
        try:
            found = job()
            self._state = "done"
            return found
        except BaseException:
            self._state = "failed"
            raise
        finally:
            self._show_recoveries(wait=False)
            for worker in self.workers:
                self._show_output(worker, ended=True)
            self._show_missing()
            self._ended = time.monotonic()

    @property
    def steps(self) -> int:
        """The number of steps committed in the current training run."""
        return self._steps

    def report(self) -> dict[str, Any]:
        """Return the state of the job, with the fields that Job.report describes."""
        recovered = [event for event in self._events if event["kind"] == "recovered"]
        rate, batch, logical = self._rate.per_second, self._training.batch, self._training.logical
        report = {
            "state": self._state,
            "steps": self._steps,
            "steps_total": self._training.steps,
            "loss": self._loss,
            "samples_per_second": rate * batch,
            "seconds_per_step": 1 / rate if rate else 0.0,
            "workers": {
                w.member: {
                    "state": w.shown,
                    "pid": w.pid,
                    "shares": w.shares,
                    "samples_per_second": w.rate.per_second * batch / logical if logical else 0.0,
                    "seconds_per_share": w.busy / w.shares if w.shares else 0.0,
                }
                for w in self.workers
            },
            "events": list(self._events),
            "audited": sum(w.audited for w in self.workers),
            "mismatches": sum(len(key) > 2 for key in self._findings),
            "recomputed": sum(event["adopted"] for event in recovered),
            "seconds": (self._ended or time.monotonic()) - self._began,
        }
        return report | {"hash": self._hash} if self._hash else report

    def write_trace(self, path: Path, traces: Path) -> None:
        """Write the job's timeline to `path` from the files in `traces`. Raises OSError."""
        timeline.write(path, traces, self._events)

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.state != WorkerState.ENDED]

    @property
    def is_over(self) -> bool:
        """True if all workers have exited. Raises JobFailed if no agent reconnected in time."""
        if self._recovery and self._recovery.is_too_late(self.workers):
            missing = "no worker that trains" if self.alive() else "no agent of the job"
            raise JobFailed(
                f"{missing} has reconnected: all have exited, or cannot reach this host"
            )
        return not self.alive() and not self._recovery

    def require(self) -> list[Worker]:
        """Return the live workers. Raises JobFailed if none of them can continue the job."""
        alive = self.alive()
        begun = any(worker.joined for worker in self.workers)
        if not any(worker.joined or not begun for worker in alive):
            traces = [worker.trace for worker in self.workers if worker.trace]
            ended = [worker for worker in self.workers if worker.cause and not worker.leaves]
            ends = [f"{worker.process} died ({worker.cause})" for worker in ended]
            code = EXIT_CODE if self.is_stopped else 1
            raise JobFailed("no worker is left\n" + "\n".join([*ends, *traces[-1:]]), code)
        return alive

    @property
    def is_stopped(self) -> bool:
        """True if an audit has stopped the job."""
        return bool(self._stopped)

    def compare(self) -> None:
        """Compare the final states of workers that are done. Raises JobFailed if they differ."""
        done = [worker for worker in self.workers if worker.digest]
        for first, other in ((done[0], each) for each in done if each.digest != done[0].digest):
            part = Digest(first.digest, first.parts).first_difference(
                Digest(other.digest, other.parts)
            )
            raise JobFailed(
                f"the workers' final states differ: {first.name} {first.digest}, {other.name}"
                f" {other.digest}; {part or 'the part that differs is not known'}. Is an object"
                " with a state missing in also= of the job?"
            )
        self._hash = done[0].digest if done else ""

    # ---- messages from and to workers ----

    def wait(self) -> None:
        """Wait a short time for messages and engine events, and handle them."""
        workers = {worker.handle.channel: worker for worker in self.alive()}
        time.sleep(PAUSE * len(workers))
        for channel in ready(workers, TICK):
            self._read(channel, workers[channel])
        for event in self._engine.events(0):
            if event.kind == "agent ended":
                self._end(self.workers[event.member], event)
            elif event.kind == "worker found" and event.handle:
                self._find(event.handle)
        if self._recovery and self._recovery.is_complete(self.workers):
            self._rebuild(self._recovery)
        if not self._recovery:
            self._quorum.update(time.monotonic())
            self._connect()
            self.registry.update(self._steps)
        self._show_recoveries()
        for _ in range(min(OUTPUTS, len(self.workers))):
            self._shown = (self._shown + 1) % len(self.workers)
            self._show_output(self.workers[self._shown])

    def _read(self, channel: protocol.WorkerChannel, worker: Worker) -> None:
        try:
            messages = channel.poll()
            for message in messages:
                self._take(worker, message)
        except EOFError:  # the engine will report the worker's exit
            time.sleep(0.001)
        except ValueError as error:
            self.stop(worker, f"it sent {error}")

    def _take(self, worker: Worker, message: protocol.FromWorker) -> None:
        match message:
            case protocol.WorkerReady():
                worker.state = WorkerState.READY
                worker.address, worker.pid = message.address, message.pid
            case protocol.TrainingBegun():
                self._training, worker.digest = message, ""
                self.registry.begun(message.logical, message.watchdog)
                worker.state = WorkerState.RUNNING if worker.joined else worker.state
            case protocol.StepCommitted():
                self.registry.caught_up(worker)
                worker.shares, worker.busy = message.shares, message.busy
                worker.audited = message.audited
                worker.rate.record(time.monotonic(), worker.shares)
                worker.pace.record(worker.shares, worker.busy)
                self._progress(message.step + 1, message.loss)
            case protocol.RanksRecovered():
                self._recover(message)
            case protocol.AuditFinding():
                self._record_finding(message)
            case protocol.RolledBack():
                self._roll_back(message)
            case protocol.QuorumRequest():
                self._quorum.add(worker, message, time.monotonic())
            case protocol.OutputLine():
                self._listener.output(message.text)
            case protocol.TrainingDone():
                worker.state, worker.digest = WorkerState.DONE, message.digest
                worker.parts = message.parts
                self._progress(message.steps, message.loss)
            case protocol.ProgramFailed():
                worker.trace = message.trace
                worker.cause = WRONG if worker.cause == WRONG else message.error
            case protocol.WorkerSnapshot() if worker.state == WorkerState.RETURNING:
                self._take_back(worker, message)
            case _:
                self.registry.handle_message(worker, message)
                if isinstance(message, protocol.GroupSwitched) and message.died:
                    died, seconds = message.died, message.seconds
                    self._recover(protocol.RanksRecovered(message.step, died, 0, seconds))

    def _progress(self, steps: int, loss: float) -> None:
        if steps > self._steps:
            self._steps, self._loss = steps, loss
            self._rate.record(time.monotonic(), steps)
            self._listener.step(self.report())

    def _recover(self, message: protocol.RanksRecovered) -> None:
        """Record a recovery that survivors report, and kill the processes that they declared dead,
        which may hang or be stopped. All survivors report it; only the first report counts."""
        if not all(member in range(len(self.workers)) for member in message.died):
            raise ValueError(f"deaths of unknown workers: {message.died}")
        died = [member for member in message.died if member not in self._dead]
        self._dead.update(died)
        for worker in (self.workers[member] for member in died):
            if worker.state != WorkerState.ENDED:
                self._engine.stop(worker.handle, 0)
        died = [member for member in died if self.workers[member].joined]
        if died:
            fields = {**asdict(message), "died": died, "time": time.time()}
            self._recoveries.append((time.monotonic(), fields))

    def _record_finding(self, finding: protocol.AuditFinding) -> None:
        """Record an audit's result and stop using the hosts of workers with wrong results. All
        ranks report it; only the first report counts."""
        if not all(member in range(len(self.workers)) for member in finding.members):
            raise ValueError(f"an audit of unknown workers: {finding.members}")
        key = finding.step, finding.share, *finding.members
        if key in self._findings:
            return
        self._findings.add(key)
        workers = [self.workers[member] for member in finding.members]
        hosts = sorted({worker.handle.slot.host for worker in workers})
        if finding.stops:
            self._stopped = finding.text
        else:
            self._barred.update(hosts)
            self._write_barred(self._barred)
            for worker in workers:
                worker.cause = worker.cause or WRONG
        self._tell("audit", None, **asdict(finding), hosts=hosts)

    def _roll_back(self, message: protocol.RolledBack) -> None:
        """Log that the ranks continue from a checkpoint. Only the first rank's report counts."""
        if message.text not in self._rollbacks:
            self._rollbacks.add(message.text)
            self._steps = message.step
            self._tell("rollback", None, **asdict(message))

    def _answer(self, worker: Worker, why: str) -> None:
        self.send(worker, protocol.QuorumReply(why))

    def _tell_granted(self, side: Collection[int], missing: Collection[int]) -> None:
        on, without = (", ".join(f"rank {each}" for each in them) for them in (side, missing))
        self._tell("granted", None, f"the coordinator allows {on} to continue without {without}")

    def _connect(self) -> None:
        """Send all live workers the list of members once all are ready. If one exits meanwhile,
        creating the comm fails on the other workers, and they report `ready` again. After the first
        training run began, only its members are connected here: other workers join through a
        plan."""
        begun = any(worker.joined for worker in self.workers)
        alive = [worker for worker in self.alive() if worker.joined or not begun]
        waiting = [worker for worker in alive if worker.state == WorkerState.READY]
        if waiting and len(waiting) == len(alive):
            epoch = self._next_epoch()
            self._steps = 0  # the program may begin another training run
            self.registry.connected()
            for worker in waiting:
                worker.state, worker.joined, worker.digest = WorkerState.RUNNING, True, ""
            members = [each.member for each in waiting]
            addresses = [each.address for each in waiting]
            self.send_all(waiting, protocol.ConnectGroup(members, addresses, epoch))

    def last_workers(self) -> list[Worker]:
        """Return the workers that were in the last group when they exited. If no worker ever
        joined, return the workers that were not asked to leave."""
        last = [each for each in self.workers if each.joined and each.member not in self._dead]
        return last or [each for each in self.workers if not each.leaves]

    # ---- recovery after the loss of an earlier coordinator ----

    def _find(self, handle: Handle) -> None:
        """Add a worker whose agent has connected. The agent's next message is its snapshot."""
        self._know(handle.member)
        output = self._engine.logs(handle, follow=True)
        self.workers[handle.member] = Worker(handle.member, handle, output, WorkerState.RETURNING)
        if handle.member in self._quorum.given_up:
            self._engine.stop(handle, 0)
        # It may be a worker that was given up although only its agent's connection was lost.
        self._recovery = self._recovery or CoordinatorRecovery(OTHERS)
        self._recovery.begin()

    def _know(self, highest: int) -> None:
        """Add entries for unknown workers up to the number `highest`."""
        while len(self.workers) <= highest:
            self.workers.append(unknown(len(self.workers)))

    def _take_back(self, worker: Worker, snapshot: protocol.WorkerSnapshot) -> None:
        """Restore a worker from the snapshot of its agent."""
        assert self._recovery
        self._know(self._recovery.take(worker.member, snapshot))
        self._epoch = max(self._epoch, snapshot.epoch, snapshot.plan, snapshot.group)
        for message in snapshot.kept:
            self._take(worker, message)
        worker.state = snapshot.state
        self.registry.take_back(worker, snapshot.trainings)

    def _rebuild(self, recovery: CoordinatorRecovery) -> None:
        """Resume coordinating the job with the workers that were found."""
        self._recovery = None
        for member in recovery.members:
            worker = self.workers[member]
            worker.joined = worker.joined or worker.state != WorkerState.ENDED
            if worker.state in (WorkerState.WARMED, WorkerState.ADMITTED):  # has joined meanwhile
                worker.state = WorkerState.RUNNING
        self.registry.plan_is_under_way(recovery.plan, recovery.planned)
        there = [worker.name for worker in self.alive()]
        self._tell("returned", None, f"the coordinator is back: it has found {', '.join(there)}")

    def stop(self, worker: Worker, cause: str) -> None:
        """Kill a worker and record the cause, if it has none yet."""
        worker.cause = worker.cause or cause
        self._engine.stop(worker.handle, 0)

    def _stop_newcomer(self, worker: Worker, hung: str) -> None:
        worker.hung = worker.hung or hung
        self._engine.stop(worker.handle, 0)

    def send(self, worker: Worker, message: Message) -> None:
        self.send_all([worker], message)

    def send_all(self, workers: Collection[Worker], message: Message) -> None:
        packed = pack(message)
        for worker in workers:
            with suppress(OSError):  # the engine will report the worker's exit
                worker.handle.channel.send_packed(packed)

    def _end(self, worker: Worker, event: Event) -> None:
        channel = worker.handle.channel
        with suppress(EOFError, OSError, ValueError):  # handle its last messages
            while ready([channel], 0):
                for message in channel.poll():
                    self._take(worker, message)
        worker.code, worker.evidence, worker.ended = event.code, event.evidence, time.monotonic()
        if not worker.cause:
            code = event.code
            ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            worker.cause = event.cause or ended
            if event.ordered and (worker.hung or worker.member in self._dead):
                worker.cause = worker.hung or HUNG
        if (event.code or worker.state == WorkerState.RUNNING) and not (
            worker.leaves and event.ordered
        ):
            told = {"kind": "died", "member": worker.member, "cause": worker.cause}
            self._events.append({**told, "host": worker.handle.slot.host, "time": time.time()})
            if not worker.joined:  # else the survivors report a recovery
                self._listener.event(f"{worker.process} died ({worker.cause}) before it joined")
        worker.state = WorkerState.ENDED
        self.registry.ended(worker)

    def _tell(self, kind: str, worker: Worker | None, text: str, **more: Any) -> None:
        told = {"kind": kind, "text": text, "time": time.time(), **more}
        self._events.append(told | ({"member": worker.member} if worker else {}))
        self._listener.event(text)

    # ---- output and log ----

    def _show_recoveries(self, wait: bool = True) -> None:
        """Log recoveries with the causes of death. Wait for the engine to report these causes."""
        waiting = []
        for came, fields in self._recoveries:
            dead = [self.workers[member] for member in fields["died"]]
            late = time.monotonic() - came > CAUSE_LIMIT or not wait
            if late or all(worker.cause for worker in dead):
                self._events.append({"kind": "recovered", **fields})
                died = ", ".join(f"{e.process} died ({e.cause or 'unknown'})" for e in dead)
                self._listener.event(
                    f"{died}; {fields['adopted']} of {self._training.logical} shares recomputed;"
                    f" step {fields['step']} committed {fields['seconds']:.2f} s later"
                )
            else:
                waiting.append((came, fields))
        self._recoveries = waiting

    def _show_missing(self) -> None:
        """Log a message if fewer workers finished than were requested and had slots."""
        done = sum(bool(worker.digest) for worker in self.workers)
        wanted = min(self.registry.wanted, self._most)
        if self._state == "done" and 0 < done < wanted:
            self._listener.event(f"{done} of the {wanted} workers have trained to the end")

    def _show_output(self, worker: Worker, ended: bool = False) -> None:
        lines: list[bytes] = []
        while chunk := next(worker.output, b""):
            *more, worker.text = (worker.text + chunk).split(b"\n")
            lines += more
        if ended and worker.text:
            lines.append(worker.text)
        for line in lines:
            self._listener.output(f"[{worker.member}] {line.decode(errors='replace')}")


def wait_for_end(coordinator: Coordinator) -> None:
    """Wait until all workers have exited. Raises JobFailed if the job's exit code is not 0."""
    while not coordinator.is_over:
        coordinator.wait()
    coordinator.compare()
    # Ignore workers that died while other workers completed the training.
    trained = [worker for worker in coordinator.workers if worker.digest]
    if failed := [worker for worker in trained or coordinator.workers if worker.code]:
        code = failed[0].code or 0
        ends = [f"{each.name} has ended: {each.cause}" for each in failed if each.joined]
        if ends and not trained:
            text = "no worker is left, so the job has failed; if it has a checkpoint, it continues"
            ends.insert(0, f"{text} from there when it is started again")
        if coordinator.is_stopped:
            code = EXIT_CODE
        raise JobFailed("\n".join(ends), code if code > 0 else 128 - code)
