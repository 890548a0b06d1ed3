# SPDX-License-Identifier: Apache-2.0
"""Shares by measured speed: when another map would make the steps shorter, and who is far behind.

Pure, but for what it remembers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from statistics import median

from ddl_elastic.shares.assign import Assignment, assign

WEIGHT = 0.2  # of the latest report in a pace
WIN = 1.05  # how much shorter a step has to become
STEPS = 20  # for so many steps in a row
SPACING = 10.0  # seconds between two changes
EVERY = 1.0  # seconds between two looks
SLOW = 2.0  # times the median's seconds a share: a rank that is reported
SLOW_FOR = 60.0  # seconds
# Seconds until a member without shares, whose pace nobody measures, is tried again: at first, and
# at last, since each time the wait is twice as long.
AGAIN, SELDOM = 30.0, 600.0


class ShareTime:
    """The seconds that one worker takes for a share, the latest ones counting most."""

    def __init__(self) -> None:
        self._shares, self._busy = 0, 0.0
        self.seconds = math.nan

    def record(self, shares: int, busy: float) -> None:
        """It has computed so many shares in so many seconds."""
        new, took = shares - self._shares, busy - self._busy
        self._shares, self._busy = shares, busy
        if new > 0 and took > 0:
            now = took / new
            self.seconds = (
                now if math.isnan(self.seconds) else self.seconds + WEIGHT * (now - self.seconds)
            )


@lru_cache(maxsize=64)
def assigned(workers: int, speeds: tuple[float, ...]) -> Assignment:
    """As every worker and the coordinator find it."""
    return assign(workers, speeds)


class Balance:
    """Of one job. Members are known by their numbers."""

    def __init__(self) -> None:
        self._speeds: dict[int, float] = {}  # that the present map is made for; empty: equal ones
        self._looked = self._changed = -math.inf
        self._uneven: int | None = None  # since this step
        self._slow: dict[int, float] = {}  # since when
        self._told: set[int] = set()
        self._idle: dict[int, float] = {}  # without shares, since when
        self._waits: dict[int, float] = {}  # until it is tried again
        self.tried: dict[int, float] = {}  # by the last look: the seconds that are assumed for each

    def speeds(self, members: Sequence[int]) -> list[float]:
        """That a map of these members is to be made for; empty: equal ones."""
        known = [self._speeds[each] for each in members if each in self._speeds]
        if not known:
            return []
        return [self._speeds.get(each, median(known)) for each in members]

    def is_uneven(self, now: float, step: int, seconds: Mapping[int, float], workers: int) -> bool:
        """Whether there is to be another map; `speeds` gives its speeds then.

        seconds  a share, by member in the order of ranks; all of the members
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
        """Whether one without shares, since it was slow when it had some, may be fast by now."""
        waits = self._waits.get(member, AGAIN)
        return seconds > usual and now - self._idle[member] >= waits

    def stragglers(self, now: float, seconds: Mapping[int, float]) -> Collection[int]:
        """Members that have been slow for long, each told once."""
        known = {member: took for member, took in seconds.items() if not math.isnan(took)}
        limit = SLOW * median(known.values()) if known else math.inf
        self._slow = {
            member: self._slow.get(member, now) for member, took in known.items() if took > limit
        }
        late = {each for each, since in self._slow.items() if now - since >= SLOW_FOR} - self._told
        self._told |= late
        return late
