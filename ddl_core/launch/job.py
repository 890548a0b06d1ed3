"""The ranks' processes: start them, pass on output and signals, end them together."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ddl_core.launch import exec_rank
from ddl_core.launch.console import Console, Stream

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM)
_DRAIN = 1.0  # seconds for output that others hold open after all ranks have ended
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Plan:
    """What to run: `command` once per environment in `environments`, which are the ranks.

    prefix       mark each line of output with its rank
    output_dir   write the output of rank N to rank.N.out and rank.N.err there instead
    grace        seconds between SIGTERM and SIGKILL when a job is ended
    """

    command: list[str]
    environments: list[dict[str, str]]
    prefix: bool
    output_dir: Path | None
    grace: float


@dataclass(frozen=True)
class Failure:
    """How a rank failed: an exit code, or a signal's number."""

    rank: int
    pid: int
    code: int
    by_signal: bool

    def __str__(self) -> str:
        how = f"ended with exit code {self.code}"
        if self.by_signal:
            names = {number.value: number.name for number in signal.Signals}
            how = f"was killed by {names.get(self.code, f'signal {self.code}')}"
        return f"rank {self.rank} (pid {self.pid}) {how}"

    @property
    def exit_code(self) -> int:
        """As a shell gives it."""
        return 128 + self.code if self.by_signal else self.code


def cause(failures: list[Failure]) -> Failure:
    """Of several ranks that failed at once, the likely first: one that was killed says nothing,
    while others end by themselves when they notice its loss."""
    return min(failures, key=lambda failure: (not failure.by_signal, failure.rank))


class Job:
    """One run of a plan. `run` may be called once, in the main thread."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._running: set[int] = set()
        self._first: Failure | None = None
        self._kill_at: float | None = None  # when grace is over
        self._asked_to_end = 0
        self._selector = selectors.DefaultSelector()
        self._streams: dict[IO[bytes], Stream] = {}

    def run(self) -> int:
        """Run to the end; the job's exit code: 0, or that of the rank that failed first."""
        with self._signals() as wake:
            self._selector.register(wake, selectors.EVENT_READ)
            try:
                for rank in range(len(self._plan.environments)):
                    self._start(rank)
                while self._running:
                    self._turn(wake, self._time_left())
                self._drain(wake)
            except OSError as error:
                self._console.say(f"cannot go on: {error}")
                self._first = self._first or Failure(-1, 0, 1, by_signal=False)
            finally:
                self._clean_up()
        return self._first.exit_code if self._first else 0

    # ---- start ----

    def _start(self, rank: int) -> None:
        here = Path(exec_rank.__file__)
        wrapper = [sys.executable, "-I", "-S", str(here), str(os.getpid())]
        out, err = self._outputs(rank)
        process = subprocess.Popen(
            [*wrapper, *self._plan.command],
            env=self._plan.environments[rank],
            stdin=None if rank == 0 and _has_input() else subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # a process group of its own, which signals are sent to
        )
        self._ranks.append(process)
        self._running.add(rank)
        for file in (out, err):
            if not isinstance(file, int):
                file.close()
        prefix = f"[{rank}] " if self._plan.prefix else ""
        for pipe, sink in (
            (process.stdout, self._console.out),
            (process.stderr, self._console.err),
        ):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._streams[pipe] = self._console.stream(rank, prefix, sink)
                self._selector.register(pipe, selectors.EVENT_READ, pipe)

    def _outputs(self, rank: int) -> tuple[int | IO[bytes], int | IO[bytes]]:
        folder = self._plan.output_dir
        if folder is None:
            return subprocess.PIPE, subprocess.PIPE
        return open(folder / f"rank.{rank}.out", "wb"), open(folder / f"rank.{rank}.err", "wb")

    # ---- one turn of the loop ----

    def _turn(self, wake: socket.socket, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            if key.fileobj is wake:
                for number in wake.recv(_CHUNK):
                    self._take_signal(number)
            else:
                self._pump(key.data)
        self._look_for_ended()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            for rank in sorted(self._running):
                self._console.say(
                    f"rank {rank} (pid {self._ranks[rank].pid}) has not ended within"
                    f" {self._plan.grace:g} s of SIGTERM: killing it"
                )
            self._signal_all(signal.SIGKILL)

    def _time_left(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _pump(self, pipe: IO[bytes]) -> None:
        stream = self._streams[pipe]
        data = os.read(pipe.fileno(), _CHUNK)
        try:
            if data:
                stream.feed(data)
            else:
                self._close(pipe)
                stream.end()
        except BrokenPipeError:
            # As in a pipeline without ddlrun: who writes on gets the SIGPIPE.
            self._console.abandon(stream.sink)
            for other in [p for p, s in self._streams.items() if s.sink is stream.sink]:
                self._close(other)

    def _close(self, pipe: IO[bytes]) -> None:
        del self._streams[pipe]
        self._selector.unregister(pipe)
        pipe.close()

    def _drain(self, wake: socket.socket) -> None:
        """All ranks have ended: the rest of their output, if nobody else holds it open."""
        deadline = time.monotonic() + _DRAIN
        while self._streams and time.monotonic() < deadline:
            self._turn(wake, max(0.0, deadline - time.monotonic()))
        for stream in self._streams.values():
            stream.end()

    # ---- the end of ranks ----

    def _look_for_ended(self) -> None:
        failures = []
        for rank in sorted(self._running):
            pid = self._ranks[rank].pid
            # Not reaped before the job's end, so that the process group's number stays ours.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._running.discard(rank)
                if ended.si_status != 0:
                    by_signal = ended.si_code != os.CLD_EXITED
                    failures.append(Failure(rank, pid, ended.si_status, by_signal))
        if not failures or self._first is not None:
            return
        self._first = cause(failures)
        others = len(self._running)
        where = self._plan.output_dir
        self._console.say(
            f"{self._first}"
            + (f"; ending the other {others}" if others else "")
            + (f"; its output is in {where}/rank.{self._first.rank}.err" if where else "")
        )
        self._end()

    def _end(self) -> None:
        self._signal_all(signal.SIGTERM)
        self._kill_at = time.monotonic() + self._plan.grace

    # ---- signals ----

    @contextlib.contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        numbers = (*FORWARDED, signal.SIGCHLD)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            ours.close()
            theirs.close()

    def _take_signal(self, number: int) -> None:
        if number not in FORWARDED:
            return  # SIGCHLD
        if number in _ENDING:
            self._asked_to_end += 1
            if self._asked_to_end == 2:
                self._console.say(f"{signal.Signals(number).name} again: ending all ranks")
                self._end()
                return
        self._signal_all(number)

    def _signal_all(self, number: int) -> None:
        for rank in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._ranks[rank].pid, number)

    def _clean_up(self) -> None:
        """Leave no process of a job that failed, and no zombie."""
        for process in self._ranks:
            if self._first is not None or self._running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in list(self._streams):
            self._close(pipe)
        self._selector.close()


def _has_input() -> bool:
    """Whether a rank may read our stdin: not a terminal, whose foreground job only we are."""
    return sys.stdin is not None and not sys.stdin.isatty()
