"""What running ranks has in common, wherever they are: their output, signals, the end together."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ddl_core.launch.console import Console, Stream
from ddl_core.launch.errors import FAILED, LaunchError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM)
DRAIN = 1.0  # seconds for output that others hold open after all ranks have ended
CHUNK = 64 * 1024
_TAIL = 20  # lines of the first rank that failed


@dataclass(frozen=True)
class Failure:
    """How a rank failed: an exit code, or a signal's number; or in words, as `lost`."""

    rank: int
    pid: int
    code: int
    by_signal: bool
    host: str = ""
    lost: str = ""

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        if self.lost:
            return f"rank {self.rank}{where} {self.lost}"
        how = f"ended with exit code {self.code}"
        if self.by_signal:
            names = {number.value: number.name for number in signal.Signals}
            how = f"was killed by {names.get(self.code, f'signal {self.code}')}"
        return f"rank {self.rank}{where} (pid {self.pid}) {how}"

    @property
    def exit_code(self) -> int:
        """As a shell gives it."""
        return 128 + self.code if self.by_signal else self.code


def cause(failures: list[Failure]) -> Failure:
    """Of several ranks that failed at once, in the order of notice, the likely first: one that was
    killed says nothing, while others end by themselves when they notice its loss."""
    return min(failures, key=lambda failure: not failure.by_signal and not failure.lost)


class Output:
    """Where one rank's stdout and stderr go: to the console, or to files; and its last lines."""

    def __init__(self, console: Console, rank: int, prefix: str, host: int | None) -> None:
        self.last: deque[bytes] = deque(maxlen=_TAIL)
        self.out = console.stream(rank, prefix, console.out, host, self.last)
        self.err = console.stream(rank, prefix, console.err, host, self.last)


class Supervisor(ABC):
    """One run of ranks. `run` may be called once, in the main thread.

    grace        seconds between SIGTERM and SIGKILL when a job is ended
    output_dir   where the ranks' output is, when it is in files
    summary      say at the end how long it took, also when all went well
    """

    def __init__(
        self, size: int, console: Console, grace: float, output_dir: Path | None, summary: bool
    ) -> None:
        self._size = size
        self._console = console
        self._grace = grace
        self._output_dir = output_dir
        self._summary = summary
        self._running: set[int] = set()
        self._first: Failure | None = None
        self._kill_at: float | None = None  # when grace is over
        self._asked_to_end = 0
        self._begun = time.monotonic()
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run to the end; the job's exit code: 0, or that of the rank that failed first."""
        with self._signals() as wake:
            self._selector.register(wake, selectors.EVENT_READ, lambda: self._take_signals(wake))
            try:
                self._start()
                while self._running:
                    self._turn(self._time_left())
                self._drain()
            except LaunchError as error:
                self._console.say(str(error))
                self._first = self._first or Failure(-1, 0, error.code, by_signal=False)
            except OSError as error:
                self._console.say(f"cannot go on: {error}")
                self._first = self._first or Failure(-1, 0, FAILED, by_signal=False)
            finally:
                self._clean_up()
        self._sum_up()
        return self._first.exit_code if self._first else 0

    # ---- what differs ----

    @abstractmethod
    def _start(self) -> None:
        """Start all ranks, or what starts them; those of `_running` are then waited for."""

    @abstractmethod
    def _ended(self) -> list[Failure]:
        """Take those that have ended out of `_running`; the failures among them."""

    @abstractmethod
    def _send(self, number: int) -> None:
        """Send a signal to all running ranks."""

    @abstractmethod
    def _name(self, rank: int) -> str:
        """The rank, where it is, and its process, for messages."""

    @abstractmethod
    def _last_lines(self, rank: int) -> list[bytes]:
        """What a rank wrote last."""

    @abstractmethod
    def _has_output(self) -> bool:
        """Whether output may come still."""

    @abstractmethod
    def _clean_up(self) -> None:
        """Leave no process of a job that failed, and no zombie."""

    # ---- one turn of the loop ----

    def _turn(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data()
        failures = self._ended()
        if failures and self._first is None:
            self._report(cause(failures))
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            for rank in sorted(self._running):
                self._console.say(
                    f"{self._name(rank)} has not ended within {self._grace:g} s of SIGTERM:"
                    " killing it"
                )
            self._send(signal.SIGKILL)

    def _time_left(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _drain(self) -> None:
        """All ranks have ended: the rest of their output, if nobody else holds it open."""
        deadline = time.monotonic() + DRAIN
        while self._has_output() and time.monotonic() < deadline:
            self._turn(max(0.0, deadline - time.monotonic()))

    # ---- the end of ranks ----

    def _report(self, first: Failure) -> None:
        self._first = first
        others = len(self._running)
        where = self._output_dir
        self._console.say(
            f"{first}"
            + (f"; ending the other {others}" if others else "")
            + (f"; its output is in {where}/rank.{first.rank}.err" if where else "")
        )
        self._end()

    def _end(self) -> None:
        self._send(signal.SIGTERM)
        self._kill_at = time.monotonic() + self._grace

    def _sum_up(self) -> None:
        """One line at the end, and with it what is not in sight any more."""
        first, seconds = self._first, time.monotonic() - self._begun
        if first is None:
            if self._summary:
                self._console.say(f"{self._size} ranks ended well after {seconds:.1f} s")
            return
        if first.rank < 0:
            return
        last = self._last_lines(first.rank) if self._size > 1 else []
        if last:
            self._console.say(f"the last lines of rank {first.rank}:")
            self._console.show([b"  | " + line for line in last])
        if self._summary:
            self._console.say(f"failed after {seconds:.1f} s: {first}")

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

    def _take_signals(self, wake: socket.socket) -> None:
        for number in wake.recv(CHUNK):
            if number not in FORWARDED:
                continue  # SIGCHLD
            if number in _ENDING:
                self._asked_to_end += 1
                if self._asked_to_end == 2:
                    name = signal.Signals(number).name
                    self._console.say(f"{name} again: ending all ranks")
                    self._end()
                    continue
            self._send(number)

    # ---- output ----

    def _show(self, stream: Stream, data: bytes) -> None:
        """Pass on what a rank wrote; nothing is its end."""
        try:
            if data:
                stream.feed(data)
            else:
                stream.end()
        except BrokenPipeError:
            # As in a pipeline without ddlrun: who writes on gets the SIGPIPE.
            self._console.abandon(stream.sink)
            self._reader_has_gone(stream.sink)

    @abstractmethod
    def _reader_has_gone(self, sink: Any) -> None:
        """Nobody reads our stdout, or stderr, any more."""


def output_files(folder: Path, rank: int) -> tuple[IO[bytes], IO[bytes]]:
    """The files that take a rank's stdout and stderr."""
    return open(folder / f"rank.{rank}.out", "wb"), open(folder / f"rank.{rank}.err", "wb")
