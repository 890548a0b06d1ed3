# SPDX-License-Identifier: Apache-2.0
"""The ranks on this machine, as child processes of ddlrun."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ddl_launch.jobs import root_cause
from ddl_launch.jobs.console import Console, Stream
from ddl_launch.jobs.failure import Failure
from ddl_launch.jobs.supervisor import CHUNK, Output, Supervisor, output_files
from ddl_launch.rank import exec_rank, reports, witness
from ddl_launch.rank.placement import format_cores

_TAIL_BYTES = 16 * 1024


@dataclass(frozen=True)
class LaunchSpec:
    """The description of a run: `command` runs once for each rank, with the environment that
    `environments` has for the rank.

    cores        the cores of each rank
    prefix       begin each line of output with its rank
    output_dir   write the output of rank N to rank.N.out and rank.N.err in this folder instead
    grace        seconds between SIGTERM and SIGKILL when a job is ended
    summary      log the duration at the end
    keep_going   a rank that fails does not end the others
    """

    command: list[str]
    environments: list[dict[str, str]]
    cores: list[list[int]]
    prefix: bool
    output_dir: Path | None
    grace: float
    summary: bool = False
    keep_going: bool = False


class LocalJob(Supervisor):
    """A run of ranks on this machine."""

    def __init__(self, plan: LaunchSpec, console: Console) -> None:
        size = len(plan.environments)
        super().__init__(size, console, plan.grace, plan.output_dir, plan.summary, plan.keep_going)
        self._plan = plan
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._outputs: list[Output] = []
        self._streams: dict[IO[bytes], Stream] = {}
        self._host = socket.gethostname()
        self._reports = reports.Reports()
        self._witness = witness.Witness(self._selector)
        self._own = {reports.VARIABLE: self._reports.name, witness.VARIABLE: self._witness.name}

    def _start(self) -> None:
        if self._reports.socket is not None:
            self._selector.register(self._reports.socket, selectors.EVENT_READ, self._read_reports)
        for rank in range(self._size):
            self._start_rank(rank)

    def _start_rank(self, rank: int) -> None:
        here = Path(exec_rank.__file__)
        cores = format_cores(self._plan.cores[rank])
        wrapper = [sys.executable, "-I", "-S", str(here), str(os.getpid()), cores]
        folder = self._plan.output_dir
        out, err = output_files(folder, rank) if folder else (subprocess.PIPE, subprocess.PIPE)
        process = subprocess.Popen(
            [*wrapper, *self._plan.command],
            env=self._environment(rank),
            stdin=None if rank == 0 and has_input() else subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            # A process group, for signals. The scheduler groups processes by session, and a rank's
            # yield reaches only the ranks in its session.
            preexec_fn=os.setpgrp,
        )
        self._ranks.append(process)
        self._running.add(rank)
        for file in (out, err):
            if not isinstance(file, int):
                file.close()
        prefix = f"[{rank}] " if self._plan.prefix else ""
        output = Output(self._console, rank, prefix, None)
        self._outputs.append(output)
        for pipe, stream in ((process.stdout, output.out), (process.stderr, output.err)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._streams[pipe] = stream
                self._selector.register(
                    pipe, selectors.EVENT_READ, lambda pipe=pipe: self._pump(pipe)
                )

    def _environment(self, rank: int) -> dict[str, str]:
        """Return the rank's environment, with the sockets of this ddlrun instead of an outer
        ddlrun's."""
        environment = {**self._plan.environments[rank], **self._own}
        return {name: v for name, v in environment.items() if v or name not in self._own}

    def _pump(self, pipe: IO[bytes]) -> None:
        if pipe not in self._streams:  # closed after select() reported it
            return
        stream = self._streams[pipe]
        data = os.read(pipe.fileno(), CHUNK)
        if not data:
            self._close(pipe)
        self._show(stream, data)

    def _reader_has_gone(self, sink: Any) -> None:
        for other in [p for p, s in self._streams.items() if s.sink is sink]:
            self._close(other)

    def _close(self, pipe: IO[bytes]) -> None:
        del self._streams[pipe]
        self._selector.unregister(pipe)
        pipe.close()

    def _has_output(self) -> bool:
        return bool(self._streams)

    def _drain(self) -> None:
        super()._drain()
        for stream in self._streams.values():
            stream.end()

    def _ended(self) -> list[Failure]:
        found = []
        for rank in sorted(self._running):
            pid = self._ranks[rank].pid
            # Not reaped before the job ends, so that no other process can get the number of the
            # group.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._running.discard(rank)
                by_signal = ended.si_code != os.CLD_EXITED
                found.append(Failure(rank, pid, ended.si_status, by_signal, self._host))
        return found

    def _read_reports(self) -> None:
        for data in self._reports.read():
            report = reports.parse(data)
            if report is not None:
                self._take_report(report)

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._host} (pid {self._ranks[rank].pid})"

    def _last_lines(self, rank: int) -> list[bytes]:
        if self._plan.output_dir is None:
            return list(self._outputs[rank].last)
        try:
            with open(self._plan.output_dir / f"rank.{rank}.err", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                return file.read().splitlines()[-20:]
        except OSError:  # the file was removed
            return []

    def _is_in_sight(self, rank: int) -> bool:
        if self._plan.output_dir is not None:
            return False
        return self._spoke_last == rank or not root_cause.has_traceback(self._last_lines(rank))

    def _send_signal(self, number: int) -> None:
        for rank in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._ranks[rank].pid, number)

    def _clean_up(self) -> None:
        for rank, process in enumerate(self._ranks):
            if self._first is not None or self._running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            if rank not in self._left:
                process.wait()
        for pipe in list(self._streams):
            self._close(pipe)
        self._witness.close()
        self._selector.close()
        self._reports.close()


def has_input() -> bool:
    """Return True if a rank may read ddlrun's stdin. It may not if stdin is a terminal, because
    ddlrun is its foreground process."""
    return sys.stdin is not None and not sys.stdin.isatty()
