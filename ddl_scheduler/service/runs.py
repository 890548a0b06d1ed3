# SPDX-License-Identifier: Apache-2.0
"""A run of a job, from its start to its end or a pause, as `ddl serve` sees it from outside."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from ddl_elastic.base.messages import Channel
from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.planning.model import StepTiming
from ddl_scheduler.service.job_stats import JobStats

_NEW = 0.1  # relative change of a measurement from which on it is news


class Run:
    """It holds slots as long as it may use them, or has processes there.

    held  what it holds as far as is known before it tells
    name  by which agents know it; "": it has none, or has not told
    """

    def __init__(self, folder: JobFolder, held: Collection[str], name: str = "") -> None:
        self.folder, self.held, self.name = folder, frozenset(held), name
        self.port = 0  # where agents dial in, if they do
        self.asked = ""  # to pause or cancel
        self.report: dict[str, Any] = {}
        self.known = JobStats()
        self._granted, self._number = self.held, 0
        self._has_told = False
        self.channel: Channel | None = None  # None: it has ended, or is about to
        self._connect()

    def _connect(self) -> None:
        with suppress(OSError):
            self.channel = Channel(self.folder.connect())
            self._has_told = False

    def close(self) -> None:
        """The run goes on."""
        if self.channel:
            self.channel.close()
            self.channel = None

    # ---- what it is asked for ----

    def takes(self, slots: Collection[str]) -> bool:
        """Whether it can be told that it may use just these, which is news to it."""
        return self._has_told and not self.asked and self._granted != frozenset(slots)

    def grant(self, slots: Collection[str]) -> None:
        """It may use these from now on."""
        self._granted, self._number = frozenset(slots), self._number + 1
        self.held |= self._granted
        self._send("grant", number=self._number, slots=sorted(slots))

    def ask(self, what: str) -> None:
        """To pause or to cancel."""
        self.asked = what
        self._send(what)

    def _send(self, kind: str, **fields: Any) -> None:
        if self.channel:
            with suppress(OSError):  # about to be noticed
                self.channel.send(kind, **fields)

    # ---- what it tells ----

    def hear(self) -> bool:
        """Take in what has come. Returns whether the plan may become another one by it."""
        before, told = self.known, self._has_told
        try:
            for message in self.channel.poll() if self.channel else []:
                if message.kind == "listens":
                    self._listens(**message.fields)
                elif message.kind == "told":
                    self._take(**message.fields)
                else:
                    raise ValueError(f"a message {message.kind!r}")
        except (EOFError, ValueError):
            self.close()
        return not told or _is_news(before, self.known)

    def _listens(self, run: str, port: int, number: int, held: list[str]) -> None:
        """It may not have begun, and wait for agents. Other slots can be granted to it already."""
        self.name, self.port = run, port
        self._has_told, self._number = True, number
        self._granted = self.held = frozenset(held)

    def _take(
        self, number: int, held: list[str], report: dict[str, Any], measured: Any, logical: int
    ) -> None:
        if not self._has_told:  # it was started, or adopted
            self._has_told, self._number = True, number
            self._granted = frozenset(held)
        # An answer to an earlier grant does not know the newest one.
        self.held = frozenset(held) | (self._granted if number < self._number else frozenset())
        self.report = report
        left = report["steps_total"] - report["steps"]
        self.known = JobStats(
            logical,
            tuple(
                StepTiming(int(size), int(hosts), float(seconds), float(share))
                for size, hosts, seconds, share in measured
            ),
            left if report["steps_total"] else float("inf"),
        )

    def has_ended(self) -> bool:
        """Whether no process of it is left."""
        if self.channel:
            return False
        with suppress(FileNotFoundError):  # somebody has removed its folder
            lock = self.folder.lock()
            if lock is None:
                self._connect()  # in case that it goes on
                return False
            os.close(lock)
        return True


def run_adopt(folder: JobFolder, held: Collection[str]) -> Run | None:
    """The run that an earlier service has started, if it still has processes."""
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
