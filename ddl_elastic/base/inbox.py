# SPDX-License-Identifier: Apache-2.0
"""The inbox of a worker. It delivers plans to the membership, answers to the caller of `ask`, and
all other messages to the caller of `receive`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ddl_elastic.base.messages import Channel, JobOver, Message


class Inbox:
    """A reader of the worker's channel, with its own thread.

    changed  a condition that is notified when a message has arrived or the channel has ended
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.changed = threading.Condition()
        self._on_plan: Callable[[Message], None] | None = None
        self._early: Message | None = None  # a plan that arrived before `take_plans`
        self._messages: deque[Message] = deque()
        self._answer: Message | None = None
        self._ended: Exception | None = None
        threading.Thread(target=self._run, name="ddl inbox", daemon=True).start()

    def take_plans(self, on_plan: Callable[[Message], None]) -> None:
        """Set the function that the inbox's thread calls with each plan. If a plan has arrived
        since the worker was connected to its group, call the function with it at once."""
        with self.changed:
            self._on_plan = on_plan
            early, self._early = self._early, None
        if early:
            on_plan(early)

    def _pass(self, plan: Message) -> None:
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

    def receive(self) -> Message:
        """Wait for the next message that is neither a plan nor an answer. Raises JobOver."""
        with self.changed:
            self.changed.wait_for(lambda: not self.is_empty)
            if self._messages:
                return self._messages.popleft()
        assert self._ended
        raise self._ended

    def ask(self, limit: float, **question: Any) -> Message | None:
        """Send a quorum request. Return the answer, or None if none arrives in `limit` seconds."""
        with self.changed:
            self._answer = None
        with suppress(OSError):
            self.channel.send("ask", **question)
            with self.changed:
                self.changed.wait_for(lambda: self._answer or self._ended, limit)
        return self._answer

    def _run(self) -> None:
        try:
            while True:
                message = self.channel.receive()
                if message.kind == "plan":
                    self._pass(message)
                else:
                    self._put(message)
        except (EOFError, OSError, ValueError) as error:
            self._end(error)

    def _put(self, message: Message) -> None:
        with self.changed:
            if message.kind == "connect":  # cancels earlier plans
                self._early = None
            if message.kind == "answer":
                self._answer = message
            else:
                self._messages.append(message)
            self.changed.notify_all()

    def _end(self, error: Exception) -> None:
        with self.changed:
            self._ended = JobOver(str(error))
            self.changed.notify_all()
