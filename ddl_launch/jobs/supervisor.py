# SPDX-License-Identifier: Apache-2.0
"""The supervisor of ranks on one or several machines: it handles their output, signals and
exits."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ddl_launch.errors import FAILED, INTERRUPTED, LaunchError
from ddl_launch.jobs import root_cause
from ddl_launch.jobs.console import Console, Stream
from ddl_launch.jobs.failure import Failure
from ddl_launch.rank import reports

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM)
DRAIN = 1.0  # seconds to read output that other processes hold open after all ranks have ended
CHUNK = 64 * 1024
_TAIL = 20  # lines of the first rank that failed
# Seconds from the first failure to the report. They allow for the errors of other ranks, and for
# the end of a rank that these blame.
_SETTLE = 0.3
_LATEST = 2.0
_LEAVE = 5.0  # seconds for SIGKILL to end a rank, at least


class Output:
    """The stdout and stderr of a rank, which go to the console or to files. Keeps the last
    lines."""

    def __init__(self, console: Console, rank: int, prefix: str, host: int | None) -> None:
        self.last: deque[bytes] = deque(maxlen=_TAIL)
        self.out = console.stream(rank, prefix, console.out, host, self.last)
        self.err = console.stream(rank, prefix, console.err, host, self.last)


class Supervisor(ABC):
    """A run of ranks. Call `run` once, in the main thread.

    grace        seconds between SIGTERM and SIGKILL when a job is ended
    output_dir   the folder of the ranks' output, if it goes to files
    summary      log the duration at the end, even if no rank failed
    keep_going   a rank that fails does not end the others
    """

    def __init__(
        self,
        size: int,
        console: Console,
        grace: float,
        output_dir: Path | None,
        summary: bool,
        keep_going: bool,
    ) -> None:
        self._size = size
        self._console = console
        self._grace = grace
        self._output_dir = output_dir
        self._summary = summary
        self._keep_going = keep_going
        self._succeeded = False  # with keep_going: a rank has ended without an error
        self._running: set[int] = set()
        self._states = {rank: root_cause.RankState() for rank in range(size)}
        self._first: Failure | None = None
        self._report_at: float | None = None  # when to report the failures so far
        self._report_latest = 0.0
        self._kill_at: float | None = None  # when the grace period ends
        self._leave_at: float | None = None  # when to give up on ranks that SIGKILL does not end
        self._left: set[int] = set()  # ranks that are still running then
        self._asked_to_end = 0
        self._interrupted = False  # SIGINT, such as from Ctrl-C, has arrived
        self._spoke_last: int | None = None  # the rank whose output was shown last
        self._begun = time.monotonic()
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run to the end. Return the job's exit code: 0, or the code of the rank that failed first.
        With keep_going it is 0 if any rank has ended without an error."""
        with self._signals() as wake:
            self._selector.register(wake, selectors.EVENT_READ, lambda: self._take_signals(wake))
            try:
                self._start()
                while self._running or (self._report_at is not None and self._first is None):
                    self._turn(self._time_left())
                self._drain()
            except LaunchError as error:
                self._console.log(str(error))
                self._first = self._first or Failure(-1, 0, error.code, by_signal=False)
            except OSError as error:
                self._console.log(f"cannot continue: {error}")
                self._first = self._first or Failure(-1, 0, FAILED, by_signal=False)
            finally:
                self._clean_up()
        self._sum_up()
        return self._first.exit_code if self._first else 0

    def last_words(self) -> str:
        """Return the last lines of the rank that failed first, or "" if none did."""
        if self._first is None or self._first.rank < 0:
            return ""
        return b"\n".join(self._last_lines(self._first.rank)).decode(errors="replace")

    # ---- for subclasses ----

    @abstractmethod
    def _start(self) -> None:
        """Start all ranks, or their launcher, and fill `_running`."""

    @abstractmethod
    def _ended(self) -> list[Failure]:
        """Remove ranks that have ended from `_running`. Return how they ended."""

    @abstractmethod
    def _read_reports(self) -> None:
        """Pass reports that have arrived to `_take_report`."""

    def _is_late(self) -> bool:
        """Return True if a failure may be reported later than usual."""
        return False

    @abstractmethod
    def _send_signal(self, number: int) -> None:
        """Send a signal to all running ranks."""

    @abstractmethod
    def _name(self, rank: int) -> str:
        """Return the rank, its host and its process, for messages."""

    @abstractmethod
    def _last_lines(self, rank: int) -> list[bytes]:
        """Return the last lines that a rank wrote."""

    @abstractmethod
    def _is_in_sight(self, rank: int) -> bool:
        """Return True if a rank's last lines are directly above on the user's screen."""

    @abstractmethod
    def _has_output(self) -> bool:
        """Return True if more output may come."""

    @abstractmethod
    def _clean_up(self) -> None:
        """Make sure that no process of a failed job and no zombie remains."""

    # ---- one turn of the loop ----

    def _turn(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data()
        self._read_reports()
        now = time.monotonic()
        for end in self._ended():
            self._states[end.rank].end, self._states[end.rank].at = end, now
            if self._keep_going:
                self._note(end)
        if not self._keep_going:
            self._check_failures()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            for rank in sorted(self._running):
                self._console.log(
                    f"{self._name(rank)} has not exited within {self._grace:g} s of SIGTERM:"
                    " killing it"
                )
            self._send_signal(signal.SIGKILL)
            self._leave_at = time.monotonic() + max(self._grace, _LEAVE)
        elif self._leave_at is not None and time.monotonic() >= self._leave_at:
            self._leave()

    def _leave(self) -> None:
        """Stop waiting for processes that no signal can end because they wait in the kernel, for
        example for a file server."""
        self._leave_at = None
        for rank in sorted(self._running):
            self._console.log(f"{self._name(rank)} cannot be killed; it keeps running")
        self._left |= self._running
        self._running.clear()
        self._first = self._first or Failure(-1, 0, FAILED, by_signal=False)

    def _time_left(self) -> float | None:
        deadlines = [deadline for deadline in self._deadlines() if deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _deadlines(self) -> list[float | None]:
        """Return the times at which to act even if nothing arrives."""
        return [self._kill_at, self._leave_at, None if self._first else self._report_at]

    def _drain(self) -> None:
        """Forward the rest of the output after all ranks have ended. Wait only a short time, since
        other processes may hold the pipes open."""
        deadline = time.monotonic() + DRAIN
        while self._has_output() and time.monotonic() < deadline:
            self._turn(max(0.0, deadline - time.monotonic()))

    # ---- the end of ranks ----

    def _take_report(self, report: reports.Report) -> None:
        state = self._states.get(report.rank)
        if state is None:
            return
        if report.kind == "raised":
            state.raised, state.raised_at = report.text, time.monotonic()
        else:
            state.waits = report.kind == "joining"
            state.joinings += report.kind == "joining"
            state.joined += report.kind == "joined"

    def _check_failures(self) -> None:
        """Report the root cause when it is clear. Its consequences may be known earlier."""
        if self._first is not None:
            return
        self._read_reports()  # reports of ranks that have just ended
        failed = [rank for rank, state in self._states.items() if state.failed]
        if not failed:
            self._check_absent()
            return
        now = time.monotonic()
        if self._report_at is None:
            self._report_at, self._report_latest = now + _SETTLE, now + _LATEST
        if self._is_late():
            self._report_latest = max(self._report_latest, now + _SETTLE)
            self._report_at = max(self._report_at, now + _SETTLE)
        for rank in failed:
            lines = self._last_lines(rank)
            self._states[rank].tail = [line.decode(errors="replace") for line in lines]
        rank, is_open = root_cause.find(self._states)
        if is_open and now >= self._report_at:
            self._report_at = min(self._report_latest, now + _SETTLE)
        is_over = not self._running and not self._has_output()
        if is_over or now >= (self._report_latest if is_open else self._report_at):
            self._report(root_cause.describe(rank, self._states, self._name(rank)))

    def _note(self, end: Failure) -> None:
        """Log the failure of a rank that the others survive."""
        if not end.failed:
            self._succeeded, self._first = True, None
            return
        self._console.log(f"{end}; {len(self._running)} of {self._size} ranks are still running")
        if not self._succeeded and self._first is None:
            self._first = end

    def _check_absent(self) -> None:
        """End a job whose ranks would wait until their timeout for a rank that has ended."""
        absent = root_cause.find_absent(self._states)
        if absent is None:
            self._report_at = None
        elif self._report_at is None:  # more ranks may begin to wait
            self._report_at = time.monotonic() + _SETTLE
            self._report_latest = self._report_at + _LATEST
        elif time.monotonic() >= self._report_at:
            self._report(absent)

    def _report(self, first: Failure) -> None:
        where = f"; its output is in {self._output_dir}/rank.{first.rank}.err"
        if self._interrupted and first.exit_code == INTERRUPTED:  # no rank is at fault
            self._first, message, where = replace(first, rank=-1), "interrupted", ""
        else:
            self._first, message = first, str(first)
        others = len(self._running)
        self._console.log(
            message
            + (f"; ending the other {others}" if others else "")
            + (where if self._output_dir else "")
        )
        self._end()

    def _end(self) -> None:
        self._send_signal(signal.SIGTERM)
        self._kill_at = time.monotonic() + self._grace

    def _sum_up(self) -> None:
        """Log the job's result. Also log the last lines of the failed rank if they are not on the
        screen."""
        first, seconds = self._first, time.monotonic() - self._begun
        if first is None:
            if self._summary:
                self._console.log(
                    f"{self._size} ranks exited without an error after {seconds:.1f} s"
                )
            return
        if first.rank < 0:
            return
        is_shown = self._size == 1 or self._is_in_sight(first.rank)
        last = [] if is_shown else self._last_lines(first.rank)
        if last:
            self._console.log(f"the last lines of rank {first.rank}, which failed first:")
            self._console.show([b"  | " + line for line in last])
        if self._summary:
            self._console.log(f"failed after {seconds:.1f} s: {first.who} failed first")

    # ---- signals ----

    @contextlib.contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        numbers = [*FORWARDED, signal.SIGCHLD]
        if (
            signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        ):  # set by nohup; the ranks ignore it, too
            numbers.remove(signal.SIGHUP)
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
            if number == signal.SIGHUP:  # sent twice when a terminal is closed
                self._asked_to_end = max(1, self._asked_to_end)
            elif number in _ENDING:
                self._asked_to_end += 1
                self._interrupted |= number == signal.SIGINT
                if self._asked_to_end == 2:
                    name = signal.Signals(number).name
                    self._console.log(f"{name} again: ending all ranks")
                    if number == signal.SIGINT and self._first is None:
                        self._first = Failure(-1, 0, signal.SIGINT, by_signal=True)
                    self._end()
                    continue
            self._send_signal(number)

    # ---- output ----

    def _show(self, stream: Stream, data: bytes) -> None:
        """Forward the output of a rank. Empty data means that it has ended."""
        try:
            if data:
                self._spoke_last = stream.rank
                stream.feed(data)
            else:
                stream.end()
        except BrokenPipeError:
            # Treat it as SIGPIPE in a pipeline without ddlrun.
            self._console.abandon(stream.sink)
            self._reader_has_gone(stream.sink)
        except OSError as error:  # a full disk, or a closed terminal
            self._console.abandon(stream.sink)
            self._console.log(f"cannot write output: {error.strerror}; ending all ranks")
            if self._first is None:
                self._first = Failure(-1, 0, FAILED, by_signal=False)
            self._end()

    @abstractmethod
    def _reader_has_gone(self, sink: Any) -> None:
        """Handle that no process reads ddlrun's stdout or stderr (`sink`) any more."""


def output_files(folder: Path, rank: int) -> tuple[IO[bytes], IO[bytes]]:
    """Open the files for a rank's stdout and stderr."""
    return open(folder / f"rank.{rank}.out", "wb"), open(folder / f"rank.{rank}.err", "wb")
