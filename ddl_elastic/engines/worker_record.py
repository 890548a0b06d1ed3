# SPDX-License-Identifier: Apache-2.0
"""The record that an agent keeps of its worker, for a later coordinator. Pure.

A coordinator derives a worker's state from the messages that it receives and sends. The agent
forwards both, and keeps the last message of each kind that a new coordinator needs.
"""

from __future__ import annotations

from typing import Any

from ddl_elastic.base.messages import Message
from ddl_elastic.base.states import WorkerState

# Messages of a worker of which only the last one of each kind is needed.
_KEPT = ("ready", "begin", "admitted", "warmed", "progress", "done", "failed", "leave", "left")
# Messages of a worker that must all be delivered, because they are displayed or need a reply.
_EVENTS = ("recovered", "audit", "rollback", "line", "ask")
# The worker's state after it has sent or received a message of this kind.
_STATES = {
    "ready": WorkerState.READY,
    "warm": WorkerState.WARMING,
    "warmed": WorkerState.WARMED,
    "connect": WorkerState.RUNNING,
    "progress": WorkerState.RUNNING,
    "done": WorkerState.DONE,
    "left": WorkerState.LEFT,
}


class WorkerRecord:
    """The record of one worker, whose number in the job is `member`."""

    def __init__(self, member: int) -> None:
        self.member, self.state = member, WorkerState.STARTING
        self.unheard: list[Message] = []  # _EVENTS that were not delivered to a coordinator
        self._kept: dict[str, dict[str, Any]] = {}
        self._epoch = self._trainings = 0
        self._group: tuple[int, list[int]] = (0, [])  # the group's number and members
        self._plan: tuple[int, list[int]] = (0, [])  # the active plan's; number 0 means none

    def ordered(self, message: Message) -> None:
        """Record a message from the coordinator to the worker."""
        kind, fields = message.kind, message.fields
        self.state = _STATES.get(kind, self.state)
        if kind == "connect":
            self._trainings += 1
            self._epoch = max(self._epoch, fields["attempt"])
            self._group, self._plan = (fields["attempt"], fields["members"]), (0, [])
        elif kind == "warm":
            self._trainings += 1
        elif kind == "plan":
            self._epoch = max(self._epoch, fields["plan"])
            self._plan = (fields["plan"], fields["members"])

    def told(self, message: Message, heard: bool) -> None:
        """Record a message from the worker. `heard` is True if a coordinator has received it."""
        kind, fields = message.kind, message.fields
        self.state = _STATES.get(kind, self.state)
        if kind == "begin" and self.state == WorkerState.DONE:  # the next call of Loop.steps
            self.state = WorkerState.RUNNING
        if kind in _KEPT:
            self._kept.pop(kind, None)
            self._kept[kind] = fields
        elif kind in _EVENTS and not heard:
            self.unheard.append(message)
        elif kind == "switched":
            self._epoch = max(self._epoch, fields["plan"])
            self._group = (fields["plan"], fields["members"])
        if kind in ("switched", "void") and fields["plan"] == self._plan[0]:
            self._plan = (0, [])

    @property
    def is_waiting(self) -> bool:
        """True if the worker cannot continue without a coordinator."""
        return self.state not in (WorkerState.RUNNING, WorkerState.DONE, WorkerState.LEFT)

    @property
    def has_trained(self) -> bool:
        return "done" in self._kept

    @property
    def has_begun(self) -> bool:
        """True if the worker has been connected to a group."""
        return bool(self._group[0])

    def snapshot(self) -> dict[str, Any]:
        """Return the fields of the `standing` message, from which a new coordinator recovers."""
        return {
            "state": self.state.value,
            "epoch": self._epoch,
            "group": self._group[0],
            "members": self._group[1],
            "plan": self._plan[0],
            "planned": self._plan[1],
            "trainings": self._trainings,
            "told": [[kind, fields] for kind, fields in self._kept.items()],
        }
