# SPDX-License-Identifier: Apache-2.0
"""The agent of a host whose slots belong to the pool of `ddl serve`.

For each run of a job that the service requests, it forks a process that serves as the job's agent.
This process and its descendants keep a pipe open. The pipe closes when the last of them exits.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ddl_elastic.base.messages import Channel
from ddl_elastic.base.waiting import ready
from ddl_elastic.engines import protocol
from ddl_elastic.engines.host_agent import JoinRefused

REDIAL = 0.5  # seconds between two attempts to reconnect to the service
LEAVE_LIMIT = 30.0  # seconds for the workers to leave their jobs after SIGTERM or SIGINT


class _Run:
    """A run of a job on this host. Its file descriptor becomes readable when all its processes have
    exited."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._end, write = os.pipe()
        self.is_killed = False  # the service or this agent has ended it
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._end)
            _child(work)
        os.close(write)

    def fileno(self) -> int:
        return self._end

    def kill(self) -> None:
        self.is_killed = True
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """Wait for the run's agent to exit, and return its exit code."""
        os.close(self._end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _child(work: Callable[[], int]) -> None:
    from ddl_elastic.engines import agent

    agent.end_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):  # the pool agent handles them
        signal.signal(number, signal.SIG_IGN)
    code = 1
    try:
        code = work()
    except JoinRefused as error:
        print(f"ddl elastic agent: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _log(text: str) -> None:
    print(f"ddl elastic agent: {text}", file=sys.stderr, flush=True)


class PoolAgent:
    """The agent that serves the runs of a service.

    dial   connects to the service. Raises JoinRefused
    serve  serves the run with this name and port until it ends, and returns the exit code
    wait   seconds to wait for a lost service while there are no runs
    """

    def __init__(
        self,
        dial: Callable[[], Channel[protocol.ToPoolAgent]],
        serve: Callable[[str, int], int],
        wait: float,
    ) -> None:
        self._dial, self._serve, self._wait = dial, serve, wait
        self._control: Channel[protocol.ToPoolAgent] | None = None
        self._runs: dict[str, _Run] = {}
        self._alone_since = 0.0
        self._asked = False  # SIGTERM or SIGINT has arrived
        self._kill_at = float("inf")

    def run(self, control: Channel[protocol.ToPoolAgent]) -> int:
        """Serve until the service is lost or the agent is asked to end. Return the exit code."""
        self._control = control
        _log("connected to the service")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        while self._control or self._reach():
            connections: list[Any] = [*self._runs.values()]
            connections += [self._control] if self._control else []
            found = ready(connections, 0.5)
            self._look_whether_asked()
            for name in [name for name, run in self._runs.items() if run in found]:
                self._end(name)
            if self._control in found and self._control:
                self._hear(self._control)
            if self._kill_at < float("inf") and not self._runs:
                return 0
            if time.monotonic() > self._kill_at:
                for run in self._runs.values():
                    run.kill()
        _log(f"no service has answered for {self._wait:g} s: exiting")
        return 1

    def _ask(self, *_: object) -> None:
        self._asked = True  # send no message here: the signal may have interrupted a send

    def _look_whether_asked(self) -> None:
        if self._asked and self._kill_at == float("inf"):
            _log(f"asked to end: its workers leave their jobs, within {LEAVE_LIMIT:g} s")
            self._kill_at = time.monotonic() + LEAVE_LIMIT
            self._tell(protocol.AgentLeaves())

    def _hear(self, control: Channel[protocol.ToPoolAgent]) -> None:
        try:
            for message in control.poll():
                if isinstance(message, protocol.ServeRun):
                    self._begin(message.run, message.port)
                elif run := self._runs.get(message.run):
                    run.kill()
        except (EOFError, ValueError):
            control.close()
            self._control, self._alone_since = None, time.monotonic()
            _log("the service is away; running jobs continue")

    def _begin(self, run: str, port: int) -> None:
        if run not in self._runs:
            others = [self._control, *self._runs.values()]

            def work() -> int:
                for each in others:  # else this process would keep another run's pipe open
                    if each:
                        os.close(each.fileno())
                return self._serve(run, port)

            self._runs[run] = _Run(work)
        self._tell_runs()

    def _end(self, name: str) -> None:
        run = self._runs.pop(name)
        if (code := run.close()) and not run.is_killed:
            self._tell(protocol.RunUnserved(name, f"run {name} has ended here: status {code}"))
        self._tell_runs()

    def _tell_runs(self) -> None:
        self._tell(protocol.RunsServed(sorted(self._runs)))

    def _tell(self, message: protocol.FromPoolAgent) -> None:
        if self._control:
            with suppress(OSError):  # the next read detects the loss of the service
                self._control.send(message)

    def _reach(self) -> bool:
        """Try to reconnect. Return False after `wait` seconds without the service and any runs."""
        if not self._runs and time.monotonic() > self._alone_since + self._wait:
            return False
        time.sleep(REDIAL)
        with suppress(JoinRefused):
            self._control = self._dial()
            _log("connected to the service again")
            self._tell_runs()
            if self._kill_at < float("inf"):
                self._tell(protocol.AgentLeaves())
        return True
