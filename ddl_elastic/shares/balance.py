# SPDX-License-Identifier: Apache-2.0
"""The balance of shares by measured speed, and the detection of slow ranks.

The functions are pure except for the state of their objects.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from statistics import median

from ddl_elastic.shares.assign import Assignment, assign

WEIGHT = 0.2  # weight of the latest report in the mean seconds of a share
WIN = 1.05  # required ratio of the old and the new step time
STEPS = 20  # number of steps in a row for which that must hold
SPACING = 10.0  # seconds between two changes
EVERY = 1.0  # seconds between two checks
SLOW = 2.0  # ratio to the median seconds of a share from which a rank is slow
SLOW_FOR = 60.0  # seconds until a slow rank is reported
# Seconds until a member without shares, whose speed is unknown, gets shares again: the first and
# the longest wait. Each wait is twice as long as the one before.
AGAIN, SELDOM = 30.0, 600.0


class ShareTime:
    """The mean seconds that a worker takes for a share. Recent shares have more weight."""

    def __init__(self) -> None:
        self._shares, self._busy = 0, 0.0
        self.seconds = math.nan

    def record(self, shares: int, busy: float) -> None:
        """Record the total number of computed shares and the seconds that they took."""
        new, took = shares - self._shares, busy - self._busy
        self._shares, self._busy = shares, busy
        if new > 0 and took > 0:
            now = took / new
            self.seconds = (
                now if math.isnan(self.seconds) else self.seconds + WEIGHT * (now - self.seconds)
            )


@lru_cache(maxsize=64)
def assigned(workers: int, speeds: tuple[float, ...]) -> Assignment:
    """Return the cached assignment for these speeds, equal on all workers and the coordinator."""
    return assign(workers, speeds)


class Balance:
    """The speeds of one job's members, from which shares are assigned, and the detection of slow
    members. Members are identified by their numbers."""

    def __init__(self) -> None:
        self._speeds: dict[int, float] = {}  # current ones; empty means equal
        self._looked = self._changed = -math.inf
        self._uneven: int | None = None  # the first step of the imbalance
        self._slow: dict[int, float] = {}  # slow members, and since when
        self._told: set[int] = set()
        self._idle: dict[int, float] = {}  # members without shares, and since when
        self._waits: dict[int, float] = {}  # seconds to wait before the member is tried again
        self.tried: dict[int, float] = {}  # members and their assumed seconds

    def speeds(self, members: Sequence[int]) -> list[float]:
        """Return the speeds for the assignment of these members, or [] if they are equal."""
        known = [self._speeds[each] for each in members if each in self._speeds]
        if not known:
            return []
        return [self._speeds.get(each, median(known)) for each in members]

    def is_uneven(self, now: float, step: int, seconds: Mapping[int, float], workers: int) -> bool:
        """Return True if the shares should be assigned again. `speeds` then returns the speeds for
        the new assignment.

        seconds  the seconds of a share for each of the members, in the order of ranks
        """
        self.tried = {}
        if now - self._looked < EVERY:
            return False
        present = tuple(self.speeds([*seconds])) or (1.0,) * len(seconds)
        owned = dict(zip(seconds, assigned(workers, present).ranges, strict=True))
        if any(math.isnan(took) and owned[member] for member, took in seconds.items()):
            return False
        self._looked = now
        usual = median(took for member, took in seconds.items() if owned[member])
        self._idle = {each: self._idle.get(each, now) for each in seconds if not owned[each]}
        due = [each for each in self._idle if self._is_due(each, seconds[each], usual, now)]
        if due and now - self._changed >= SPACING:
            for each in due:
                self._waits[each] = min(2 * self._waits.get(each, AGAIN), SELDOM)
            self.tried = dict.fromkeys(due, usual)
        known = {each: usual if math.isnan(took) else took for each, took in seconds.items()}
        paces = [1 / took for took in {**known, **self.tried}.values()]
        longest = max(len(owned[each]) / pace for each, pace in zip(seconds, paces, strict=True))
        if longest <= WIN * assign(workers, paces).time:
            self._uneven, self.tried = None, {}
            return False
        self._uneven = step if self._uneven is None else self._uneven
        if not self.tried and (step - self._uneven < STEPS or now - self._changed < SPACING):
            return False
        self._uneven, self._changed = None, now
        self._speeds = dict(zip(seconds, paces, strict=True))
        return True

    def _is_due(self, member: int, seconds: float, usual: float, now: float) -> bool:
        """Return True if it is time to retry a member that lost its shares because it was slow."""
        waits = self._waits.get(member, AGAIN)
        return seconds > usual and now - self._idle[member] >= waits

    def stragglers(self, now: float, seconds: Mapping[int, float]) -> Collection[int]:
        """Return the members that have been slow for a long time, each only once."""
        known = {member: took for member, took in seconds.items() if not math.isnan(took)}
        limit = SLOW * median(known.values()) if known else math.inf
        self._slow = {
            member: self._slow.get(member, now) for member, took in known.items() if took > limit
        }
        late = {each for each, since in self._slow.items() if now - since >= SLOW_FOR} - self._told
        self._told |= late
        return late
