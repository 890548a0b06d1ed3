# SPDX-License-Identifier: Apache-2.0
"""The agent of a host whose slots are those of `ddl serve`, for as long as that wants them.

For each run of a job that the service names it forks a process, which is the job's agent here. All
that come of it hold a pipe open, so that it is known when the last of them has ended.
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
from ddl_elastic.engines.host_agent import JoinRefused

REDIAL = 0.5  # seconds between two attempts to reach a service that is gone
LEAVE_LIMIT = 30.0  # seconds for the workers to leave by plan, once the agent was asked to end


class _Run:
    """A run that is served here. A connection that can be read once its processes have ended."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._end, write = os.pipe()
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
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """It has ended; the exit code."""
        os.close(self._end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _child(work: Callable[[], int]) -> None:
    from ddl_elastic.engines import agent

    agent.end_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):  # the agent decides
        signal.signal(number, signal.SIG_IGN)
    code = 1
    try:
        code = work()
    except JoinRefused as error:
        print(f"ddl elastic agent: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


class PoolAgent:
    """Serves runs.

    dial   makes a connection to the service. Raises JoinRefused
    serve  is the agent of a run at this port until its end: the exit code
    wait   seconds that a service which is gone is waited for, when nothing is served
    """

    def __init__(
        self, dial: Callable[[], Channel], serve: Callable[[str, int], int], wait: float
    ) -> None:
        self._dial, self._serve, self._wait = dial, serve, wait
        self._control: Channel | None = None
        self._runs: dict[str, _Run] = {}
        self._alone_since = 0.0
        self._asked = False  # to end
        self._kill_at = float("inf")

    def run(self, control: Channel) -> int:
        """To the end: the exit code."""
        self._control = control
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
        return 1

    def _ask(self, *_: object) -> None:
        self._asked = True  # this may be in the midst of a message

    def _look_whether_asked(self) -> None:
        if self._asked and self._kill_at == float("inf"):
            self._kill_at = time.monotonic() + LEAVE_LIMIT
            self._tell("leave")

    def _hear(self, control: Channel) -> None:
        try:
            for message in control.poll():
                if message.kind == "serve":
                    self._begin(**message.fields)
                elif message.kind == "drop" and message.fields["run"] in self._runs:
                    self._runs[message.fields["run"]].kill()
        except (EOFError, ValueError):
            control.close()
            self._control, self._alone_since = None, time.monotonic()

    def _begin(self, run: str, port: int) -> None:
        if run not in self._runs:
            others = [self._control, *self._runs.values()]

            def work() -> int:
                for each in others:  # else the end of another run would not be seen
                    if each:
                        os.close(each.fileno())
                return self._serve(run, port)

            self._runs[run] = _Run(work)
        self._tell_runs()

    def _end(self, name: str) -> None:
        if code := self._runs.pop(name).close():
            self._tell("unserved", run=name, why=f"run {name} has ended here: status {code}")
        self._tell_runs()

    def _tell_runs(self) -> None:
        self._tell("serves", runs=sorted(self._runs))

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._control:
            with suppress(OSError):  # about to be noticed
                self._control.send(kind, **fields)

    def _reach(self) -> bool:
        """Dial again. False when it is no use any more."""
        if not self._runs and time.monotonic() > self._alone_since + self._wait:
            return False
        time.sleep(REDIAL)
        with suppress(JoinRefused):
            self._control = self._dial()
            self._tell_runs()
            if self._kill_at < float("inf"):
                self._tell("leave")
        return True
