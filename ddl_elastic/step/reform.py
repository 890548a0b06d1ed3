# SPDX-License-Identifier: Apache-2.0
"""After a death: who is left, how far they are, and what follows from that.

The vote ends on no rank before every rank has entered it. So the steps that ranks have committed
differ by at most one, and a rank that is behind holds the result that it lacks: it applies that.
If nobody has committed the step and all hold its result, they vote again. Else the shares that
nobody computes any more are adopted. Survivors keep the shares that they have computed; no state
is copied, and nothing is taken back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from ddl_core import Comm, Config
from ddl_core.errors import Aborted, Minority, Mismatch, PeerLost
from ddl_elastic.step.watchdog import Watchdog

SHRINK_LIMIT = 1800.0  # seconds; the watchdog is sooner
POLL = 0.01  # seconds between two looks at a comm, while its rank computes
WORD = 63  # bits of a word in which logical workers are listed
# What a comm ends with: deaths, and members whose programs give it up, or fail, while a thread of
# theirs is in it.
LOST = (PeerLost, Aborted)
# Asks whether a side may go on that is no majority: from the members by rank, and those who are
# missing, why it may not; "": it may.
RequestQuorum = Callable[[Sequence[int], Sequence[int]], str]
UNKNOWN = -1  # the step of one who does not know in which one the others are


class NoSurvivorHasState(RuntimeError):
    """Those who had the state have died."""


@dataclass(frozen=True)
class RankProgress:
    """How far a rank is. `owned` are the logical workers whose shares it computes in `step`."""

    member: int  # a number that it keeps, whatever its rank
    step: int
    has_result: bool
    owned: Collection[int]
    whole: bool = True  # it has the state; a newcomer lacks it at first
    follows: bool = False  # others have gone on to the planned comm, and so does this rank
    has_begun: bool = False  # the step; else it switches to the comm of a plan
    first_left: bool = False  # rank 0 has closed the old comm, alive

    def words(self, workers: int) -> npt.NDArray[np.int64]:
        """As numbers of 64 bits, equally many for all ranks."""
        masks = [0] * -(-workers // WORD)
        for worker in self.owned:
            masks[worker // WORD] |= 1 << worker % WORD
        flags = self.has_result | self.whole << 1 | self.follows << 2 | self.has_begun << 3
        flags |= self.first_left << 4
        return np.array([self.member, self.step, flags, *masks], np.int64)

    @classmethod
    def from_words(cls, words: Sequence[int], workers: int) -> RankProgress:
        member, step, flags, *masks = words
        owned = [v for v in range(workers) if masks[v // WORD] >> v % WORD & 1]
        has_result, *more = (bool(flags >> bit & 1) for bit in range(5))
        return cls(member, step, has_result, owned, *more)


class Action(Enum):
    APPLY = "apply the result that this rank holds; others have"
    VOTE = "vote again"
    COMPUTE = "compute the adopted shares"


@dataclass(frozen=True)
class Decision:
    """What a rank does. The owners are those of `step`, which all are in after an APPLY. A share
    that need not be computed any more, before a VOTE, may have none: -1."""

    action: Action
    step: int
    owners: tuple[int, ...]
    adopted: int  # shares that nobody owned any more


def decide(ranks: Sequence[RankProgress], rank: int, workers: int) -> Decision:
    """From the standings of all ranks: what `rank` does. Pure. Raises NoSurvivorHasState."""
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
    """The owners; of the ranks, that with the fewest gets each share that has none. Pure."""
    adopted, counts = list(owners), {rank: owners.count(rank) for rank in ranks}
    for worker, owner in enumerate(owners):
        if owner < 0:
            adopted[worker] = min(ranks, key=counts.__getitem__)
            counts[adopted[worker]] += 1
    return adopted


def survivors(
    comm: Comm,
    own: RankProgress,
    workers: int,
    observe: Callable[[Comm], None] = lambda _: None,
    members: Sequence[int] = (),
    request_quorum: RequestQuorum | None = None,
) -> tuple[Comm, list[RankProgress]]:
    """The comm of those who are left of a dead one, which is closed, and the standing of each.

    All survivors call it. Raises ddl_core.errors.Minority if the others go on without this rank.

    Who has closed the comm alive has gone on to the planned one, see membership.py: then all ranks
    that are left follow.

    observe: called with each comm that this rank may have to wait in
    members: by rank; empty if they are not known, then no quorum is requested
    """
    while True:
        observe(comm)
        try:
            following = _shrink(comm, members, request_quorum)
        except Minority as error:
            raise Minority(f"this process was counted as dead, so it ends: {error}") from None
        members = ()  # some of them may have left
        observe(following)
        if comm.size - following.size > len(comm.failed()):
            is_first = following.rank == 0 and comm.rank > 0  # and knows what has become of rank 0
            first_left = own.first_left or (is_first and 0 not in comm.failed())
            own = replace(own, follows=True, first_left=first_left)
        with suppress(Mismatch):
            comm.close()
        comm = following
        with suppress(*LOST):
            return comm, gather(comm, own, workers)


def _shrink(comm: Comm, members: Sequence[int], request_quorum: RequestQuorum | None) -> Comm:
    """Raises Minority, also if the coordinator refuses."""
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
        comm.expel(rank, "the job's coordinator has given it up")
    return comm.shrink(config)


def gather(comm: Comm, own: RankProgress, workers: int) -> list[RankProgress]:
    """The standing of each rank. Raises one of LOST."""
    words = own.words(workers)
    table = np.empty((comm.size, len(words)), np.int64)
    comm.allgather(words, table.reshape(-1))
    return [RankProgress.from_words(row, workers) for row in table.tolist()]


class Watch:
    """Looks after a comm while its rank computes: when it is dead, a thread leaves it together with
    the other survivors, so that they need not wait for the end of this rank's share."""

    def __init__(
        self, watchdog: Watchdog | None = None, request_quorum: RequestQuorum | None = None
    ) -> None:
        self.watchdog, self._request_quorum = watchdog or Watchdog(), request_quorum
        self.noticed = 0.0  # when the comm was seen to be dead; 0: it was not
        self._watched: tuple[Comm, RankProgress, int, Sequence[int]] | None = None
        self._lock = threading.Lock()  # of these two
        self._left = threading.Event()
        self._found: tuple[Comm, list[RankProgress]] | BaseException | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(
        self, comm: Comm, own: RankProgress, workers: int, members: Sequence[int] = ()
    ) -> None:
        """From now on the comm is the watch's."""
        self.watchdog.observe(comm)
        with self._lock:
            self.noticed, self._watched = 0.0, (comm, own, workers, members)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def submit(self, function: Callable[[], object]) -> None:
        """Call a function that submits operations, unless the comm was seen to be dead: then the
        thread is leaving it."""
        with self._lock:
            if not self.noticed:
                function()

    def end(self) -> tuple[Comm, list[RankProgress]] | None:
        """The comm is the caller's again. Returns what `survivors` did, if it was seen to be dead;
        raises what that raised."""
        with self._lock:
            self._watched = None
            if not self.noticed:
                return None
        self._left.wait()
        self._left.clear()
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found

    def survivors(
        self, comm: Comm, own: RankProgress, workers: int, members: Sequence[int] = ()
    ) -> tuple[Comm, list[RankProgress]]:
        """See the function of this name; the watchdog observes the comms."""
        return survivors(comm, own, workers, self.watchdog.observe, members, self._request_quorum)

    def close(self) -> None:
        """End the threads."""
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
