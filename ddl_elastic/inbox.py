"""What a worker's job tells it: plans go to its membership, all else waits to be received."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ddl_elastic.messages import Channel, JobOver, Message


class Inbox:
    """Reads the worker's channel, in a thread of its own.

    on_plan  called there with each plan
    changed  notified when something has come
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.changed = threading.Condition()
        self.on_plan: Callable[[Message], None] = lambda _: None
        self._messages: deque[Message] = deque()
        self._ended: Exception | None = None
        threading.Thread(target=self._run, name="ddl inbox", daemon=True).start()

    @property
    def is_empty(self) -> bool:
        """Whether `receive` would wait."""
        return not self._messages and self._ended is None

    def receive(self) -> Message:
        """The next message that is no plan. Raises JobOver."""
        with self.changed:
            self.changed.wait_for(lambda: not self.is_empty)
            if self._messages:
                return self._messages.popleft()
        assert self._ended
        raise self._ended

    def _run(self) -> None:
        try:
            while True:
                message = self.channel.receive()
                if message.kind == "plan":
                    self.on_plan(message)
                else:
                    self._put(message)
        except (EOFError, OSError, ValueError) as error:
            self._end(error)

    def _put(self, message: Message) -> None:
        with self.changed:
            self._messages.append(message)
            self.changed.notify_all()

    def _end(self, error: Exception) -> None:
        with self.changed:
            self._ended = JobOver(str(error))
            self.changed.notify_all()
