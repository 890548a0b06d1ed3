# SPDX-License-Identifier: Apache-2.0
"""How long a worker may take to join a job that runs, or is about to begin. Pure.

The others do not wait for it until it is in a comm with them, so no watchdog of theirs sees it. One
that hangs before would keep its place, and be part of one plan after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

FOUNDING = 100.0  # seconds that the first workers wait for the rest of them
FIRST = 10  # the limit is so many times that of a job's watchdog: a newcomer may compile
USUAL = 5  # and so many times what the slowest worker has taken so far
STEPS = 5  # that the others commit meanwhile, if it waits for the end of one
LOOKS = 1.0  # seconds between two looks: longer, this process was stopped, and that does not count


class JoinWatchdog:
    """Of the newcomers of one job."""

    def __init__(self) -> None:
        self.seconds = 0.0  # seconds, of the job; 0: there is no limit
        self.usual = 0.0  # seconds that a worker has taken from its start until it was admitted
        self._looked = 0.0
        self._stages: dict[int, tuple[str, float, int]] = {}  # by member, since when it is in it

    @property
    def limit(self) -> float:
        """Seconds in one stage."""
        return max(FIRST * self.seconds, USUAL * self.usual)

    def update(self, now: float, step: int, stages: Mapping[int, str]) -> dict[int, float]:
        """Of those who hang: for how long. `stages`: by newcomer, what it is to do next, or "" if
        it waits for others; with "join" it waits for the end of a step, too."""
        passed, self._looked = min(now - self._looked, LOOKS), now
        known, self._stages = self._stages, {}
        hanging = {}
        for member, stage in stages.items():
            was, seconds, begin = known.get(member, ("", 0.0, step))
            seconds, begin = (seconds + passed, begin) if stage and stage == was else (0.0, step)
            self._stages[member] = stage, seconds, begin
            is_late = self.seconds and seconds > self.limit
            if is_late and (stage != "join" or step - begin >= STEPS):
                hanging[member] = seconds
        return hanging


class StartupWatchdog:
    """Of the first workers of one job, which begin together: one that hangs before holds up all. A
    program may take long until it comes to its job, but the same one does not take much longer on
    one worker than on others."""

    def __init__(self) -> None:
        self._looked = self._waited = self._took = 0.0
        self._ready: Mapping[int, float] = {}

    def update(self, now: float, ready: Mapping[int, float]) -> float:
        """For how long the others have waited for the rest, since the last one came, if that is too
        long; else 0. `ready`: by worker that waits, when it was started."""
        passed, self._looked = min(now - self._looked, LOOKS), now
        if ready.keys() != self._ready.keys():
            self._waited, self._took = 0.0, max((now - each for each in ready.values()), default=0)
        self._ready, self._waited = ready, self._waited + passed if ready else 0.0
        return self._waited if self._waited > max(FOUNDING, USUAL * self._took) else 0.0
