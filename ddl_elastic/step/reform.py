# SPDX-License-Identifier: Apache-2.0
"""Recovery from a death: the survivors compare their progress and decide how to continue.

The vote ends on no rank before every rank has entered it. The committed steps of two ranks
therefore differ by at most one, and a rank that is behind already has the missing result and
applies it. If no rank has committed the step and all have its result, they vote again. Otherwise
the survivors adopt the shares of the dead ranks. Survivors keep their computed shares. No state is
copied and no step is undone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ddl_core import Comm, Config
from ddl_core.errors import Aborted, DdlError, Minority, Mismatch, PeerLost
from ddl_elastic.step.watchdog import Watchdog

SHRINK_LIMIT = 1800.0  # seconds; the watchdog acts earlier
POLL = 0.01  # seconds between two polls of a comm while its rank computes
WORD = 63  # bits of a word in a list of logical workers
# The errors that end a comm for its members: a member died, or its program aborted the comm or
# failed in it.
LOST = (PeerLost, Aborted)
# Asks the coordinator whether a side without a majority may continue. Takes its members by rank and
# the missing members. Returns "" if it may, else the reason why not.
RequestQuorum = Callable[[Sequence[int], Sequence[int]], str]
UNKNOWN = -(1 << 62)  # the step of a rank that does not know the step of the other ranks


class NoSurvivorHasState(RuntimeError):
    """Error: all ranks that had the state have died."""


@dataclass(frozen=True)
class RankProgress:
    """The progress of a rank. `owned` holds the logical workers whose shares it has in `step`."""

    member: int  # a number that stays the same when the rank changes
    step: int
    has_result: bool
    owned: Collection[int]
    whole: bool = True  # True if it has the state; a joining worker does not have it at first
    follows: bool = False  # other ranks have switched to the planned comm, and this one follows
    has_begun: bool = False  # it has begun the step; otherwise it is switching to a planned comm
    first_left: bool = False  # rank 0 has closed the old comm without having died
    is_new: bool = False  # it has joined, and no share of it has been compared yet
    plan: int = 0  # the number of the plan for which it has voted, see membership.py

    def words(self, workers: int) -> npt.NDArray[np.int64]:
        """Return the fields as 64-bit numbers. The length is the same on all ranks."""
        masks = [0] * -(-workers // WORD)
        for worker in self.owned:
            masks[worker // WORD] |= 1 << worker % WORD
        flags = self.has_result | self.whole << 1 | self.follows << 2 | self.has_begun << 3
        flags |= self.first_left << 4 | self.is_new << 5
        return np.array([self.member, self.step, self.plan, flags, *masks], np.int64)

    @classmethod
    def from_words(cls, words: Sequence[int], workers: int) -> RankProgress:
        member, step, plan, flags, *masks = words
        owned = [v for v in range(workers) if masks[v // WORD] >> v % WORD & 1]
        has_result, *more = (bool(flags >> bit & 1) for bit in range(6))
        return replace(cls(member, step, has_result, owned, *more), plan=plan)


class Action(Enum):
    APPLY = "apply the result that this rank holds; others have"
    VOTE = "vote again"
    COMPUTE = "compute the adopted shares"


@dataclass(frozen=True)
class Decision:
    """The next action of a rank. `owners` holds the owners in `step`, or -1 for shares that need
    not be computed again."""

    action: Action
    step: int
    owners: tuple[int, ...]
    adopted: int  # number of shares that had lost their owners


def decide(ranks: Sequence[RankProgress], rank: int, workers: int) -> Decision:
    """Return the action of `rank` from all ranks' progress. Raises NoSurvivorHasState. Pure."""
    whole = [number for number, each in enumerate(ranks) if each.whole]
    if not whole:
        raise NoSurvivorHasState("no process is left that has the state")
    step = max(each.step for each in ranks)
    ranks = [replace(each, step=step) if each.step == UNKNOWN else each for each in ranks]
    behind = [each for each in ranks if each.step < step]
    for each in behind:
        if each.step != step - 1 or not each.has_result:
            raise RuntimeError(
                f"member {each.member} is in step {each.step} and"
                f" {'has' if each.has_result else 'lacks'} its result, while others are in {step}"
            )
    owners = [-1] * workers
    for number, each in enumerate(ranks):
        for worker in each.owned if each.step == step else ():
            if owners[worker] >= 0:
                raise RuntimeError(f"logical worker {worker} of step {step} has two owners")
            owners[worker] = number
    if not behind and all(each.has_result for each in ranks):
        return Decision(Action.VOTE, step, tuple(owners), 0)
    action = Action.APPLY if ranks[rank].step < step else Action.COMPUTE
    return Decision(action, step, tuple(adopt(owners, whole)), owners.count(-1))


def adopt(owners: Sequence[int], ranks: Sequence[int]) -> list[int]:
    """Return the owners. A share without an owner goes to the rank with the fewest shares. Pure."""
    adopted, counts = list(owners), {rank: owners.count(rank) for rank in ranks}
    for worker, owner in enumerate(owners):
        if owner < 0:
            adopted[worker] = min(ranks, key=counts.__getitem__)
            counts[adopted[worker]] += 1
    return adopted


def may_have_agreed(ranks: Sequence[RankProgress]) -> bool:
    """Return True if a vote for a plan may have ended on a rank that has left: all ranks have voted
    for the same plan. Otherwise, that rank's program has failed. Pure."""
    plans = {each.plan for each in ranks}
    return len(plans) == 1 and plans != {0}


class Survivors(NamedTuple):
    """The ranks that have left a dead comm together.

    died  the members of the dead comm that are known to have died. Other missing members may have
          switched to a planned comm, and may have died there
    """

    comm: Comm
    ranks: list[RankProgress]
    died: list[int]


def survivors(
    comm: Comm,
    own: RankProgress,
    workers: int,
    observe: Callable[[Comm], None] = lambda _: None,
    members: Sequence[int] = (),
    request_quorum: RequestQuorum | None = None,
) -> Survivors:
    """Shrink a dead comm. Return the survivors, with the progress of each.

    All survivors call it. Raises ddl_core.errors.Minority if the others continue without this rank.
    If a rank has closed the comm without having died, it has switched to the planned comm, and all
    survivors follow (see membership.py).

    observe  called with each comm in which this rank may have to wait
    members  member numbers by rank; without them no quorum is requested, and all missing members
             count as living
    """
    known, died = [*members], list[int]()
    while True:
        observe(comm)
        try:
            following = _shrink(comm, members, request_quorum)
        except Minority as error:
            raise Minority(f"the other ranks have expelled this process: {error}") from None
        members = ()  # some of them may have left
        observe(following)
        failed = {*comm.failed()}
        died += (known[rank] for rank in sorted(failed) if known)
        known = [member for rank, member in enumerate(known) if rank not in failed]
        if comm.size - following.size > len(failed):
            known = []  # the ranks of the other members are unknown from now on
            is_first = following.rank == 0 and comm.rank > 0  # this rank replaces rank 0
            first_left = own.first_left or (is_first and 0 not in failed)
            own = replace(own, follows=True, first_left=first_left)
        with suppress(Mismatch):
            comm.close()
        comm = following
        with suppress(*LOST):
            return Survivors(comm, gather(comm, own, workers), died)


def _shrink(comm: Comm, members: Sequence[int], request_quorum: RequestQuorum | None) -> Comm:
    """Shrink the comm, if necessary with the coordinator's permission. Raises Minority."""
    config = Config(timeout=SHRINK_LIMIT)
    try:
        return comm.shrink(config)
    except Minority as error:
        missing = comm.failed()
        if not (request_quorum and members and missing):
            raise
        if why := request_quorum(members, [members[rank] for rank in missing]):
            raise Minority(f"{error}; {why}") from None
    for rank in missing:
        comm.expel(rank, "the job's coordinator has declared it dead")
    return comm.shrink(config)


def gather(comm: Comm, own: RankProgress, workers: int) -> list[RankProgress]:
    """Return the progress of each rank. Raises one of LOST."""
    words = own.words(workers)
    table = np.empty((comm.size, len(words)), np.int64)
    comm.allgather(words, table.reshape(-1))
    return [RankProgress.from_words(row, workers) for row in table.tolist()]


class Watch:
    """A watch on a comm while its rank computes. If the comm dies, a thread leaves it with the
    other survivors, so that they need not wait until this rank has computed its share."""

    def __init__(
        self, watchdog: Watchdog | None = None, request_quorum: RequestQuorum | None = None
    ) -> None:
        self.watchdog, self._request_quorum = watchdog or Watchdog(), request_quorum
        # Called with each comm that replaces a dead one.
        self.serve: Callable[[Comm], None] = lambda _: None
        self.noticed = 0.0  # time at which the thread found the comm dead; 0 if it has not
        self._watched: tuple[Comm, RankProgress, int, Sequence[int]] | None = None
        self._lock = threading.Lock()  # guards `noticed` and `_watched`
        self._left = threading.Event()
        self._found: Survivors | BaseException | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(
        self, comm: Comm, own: RankProgress, workers: int, members: Sequence[int] = ()
    ) -> None:
        """Start to watch the comm. The caller must not use it until `end`, except with `submit`."""
        self.watchdog.observe(comm)
        with self._lock:
            self.noticed, self._watched = 0.0, (comm, own, workers, members)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def submit(self, function: Callable[[], object]) -> None:
        """Call a function that submits operations. Do not call it if the comm is known to be dead,
        because the thread of this watch then leaves the comm."""
        with self._lock:
            if not self.noticed:
                function()

    def end(self) -> Survivors | None:
        """Stop watching. If the comm has died, return the result of `survivors` or raise its error.
        Otherwise return None."""
        with self._lock:
            self._watched = None
            if not self.noticed:
                return None
        self._left.wait()
        self._left.clear()
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found

    def follow(self, dead: Comm, error: DdlError) -> tuple[Comm, list[int]] | None:
        """Return the comm and the members with which this rank continues after a comm has died, or
        None if `end` raises an error. Raises `error` if no comm is watched."""
        with self._lock:
            watched = self._watched
        if watched is None:
            raise error
        comm, own, workers, _ = watched
        if dead is comm:
            self._left.wait()
        elif isinstance(self._found, tuple) and dead is self._found[0]:  # it has died, too
            members = [each.member for each in self._found[1]]
            try:
                self._found = self.survivors(dead, own, workers, members)
            except BaseException as failure:
                self._found = failure
        if not isinstance(self._found, tuple):
            return None
        return self._found[0], [each.member for each in self._found[1]]

    def survivors(
        self, comm: Comm, own: RankProgress, workers: int, members: Sequence[int] = ()
    ) -> Survivors:
        """Call the function `survivors`; the watchdog observes the comms."""

        def observe(following: Comm) -> None:
            self.watchdog.observe(following)
            if following is not comm:
                self.serve(following)

        return survivors(comm, own, workers, observe, members, self._request_quorum)

    def close(self) -> None:
        """Stop the threads."""
        self._closed.set()
        self.watchdog.close()

    def _run(self) -> None:
        while not self._closed.wait(POLL):
            with self._lock:
                watched = self._watched
                if watched is None or self.noticed or watched[0].error is None:
                    continue
                self.noticed = time.monotonic()
            try:
                self._found = self.survivors(*watched)
            except BaseException as error:
                self._found = error
            self._left.set()
