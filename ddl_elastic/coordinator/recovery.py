# SPDX-License-Identifier: Apache-2.0
"""The recovery of a running job by a new coordinator, from the snapshots of the job's agents.

The coordinator waits for the members of the newest group in these snapshots. It makes no plan until
all of them are found or the time limit expires. Workers that are still joining belong to no group.
If it has found only such workers, the coordinator waits for more agents.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence

from ddl_elastic.base.messages import Channel
from ddl_elastic.base.protocol import FromWorker, WorkerSnapshot
from ddl_elastic.base.states import WorkerState
from ddl_elastic.coordinator.worker_registry import Worker
from ddl_elastic.engines import Handle, Slot

OTHERS = 5.0  # seconds for the other workers after the first one is found


class CoordinatorRecovery:
    """The state of a recovery. `seconds` limits the wait for the first worker of a group."""

    def __init__(self, seconds: float) -> None:
        self._until, self._others_until = time.monotonic() + seconds, math.inf
        self._has_newcomers = False
        self._group = self.plan = 0
        self.members: Collection[int] = ()  # members of the newest group
        self.planned: Collection[int] = ()  # members of the active plan, if there is one

    def is_too_late(self, workers: Sequence[Worker]) -> bool:
        """Return True if the time is over, and no worker was found that can continue the job."""
        return time.monotonic() > self._until and not self._has_begun(workers)

    def _has_begun(self, workers: Sequence[Worker]) -> bool:
        """Return True if a worker has been found that is not known to be joining."""
        if self._has_group(workers):
            return True
        return self._others_until < math.inf and not self._has_newcomers

    def _has_group(self, workers: Sequence[Worker]) -> bool:
        return bool(self._group) or any(worker.joined for worker in workers)

    def begin(self) -> None:
        """Start the time limit for the other workers, because a worker has been found."""
        self._others_until = min(self._others_until, time.monotonic() + OTHERS)

    def take(self, member: int, snapshot: WorkerSnapshot) -> int:
        """Record a member's snapshot. Return the highest worker number in it."""
        # Only a worker that joins a running job gets WarmUp without being in a group.
        is_newcomer = bool(snapshot.trainings) and not snapshot.group
        self._has_newcomers = self._has_newcomers or is_newcomer
        if snapshot.group > self._group:
            self._group, self.members = snapshot.group, snapshot.members
        if snapshot.plan > self.plan:
            self.plan, self.planned = snapshot.plan, snapshot.planned
        if self.plan <= self._group:  # the group has switched to it
            self.plan, self.planned = 0, ()
        return max([*snapshot.members, *snapshot.planned, member])

    def is_complete(self, workers: Sequence[Worker]) -> bool:
        """Return True if the recovery need not wait for any more workers."""
        if not self._has_begun(workers):
            return False
        if time.monotonic() > self._others_until:
            return True
        # Without a known group, wait for all workers: those found may be joining ones.
        has_group = self._has_group(workers)
        awaited = [workers[each] for each in self.members] if has_group else workers
        returning = any(worker.state == WorkerState.RETURNING for worker in workers)
        return not returning and all(map(is_known, awaited))


def unknown(member: int) -> Worker:
    """Return an entry for a worker whose agent has not reconnected. The worker may have exited
    already."""
    slot = Slot(-1, "an unknown host", "", 0, "lost")
    return Worker(member, Handle(slot, member, _NOBODY), iter(()), WorkerState.ENDED)


def is_known(worker: Worker) -> bool:
    """Return True if an agent has connected for this worker."""
    return worker.handle.slot.id >= 0


class _ClosedChannel(Channel[FromWorker]):
    """The channel of a worker whose agent is unknown. Sending always fails."""

    def __init__(self) -> None:
        """Skip the constructor of Channel, because there is no connection."""

    def send_packed(self, message: bytes) -> None:
        raise BrokenPipeError("no agent has connected for this worker")


_NOBODY = _ClosedChannel()
