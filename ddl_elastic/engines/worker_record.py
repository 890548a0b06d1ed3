# SPDX-License-Identifier: Apache-2.0
"""The record that an agent keeps of its worker, for a later coordinator. Pure.

A coordinator derives a worker's state from the messages that it receives and sends. The agent
forwards both, and keeps the last message of each kind that a new coordinator needs.
"""

from __future__ import annotations

from typing import get_args

from ddl_elastic.base import protocol
from ddl_elastic.base.messages import Message
from ddl_elastic.base.states import WorkerState

_KEPT: tuple[type[protocol.Kept], ...] = get_args(protocol.Kept)
# Messages of a worker that must all be delivered, because they are displayed or need a reply.
_EVENTS = (
    protocol.RanksRecovered,
    protocol.AuditFinding,
    protocol.RolledBack,
    protocol.OutputLine,
    protocol.QuorumRequest,
)
# The worker's state after it has sent or received a message of this type.
_STATES: dict[type[Message], WorkerState] = {
    protocol.WorkerReady: WorkerState.READY,
    protocol.WarmUp: WorkerState.WARMING,
    protocol.WarmedUp: WorkerState.WARMED,
    protocol.ConnectGroup: WorkerState.RUNNING,
    protocol.StepCommitted: WorkerState.RUNNING,
    protocol.TrainingDone: WorkerState.DONE,
    protocol.WorkerLeft: WorkerState.LEFT,
}


class WorkerRecord:
    """The record of one worker, whose number in the job is `member`."""

    def __init__(self, member: int) -> None:
        self.member, self.state = member, WorkerState.STARTING
        # The _EVENTS that were not delivered to a coordinator.
        self.unheard: list[protocol.FromWorker] = []
        self._kept: dict[type[Message], protocol.Kept] = {}
        self._epoch = self._trainings = 0
        self._group: tuple[int, list[int]] = (0, [])  # the group's number and members
        self._plan: tuple[int, list[int]] = (0, [])  # the active plan's; number 0 means none

    def ordered(self, message: protocol.ToWorker) -> None:
        """Record a message from the coordinator to the worker."""
        self.state = _STATES.get(type(message), self.state)
        if isinstance(message, protocol.ConnectGroup):
            self._trainings += 1
            self._epoch = max(self._epoch, message.epoch)
            self._group, self._plan = (message.epoch, message.members), (0, [])
        elif isinstance(message, protocol.WarmUp):
            self._trainings += 1
        elif isinstance(message, protocol.GroupPlan):
            self._epoch = max(self._epoch, message.plan)
            self._plan = (message.plan, message.members)

    def told(self, message: protocol.FromWorker, heard: bool) -> None:
        """Record a message from the worker. `heard` is True if a coordinator has received it."""
        self.state = _STATES.get(type(message), self.state)
        if isinstance(message, protocol.TrainingBegun) and self.state == WorkerState.DONE:
            self.state = WorkerState.RUNNING  # in the next call of Loop.steps
        if isinstance(message, _KEPT):
            self._kept.pop(type(message), None)
            self._kept[type(message)] = message
        elif isinstance(message, _EVENTS) and not heard:
            self.unheard.append(message)
        elif isinstance(message, protocol.GroupSwitched):
            self._epoch = max(self._epoch, message.plan)
            self._group = (message.plan, message.members)
        if (
            isinstance(message, (protocol.GroupSwitched, protocol.PlanCancelled))
            and message.plan == self._plan[0]
        ):
            self._plan = (0, [])

    @property
    def is_waiting(self) -> bool:
        """True if the worker cannot continue without a coordinator."""
        return self.state not in (WorkerState.RUNNING, WorkerState.DONE, WorkerState.LEFT)

    @property
    def has_trained(self) -> bool:
        return protocol.TrainingDone in self._kept

    @property
    def has_begun(self) -> bool:
        """True if the worker has been connected to a group."""
        return bool(self._group[0])

    def snapshot(self) -> protocol.WorkerSnapshot:
        """Return the message from which a new coordinator recovers."""
        kept = [*self._kept.values()]
        return protocol.WorkerSnapshot(
            self.state, self._epoch, *self._group, *self._plan, self._trainings, kept
        )
