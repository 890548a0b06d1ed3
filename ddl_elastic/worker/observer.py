# SPDX-License-Identifier: Apache-2.0
"""The role of a joining worker from the switch until it has caught up with the other ranks.

A thread takes part in the other ranks' training steps, without shares, and keeps the results. At
the same time, the program receives and loads the state at the time of the switch (transfer.py).
Then it repeats the steps like a rank without shares, with the kept results in place of sums. When
only few results are left, the thread ends, and afterwards the program itself takes part. Its first
vote reports this to the other ranks, and from then on the rank has shares.

The thread also ends if too many results are kept. The other ranks then wait in the next step until
the program takes part. They also wait for it before any operation except a training step.

The thread handles the recovery from deaths. If the state has not arrived yet, the other ranks send
it again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddl_core import Comm
from ddl_core.errors import DdlError
from ddl_elastic.frameworks.protocol import Array, Framework, Share, State
from ddl_elastic.step.step import Phase, RankGroup, Step
from ddl_elastic.step.transfer import Receiver

MOST = 4  # maximum number of kept results; then the other ranks wait
FEW = 1  # maximum number of kept results at the end of the thread
READY = 2  # sets of arrays that are allocated before the switch


class InPerson(Exception):
    """Error: the program itself must take part in this step."""


@dataclass
class Kept:
    """One result of an observed step, as a protocol.Summed."""

    arrays: Share
    own_ops: Sequence[str]

    def result(self) -> Share:
        return self.arrays

    def ops(self) -> Sequence[str]:
        return self.own_ops

    def free(self, share: Share) -> None:
        """Do nothing: an observed step has no shares."""


class Results:
    """A pool of memory for kept results."""

    def __init__(self, framework: Framework) -> None:
        self._like, self._ops = [*framework.result()], list(framework.ops())
        self._free: list[Share] = []
        for _ in range(READY):
            arrays = self._make()
            for array in arrays:
                array.fill(1)
            self._free.append(arrays)

    def _make(self) -> list[Array]:
        return [np.empty_like(array) for array in self._like]

    def take(self) -> Kept:
        return Kept(self._free.pop() if self._free else self._make(), self._ops)

    def free(self, kept: Kept) -> None:
        self._free.append(kept.arrays)


class Observer:
    """The observer of a rank that has switched to the group's comm.

    number     the number of the other ranks' current or next step
    share_out  sets the owners for the step with a given number
    """

    def __init__(
        self,
        group: RankGroup,
        number: int,
        results: Results,
        receiver: Receiver,
        share_out: Callable[[int], None],
    ) -> None:
        self._group, self._number, self._results = group, number, results
        self._receiver, self._share_out = receiver, share_out
        self._changed = threading.Condition()
        self._kept: deque[tuple[int, Kept]] = deque()
        self._has_state = self._has_ended = False
        self._error: BaseException | None = None
        self._source = group.comm, group.whole  # the ranks that send the state
        group.observes = True
        self._start()

    # ---- the thread ----

    def _start(self) -> None:
        self._has_ended = False
        threading.Thread(target=self._run, name="ddl observer", daemon=True).start()

    def _run(self) -> None:
        try:
            while self._take_part() and not self._is_over():
                pass
        except InPerson:
            pass
        except BaseException as error:
            self._error = error
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _take_part(self) -> bool:
        """Take part in one step. Return True if this rank still observes."""
        self._group.watch.watchdog.begin_step()
        kept = self._results.take()
        step = ObservedStep(self, self._group, self._number, kept)
        for _ in step.shares():
            raise AssertionError("an observer computes no share")
        self._number += 1
        if not step.behind:
            self._share_out(self._number)
        with self._changed:
            self._kept.append((step.number, kept))
            self._changed.notify_all()
        return self._group.member in self._group.observing

    def _is_over(self) -> bool:
        with self._changed:
            return len(self._kept) >= MOST or (self._has_state and len(self._kept) <= FEW)

    def is_whole(self) -> bool:
        """Return True if the state was received. Otherwise drop the kept results."""
        with self._changed:
            if not self._has_state:
                self._kept.clear()
            return self._has_state

    def recovered(self) -> None:
        """Record the group's new comm after a recovery."""
        with self._changed:
            self._source = self._group.comm, self._group.whole
            self._changed.notify_all()

    # ---- the program ----

    def receive(self) -> tuple[State, dict[str, Any]]:
        """Receive the state and the job's position at the time of the switch."""
        while True:
            comm, whole = self._source
            with suppress(DdlError):
                found = self._receiver.receive(comm, whole)
                with self._changed:
                    if comm.error is None:  # else the thread may have reported that it is missing
                        self._has_state = True
                        return found
            self._wait_for_other(comm)

    def _wait_for_other(self, comm: Comm) -> None:
        """Wait until another comm has replaced this dead one as the group's comm."""
        with self._changed:
            while self._source[0] is comm:
                if self._error:
                    raise self._error
                if self._has_ended:
                    self._group.is_awaited = False  # they waited in a step of the dead comm
                    self._start()
                self._changed.wait()

    def take(self, number: int) -> Kept | None:
        """Return the result of a step, or None if the program must take part in it."""
        with self._changed:
            while True:
                while self._kept and self._kept[0][0] < number:
                    self._results.free(self._kept.popleft()[1])
                if self._kept:
                    return self._kept.popleft()[1]
                if self._has_ended:
                    break
                self._changed.wait()
        if self._error:
            raise self._error
        self._group.observes = False
        if self._group.member in self._group.observing:
            self._group.sends_at = None  # only ranks that have the state send it
        if number != self._number:
            raise RuntimeError(
                f"this process is in step {number}, and the others are in {self._number}"
            )
        return None

    def free(self, kept: Kept) -> None:
        """Return the memory of a result to the pool."""
        self._results.free(kept)


class ObservedStep(Step):
    """A step in which a rank's thread takes part without shares."""

    def __init__(self, observer: Observer, group: RankGroup, number: int, kept: Kept) -> None:
        super().__init__(group, number, kept, f"step {number}, observed", trains=True)
        self._observer = observer

    def _missing(self) -> Iterator[int]:
        if self._group.owned and self.phase is not Phase.VOTE:
            raise InPerson
        return iter(())

    def _await(self) -> None:
        self._group.is_awaited = True
        raise InPerson

    def _is_whole(self) -> bool:
        return self._observer.is_whole()

    def _recover(self, *noticed: Any) -> None:
        super()._recover(*noticed)
        self._observer.recovered()
