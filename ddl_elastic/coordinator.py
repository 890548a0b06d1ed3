"""One job's coordinator: starts the workers, tells them of each other, and watches them.

No step waits for it. It is in the process that called `Job.train`.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddl_elastic.engines import AgentSpec, Engine, Handle
from ddl_elastic.framework import State, Tensor
from ddl_elastic.messages import Channel, Message

TICK = 0.05  # seconds between two looks at the engine
CAUSE_LIMIT = 2.0  # seconds that a recovery waits until the engine tells how the dead one ended


class JobFailed(RuntimeError):
    """No worker is left that could go on, or the workers' results differ."""


@dataclass
class Worker:
    """A worker that was started."""

    member: int
    handle: Handle
    output: Iterator[bytes]
    state: str = "starting"  # then "ready", "running", "done" or "ended"
    address: str = ""
    pid: int = 0
    digest: str = ""
    cause: str = ""  # of its end
    trace: str = ""  # of the exception that ended it
    text: bytes = b""  # the beginning of a line that it has written

    @property
    def name(self) -> str:
        return f"rank {self.member} on {self.handle.slot.host}"


def ignore(*_: object) -> None:
    """For what nobody wants to see."""


class Coordinator:
    """Runs one job on an engine."""

    def __init__(self, engine: Engine, workers: int, threads: int, logical: int) -> None:
        self._engine, self._logical = engine, logical
        self._state, self._started, self._ended = "running", time.monotonic(), 0.0
        self._steps, self._loss, self._hash = 0, float("nan"), ""
        self._events: list[dict[str, Any]] = []
        self._show_step: Callable[[int, float], None] = ignore
        self._show_line: Callable[[str], None] = ignore
        self._recoveries: list[tuple[float, dict[str, Any]]] = []  # when it came, not shown yet
        self._attempt = 0
        handles = [
            engine.start(slot, AgentSpec(member, threads))
            for member, slot in enumerate(engine.slots()[:workers])
        ]
        self._workers = [Worker(h.member, h, engine.logs(h, follow=True)) for h in handles]

    def run(
        self,
        show_step: Callable[[int, float], None] = ignore,
        show_line: Callable[[str], None] = ignore,
    ) -> State:
        """Until the job is done; returns the final state. Raises JobFailed.

        show_step  is called with the number of steps that are committed and the last one's loss
        show_line  with an event, or with what a worker has written
        """
        self._show_step, self._show_line = show_step, show_line
        try:
            state = self._run()
            self._state = "done"
            return state
        except BaseException:
            self._state = "failed"
            raise
        finally:
            self._ended = time.monotonic()

    def report(self) -> dict[str, Any]:
        """See Job.report."""
        recovered = [event for event in self._events if event["kind"] == "recovered"]
        report = {
            "state": self._state,
            "steps": self._steps,
            "loss": self._loss,
            "workers": {w.member: {"state": w.state, "pid": w.pid} for w in self._workers},
            "events": list(self._events),
            "recomputed": sum(event["adopted"] for event in recovered),
            "seconds": (self._ended or time.monotonic()) - self._started,
        }
        return report | {"hash": self._hash} if self._hash else report

    def _run(self) -> State:
        while any(worker.state != "done" for worker in self._alive()):
            self._wait()
            self._connect()
            self._show_recoveries()
        digests = {worker.digest for worker in self._alive()}
        if len(digests) > 1:
            raise JobFailed(f"the workers' final states differ: {', '.join(sorted(digests))}")
        (self._hash,) = digests
        state = self._fetch_state()
        self._show_recoveries(wait=False)
        for worker in self._workers:
            self._show_output(worker)
            self._send(worker, "exit")
        return state

    def _alive(self) -> list[Worker]:
        alive = [worker for worker in self._workers if worker.state != "ended"]
        if not alive:
            traces = [worker.trace for worker in self._workers if worker.trace]
            ends = [f"{worker.name} died ({worker.cause})" for worker in self._workers]
            raise JobFailed("no worker is left\n" + "\n".join([*ends, *traces[-1:]]))
        return alive

    # ---- from and to the workers ----

    def _wait(self) -> None:
        workers = {worker.handle.channel: worker for worker in self._alive()}
        for channel in select.select([*workers], [], [], TICK)[0]:
            self._read(channel, workers[channel])
        for event in self._engine.events(0):
            if event.kind == "agent ended":
                self._end(self._workers[event.member], event.code)
        for worker in self._workers:
            self._show_output(worker)

    def _read(self, channel: Channel, worker: Worker) -> None:
        try:
            messages = channel.poll()
        except EOFError:  # the engine is about to tell how it has ended
            time.sleep(0.001)
            return
        for message in messages:
            self._take(worker, message)

    def _take(self, worker: Worker, message: Message) -> None:
        fields = message.fields
        if message.kind == "ready":
            worker.state = "ready"
            worker.address, worker.pid = fields["address"], fields["pid"]
        elif message.kind == "progress":
            self._progress(fields["step"] + 1, fields["loss"])
        elif message.kind == "recovered":
            self._recoveries.append((time.monotonic(), fields))
        elif message.kind == "done":
            worker.state, worker.digest = "done", fields["digest"]
            self._progress(fields["steps"], fields["loss"])
        elif message.kind == "failed":
            worker.cause, worker.trace = fields["error"], fields["trace"]
        else:
            raise ValueError(f"{worker.name} sent {message.kind!r}")

    def _progress(self, steps: int, loss: float) -> None:
        if steps > self._steps:
            self._steps, self._loss = steps, loss
            self._show_step(steps, loss)

    def _connect(self) -> None:
        """Once all who live are ready, they are told of each other. If one ends meanwhile, the
        creation fails on the others, and they are ready again."""
        alive = self._alive()
        ready = [worker for worker in alive if worker.state == "ready"]
        if self._steps:  # others have begun without them
            for worker in ready:
                self._send(worker, "exit")
        elif ready and len(ready) == len(alive):
            self._attempt += 1
            for worker in ready:
                worker.state = "running"
                self._send(
                    worker,
                    "connect",
                    members=[each.member for each in ready],
                    addresses=[each.address for each in ready],
                    attempt=self._attempt,
                )

    def _send(self, worker: Worker, kind: str, **fields: Any) -> None:
        with suppress(OSError):  # the engine is about to tell how it has ended
            worker.handle.channel.send(kind, **fields)

    def _end(self, worker: Worker, code: int) -> None:
        if not worker.cause:
            worker.cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        worker.state = "ended"
        event = {"kind": "died", "member": worker.member, "cause": worker.cause}
        self._events.append({**event, "host": worker.handle.slot.host})

    def _fetch_state(self) -> State:
        """From any of those who are done: all have the same."""
        while True:
            worker = self._alive()[0]
            self._send(worker, "state")
            try:
                return receive_state(worker.handle.channel)
            except EOFError:
                while worker.state != "ended":
                    self._wait()

    # ---- what is shown ----

    def _show_recoveries(self, wait: bool = True) -> None:
        """With how the dead ones ended, which the engine may tell a little later."""
        waiting = []
        for came, fields in self._recoveries:
            dead = [self._workers[member] for member in fields["died"]]
            late = time.monotonic() - came > CAUSE_LIMIT or not wait
            if late or all(worker.cause for worker in dead):
                self._events.append({"kind": "recovered", **fields})
                died = ", ".join(f"{each.name} died ({each.cause or 'unknown'})" for each in dead)
                self._show_line(
                    f"{died}; {fields['adopted']} of {self._logical} shares recomputed;"
                    f" step {fields['step']} committed {fields['seconds']:.2f} s later"
                )
            else:
                waiting.append((came, fields))
        self._recoveries = waiting

    def _show_output(self, worker: Worker) -> None:
        while chunk := next(worker.output, b""):
            *lines, worker.text = (worker.text + chunk).split(b"\n")
            for line in lines:
                self._show_line(f"[{worker.member}] {line.decode(errors='replace')}")


def receive_state(channel: Channel) -> State:
    """What worker.send_state sends."""
    state: State = {}
    while (message := channel.receive()).kind == "tensor":
        data = bytearray()
        while len(data) < message.fields["bytes"]:
            data += channel.receive().data
        tensor = Tensor(
            message.fields["dtype"],
            tuple(message.fields["shape"]),
            np.frombuffer(bytes(data), np.uint8),
        )
        state[message.fields["name"]] = tensor
    if message.kind != "end":
        raise ValueError(f"a message {message.kind!r} within a state")
    return state
