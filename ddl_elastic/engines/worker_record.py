# SPDX-License-Identifier: Apache-2.0
"""What an agent remembers of its worker, for a coordinator that comes later. Pure.

A coordinator knows of a worker what that has told, and what it has told the worker itself. So the
agent, through which both go, keeps the last message of each kind that still means something.
"""

from __future__ import annotations

from typing import Any

from ddl_elastic.base.messages import Message
from ddl_elastic.base.states import WorkerState

# What a worker tells, of which the last one counts.
_KEPT = ("ready", "begin", "admitted", "warmed", "progress", "done", "failed", "leave", "left")
# What happens once, and is not lost: it is shown, or has to be answered.
_EVENTS = ("recovered", "audit", "rollback", "line", "ask")
# The state that a worker is in after a message from it, or to it.
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
    """Of one worker, by the number that it has in the job."""

    def __init__(self, member: int) -> None:
        self.member, self.state = member, WorkerState.STARTING
        self.unheard: list[Message] = []  # events that came while no coordinator was there
        self._kept: dict[str, dict[str, Any]] = {}
        self._epoch = self._trainings = 0
        self._group: tuple[int, list[int]] = (0, [])  # its number, and its members
        self._plan: tuple[int, list[int]] = (0, [])  # one that may be under way; 0: none

    def ordered(self, message: Message) -> None:
        """The coordinator has sent the worker this."""
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
        """The worker has sent this. `heard`: to a coordinator."""
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
        """Whether the worker can do nothing without a coordinator."""
        return self.state not in (WorkerState.RUNNING, WorkerState.DONE, WorkerState.LEFT)

    @property
    def has_trained(self) -> bool:
        return "done" in self._kept

    @property
    def has_begun(self) -> bool:
        """Whether it was told of the others."""
        return bool(self._group[0])

    def snapshot(self) -> dict[str, Any]:
        """Return the fields of the `standing` message, from which a new coordinator recovers."""
        return {
            "state": self.state,
            "epoch": self._epoch,
            "group": self._group[0],
            "members": self._group[1],
            "plan": self._plan[0],
            "planned": self._plan[1],
            "trainings": self._trainings,
            "told": [[kind, fields] for kind, fields in self._kept.items()],
        }
