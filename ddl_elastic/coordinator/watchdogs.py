# SPDX-License-Identifier: Apache-2.0
"""Watchdogs for workers that take too long to join a job. Pure.

The job's members monitor a worker only after it has joined a comm with them. Without these
watchdogs, a worker that hangs earlier would keep its slot and be in each new plan.
"""

from __future__ import annotations

from collections.abc import Mapping

FOUNDING = 100.0  # minimum limit in seconds for the initial workers
FIRST = 10  # a joining worker may take this many times the job's watchdog limit: it may compile
USUAL = 5  # a worker may take this many times the slowest start so far, if that is longer
STEPS = 5  # steps that the job must have committed before a worker is late at the "join" stage
JOIN = "join"  # the stage in which a worker belongs to a plan
LOOKS = 1.0  # maximum seconds counted per update: in a longer pause this process was stopped


class JoinWatchdog:
    """The watchdog for workers that join a running job."""

    def __init__(self) -> None:
        self.seconds = 0.0  # the limit of the job's own watchdog; 0 means no limit
        self.usual = 0.0  # the longest time in seconds from a worker's start to its admission
        self._looked = 0.0
        self._stages: dict[int, tuple[str, float, int]] = {}  # stage, seconds, first step

    @property
    def limit(self) -> float:
        """The maximum number of seconds in one stage."""
        return max(FIRST * self.seconds, USUAL * self.usual)

    def update(self, now: float, step: int, stages: Mapping[int, str]) -> dict[int, float]:
        """Return the workers that hang, each with its seconds in the current stage. `stages` maps
        each joining worker to its stage, or to "" if it waits. The stage "join" includes the wait
        for the end of a step, and continues with the next plan if a plan is cancelled."""
        passed, self._looked = min(now - self._looked, LOOKS), now
        known, self._stages = self._stages, {}
        hanging = {}
        for member, stage in stages.items():
            was, seconds, begin = known.get(member, ("", 0.0, step))
            if not stage and was == JOIN:
                self._stages[member] = was, seconds, begin
                continue
            seconds, begin = (seconds + passed, begin) if stage and stage == was else (0.0, step)
            self._stages[member] = stage, seconds, begin
            is_late = self.seconds and seconds > self.limit
            if is_late and (stage != JOIN or step - begin >= STEPS):
                hanging[member] = seconds
        return hanging


class StartupWatchdog:
    """The watchdog for the initial workers of a job, which all wait until the last one is ready. A
    program may need a long time to create its job, but about the same time on all workers."""

    def __init__(self) -> None:
        self._looked = self._waited = self._took = 0.0
        self._ready: Mapping[int, float] = {}

    def update(self, now: float, ready: Mapping[int, float]) -> float:
        """Return how many seconds the ready workers have waited since the last of them became
        ready, or 0 if that is within the limit. `ready` maps ready workers to their start times."""
        passed, self._looked = min(now - self._looked, LOOKS), now
        if ready.keys() != self._ready.keys():
            self._waited, self._took = 0.0, max((now - each for each in ready.values()), default=0)
        self._ready, self._waited = ready, self._waited + passed if ready else 0.0
        return self._waited if self._waited > max(FOUNDING, USUAL * self._took) else 0.0
