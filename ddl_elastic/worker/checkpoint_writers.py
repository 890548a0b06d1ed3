# SPDX-License-Identifier: Apache-2.0
"""The choice of the ranks that write a checkpoint, and the wait for the last one.

A rank reports through its shares which parts it has written, so only ranks with shares write.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable

from ddl_elastic.frameworks.protocol import State
from ddl_elastic.step.step import RankGroup
from ddl_elastic.storage.saving import Saver
from ddl_elastic.worker.reporter import Reporter

WRITING = 0.05  # seconds between two votes while a rank writes the last checkpoint
LATE = 30.0  # seconds of writing until the first report; the next one follows after twice the time


class CheckpointWriters:
    """The schedule by which a rank uses its Saver.

    state   returns the state, between two steps
    finish  lets all ranks vote; returns True if a rank with shares has passed True
    """

    def __init__(
        self,
        saver: Saver,
        group: RankGroup,
        state: Callable[[], State],
        finish: Callable[[bool], bool],
        reporter: Reporter,
    ) -> None:
        self._saver, self._group, self._state = saver, group, state
        self._finish, self._reporter = finish, reporter
        self._told = 0, LATE  # (checkpoint that this rank writes, seconds until the next report)

    def boundary(self, steps: int, is_behind: bool) -> None:
        """Begin a checkpoint after `steps` steps if it is due. A rank that is behind skips it."""
        self._tell_abandoned()
        self._tell_held_up(steps)
        writers = self._writers(self._group.whole)
        own = self._group.comm.rank
        if is_behind or own not in writers or not self._can_write():
            self._saver.skip()
        else:
            self._saver.boundary(self._state, steps, writers.index(own), len(writers))

    def save_last(self, steps: int) -> None:
        """Write the state after all steps, unless a complete checkpoint contains it. The checkpoint
        in progress may stay incomplete: a rank has not begun it, or one of its writers has died."""
        if not self._complete(steps):
            comm = self._group.comm
            writers = self._writers(range(comm.size))
            if comm.rank in writers and self._can_write():
                rank, ranks = writers.index(comm.rank), len(writers)
                self._saver.begin(self._state(), steps, rank, ranks)
            else:
                self._saver.skip()
            self._complete(steps)
        self._tell_abandoned()

    def _writers(self, ranks: Iterable[int]) -> list[int]:
        if self._group.shards:  # each rank has ranges that no other rank writes
            return sorted(ranks)
        return sorted(set(self._group.owners).intersection(ranks))

    def _can_write(self) -> bool:
        """Return False if a rank has died, and its ranges of a sharded state have not moved yet."""
        shards, comm = self._group.shards, self._group.comm
        return not shards or not shards.has_begun or shards.is_settled(comm)

    def _complete(self, steps: int) -> bool:
        """Wait for the parts, then for the manifest. Return True, on all ranks, if a checkpoint
        after this number of steps is written."""
        is_saved = False
        for _ in range(2):
            self._wait()
            is_saved = self._finish(self._saver.saved == steps)
        return is_saved

    def _wait(self) -> None:
        """Wait until no rank writes. The ranks vote repeatedly, because a rank that completes no
        operation would seem to hang. A rank that writes for a long time reports this."""
        began, late, writes = time.monotonic(), LATE, True
        while writes:
            is_own = not self._saver.wait(WRITING)
            seconds = time.monotonic() - began
            if is_own and seconds > late:
                late *= 2
                self._tell(
                    f"all wait for it, which has been writing the checkpoint after"
                    f" {self._saver.begun} steps for {seconds:.0f} s"
                )
            writes = self._finish(is_own)

    def _tell_abandoned(self) -> None:
        if error := self._saver.error:
            self._saver.error = None
            self._tell(
                f"the checkpoint after {self._saver.begun} steps is abandoned, the older ones stay:"
                f" {error}"
            )

    def _tell_held_up(self, steps: int) -> None:
        begun, late = self._saver.begun, LATE
        if self._told[0] == begun:
            late = self._told[1]
        seconds = self._saver.held_up(steps)
        if seconds > late:
            self._told = begun, 2 * seconds
            self._tell(
                f"no checkpoint after {steps} steps: it has been writing the one after {begun}"
                f" steps for {seconds:.0f} s"
            )

    def _tell(self, text: str) -> None:
        rank = f"rank {self._group.member} on {socket.gethostname()}"
        self._reporter.line(f"{rank}: {text}")
