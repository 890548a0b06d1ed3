# SPDX-License-Identifier: Apache-2.0
"""How a coordinator finds out about a job that runs already: from what its agents remember.

It waits for the members of the youngest group that it hears of. Until they are there, or the time
for that is over, it makes no plan. Newcomers know of no group: their agents may be the first ones
that come, but not the only ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ddl_elastic.base.messages import Channel, Message, checked
from ddl_elastic.base.states import WorkerState
from ddl_elastic.coordinator.worker_registry import Worker
from ddl_elastic.engines import Handle, Slot

OTHERS = 5.0  # seconds for the others, when a first worker is there
_MOST = 1 << 16  # workers of a job in all its life
_TOLD = ("ready", "begin", "admitted", "warmed", "progress", "done", "failed", "leave", "left")


class CoordinatorRecovery:
    """What is known so far. `seconds`: for the first worker to be there that is no newcomer."""

    def __init__(self, seconds: float) -> None:
        self._until, self._others_until = time.monotonic() + seconds, math.inf
        self._has_newcomers = False
        self._group = self.plan = 0
        self.members: Collection[int] = ()  # of the youngest group
        self.planned: Collection[int] = ()  # of a plan that may be under way

    def is_too_late(self, workers: Sequence[Worker]) -> bool:
        """Whether nobody has come who could go on."""
        return time.monotonic() > self._until and not self._has_begun(workers)

    def _has_begun(self, workers: Sequence[Worker]) -> bool:
        """Whether somebody is there who is no newcomer, or may be none."""
        if self._has_group(workers):
            return True
        return self._others_until < math.inf and not self._has_newcomers

    def _has_group(self, workers: Sequence[Worker]) -> bool:
        return bool(self._group) or any(worker.joined for worker in workers)

    def begin(self) -> None:
        """A worker is there."""
        self._others_until = min(self._others_until, time.monotonic() + OTHERS)

    def take(self, member: int, standing: dict[str, Any]) -> int:
        """Of a member. Returns the highest number of a worker in it. Raises ValueError."""
        named: list[int] = [*standing["members"], *standing["planned"], member]
        if not all(type(each) is int and 0 <= each < _MOST for each in named):
            raise ValueError(f"members {named}")
        # It was told to warm up, and so that others have begun.
        is_newcomer = bool(standing["trainings"]) and not standing["group"]
        self._has_newcomers = self._has_newcomers or is_newcomer
        if standing["group"] > self._group:
            self._group, self.members = standing["group"], standing["members"]
        if standing["plan"] > self.plan:
            self.plan, self.planned = standing["plan"], standing["planned"]
        if self.plan <= self._group:  # the group has switched to it
            self.plan, self.planned = 0, ()
        return max(named)

    def is_complete(self, workers: Sequence[Worker]) -> bool:
        """Whether nobody is to be waited for."""
        if not self._has_begun(workers):
            return False
        if time.monotonic() > self._others_until:
            return True
        # Where nobody tells of a group, this may be a newcomer that was not told anything.
        has_group = self._has_group(workers)
        awaited = [workers[each] for each in self.members] if has_group else workers
        returning = any(worker.state == WorkerState.RETURNING for worker in workers)
        return not returning and all(map(is_known, awaited))


def replay(standing: dict[str, Any]) -> Iterator[Message]:
    """What the worker has told. Raises ValueError."""
    for each in standing["told"]:
        if not (isinstance(each, list) and len(each) == 2 and each[0] in _TOLD):
            raise ValueError(f"a standing with {each!r}")
        yield checked(*each)


def unknown(member: int) -> Worker:
    """One whose agent has not come back. It may have ended long ago."""
    slot = Slot(-1, "an unknown host", "", 0, "lost")
    return Worker(member, Handle(slot, member, _NOBODY), iter(()), WorkerState.ENDED)


def is_known(worker: Worker) -> bool:
    """Whether an agent has told of it."""
    return worker.handle.slot.id >= 0


class _ClosedChannel(Channel):
    """Where nobody is."""

    def __init__(self) -> None:
        """Has no connection."""

    def send(self, kind: str, **fields: Any) -> None:
        raise BrokenPipeError("this worker is not there")


_NOBODY = _ClosedChannel()
