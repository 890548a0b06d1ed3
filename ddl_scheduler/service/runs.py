# SPDX-License-Identifier: Apache-2.0
"""A run of a job, from its start to its end or a pause, as `ddl serve` controls it."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from ddl_elastic.base.messages import Channel
from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.planning.model import StepTiming
from ddl_scheduler.runner import protocol
from ddl_scheduler.service.job_stats import JobStats

_NEW = 0.1  # a smaller relative change of a measurement does not trigger a plan


class Run:
    """A run of a job. It holds a slot as long as it may use the slot or has processes there.

    held  the slots that it is assumed to hold before its first report
    name  the name by which agents know it; "" if it uses no agents, or has not reported
    """

    def __init__(self, folder: JobFolder, held: Collection[str], name: str = "") -> None:
        self.folder, self.held, self.name = folder, frozenset(held), name
        self.port = 0  # the port for agents; 0 if there is none
        self.asked = ""  # "pause" or "cancel" once it was requested
        self.report: dict[str, Any] = {}
        self.known = JobStats()
        self._granted, self._number = self.held, 0
        self._has_told = False
        # None if the run has ended, or is about to end.
        self.channel: Channel[protocol.FromRun] | None = None
        self._connect()

    def _connect(self) -> None:
        with suppress(OSError):
            self.channel = Channel(self.folder.connect(), protocol.FROM_RUN)
            self._has_told = False

    def close(self) -> None:
        """Disconnect. The run continues."""
        if self.channel:
            self.channel.close()
            self.channel = None

    # ---- requests to the run ----

    def takes(self, slots: Collection[str]) -> bool:
        """Return True if the run can be granted a new set of slots, and these slots differ from the
        slots that it may use now."""
        return self._has_told and not self.asked and self._granted != frozenset(slots)

    def grant(self, slots: Collection[str]) -> None:
        """Allow the run to use these slots from now on."""
        self._granted, self._number = frozenset(slots), self._number + 1
        self.held |= self._granted
        self._send(protocol.GrantSlots(self._number, sorted(slots)))

    def ask(self, what: str) -> None:
        """Request the run to pause or to cancel."""
        self.asked = what
        self._send(protocol.PauseRun() if what == "pause" else protocol.CancelRun())

    def _send(self, message: protocol.ToRun) -> None:
        if self.channel:
            with suppress(OSError):  # the next poll detects the lost connection
                self.channel.send(message)

    # ---- reports of the run ----

    def hear(self) -> bool:
        """Handle the received messages. Return whether they may change the plan."""
        before, told = self.known, self._has_told
        try:
            for message in self.channel.poll() if self.channel else []:
                if isinstance(message, protocol.RunListens):
                    self._listens(message)
                else:
                    self._take(message)
        except (EOFError, ValueError):
            self.close()
        return not told or _is_news(before, self.known)

    def _listens(self, message: protocol.RunListens) -> None:
        """Record the run's port. From now on, the run can be granted other slots, even while it
        waits for agents."""
        self.name, self.port = message.run, message.port
        self._has_told, self._number = True, message.number
        self._granted = self.held = frozenset(message.held)

    def _take(self, status: protocol.RunStatus) -> None:
        if not self._has_told:  # the run was just started or adopted
            self._has_told, self._number = True, status.number
            self._granted = frozenset(status.held)
        # A reply to an earlier grant does not include the newest one.
        earlier = self._granted if status.number < self._number else frozenset[str]()
        self.held = frozenset(status.held) | earlier
        self.report = status.report
        total = self.report["steps_total"]
        self.known = JobStats(
            status.logical,
            tuple(StepTiming(*each) for each in status.measured),
            total - self.report["steps"] if total else float("inf"),
        )

    def has_ended(self) -> bool:
        """Return True if no process of the run is left."""
        if self.channel:
            return False
        with suppress(FileNotFoundError):  # another process has removed its folder
            lock = self.folder.lock()
            if lock is None:
                self._connect()  # in case the run continues
                return False
            os.close(lock)
        return True


def run_adopt(folder: JobFolder, held: Collection[str]) -> Run | None:
    """Return the run that an earlier service started, or None if it has no process left."""
    if not folder.path.is_dir():
        return None
    lock = folder.lock()
    if lock is not None:
        os.close(lock)
        return None
    return Run(folder, held)


def _is_news(before: JobStats, now: JobStats) -> bool:
    old = {(report.size, report.hosts): report.seconds for report in before.reports}
    return before.logical != now.logical or any(
        abs(old.get((report.size, report.hosts), 0.0) - report.seconds) > _NEW * report.seconds
        for report in now.reports
    )
