# SPDX-License-Identifier: Apache-2.0
"""The inbox of a worker. It delivers plans to the membership, replies to the caller of `ask`, and
all other messages to the caller of `receive`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ddl_elastic.base import protocol
from ddl_elastic.base.messages import JobOver


class Inbox:
    """A reader of the worker's channel, with its own thread.

    changed  a condition that is notified when a message has arrived or the channel has ended
    """

    def __init__(self, channel: protocol.JobChannel) -> None:
        self.channel = channel
        self.changed = threading.Condition()
        self._on_plan: Callable[[protocol.GroupPlan], None] | None = None
        self._early: protocol.GroupPlan | None = None  # a plan that arrived before `take_plans`
        self._messages: deque[protocol.ToWorker] = deque()
        self._reply: protocol.QuorumReply | None = None
        self._ended: Exception | None = None
        threading.Thread(target=self._run, name="ddl inbox", daemon=True).start()

    def take_plans(self, on_plan: Callable[[protocol.GroupPlan], None]) -> None:
        """Set the function that the inbox's thread calls with each plan. If a plan has arrived
        since the worker was connected to its group, call the function with it at once."""
        with self.changed:
            self._on_plan = on_plan
            early, self._early = self._early, None
        if early:
            on_plan(early)

    def _pass(self, plan: protocol.GroupPlan) -> None:
        with self.changed:
            on_plan = self._on_plan
            if on_plan is None:
                self._early = plan
        if on_plan:
            on_plan(plan)

    @property
    def is_empty(self) -> bool:
        """True if `receive` would wait."""
        return not self._messages and self._ended is None

    def receive(self) -> protocol.ToWorker:
        """Wait for the next message that is neither a plan nor a reply. Raises JobOver."""
        with self.changed:
            self.changed.wait_for(lambda: not self.is_empty)
            if self._messages:
                return self._messages.popleft()
        assert self._ended
        raise self._ended

    def ask(self, limit: float, request: protocol.QuorumRequest) -> protocol.QuorumReply | None:
        """Send a request. Return the reply, or None if none arrives in `limit` seconds."""
        with self.changed:
            self._reply = None
        with suppress(OSError):
            self.channel.send(request)
            with self.changed:
                self.changed.wait_for(lambda: self._reply or self._ended, limit)
        return self._reply

    def _run(self) -> None:
        try:
            while True:
                message = self.channel.receive()
                if isinstance(message, protocol.GroupPlan):
                    self._pass(message)
                else:
                    self._put(message)
        except (EOFError, OSError, ValueError) as error:
            self._end(error)

    def _put(self, message: protocol.ToWorker) -> None:
        with self.changed:
            if isinstance(message, protocol.ConnectGroup):  # cancels earlier plans
                self._early = None
            if isinstance(message, protocol.QuorumReply):
                self._reply = message
            else:
                self._messages.append(message)
            self.changed.notify_all()

    def _end(self, error: Exception) -> None:
        with self.changed:
            self._ended = JobOver(str(error))
            self.changed.notify_all()
