# SPDX-License-Identifier: Apache-2.0
"""The arbiter for a group that is divided into sides, none of which has a majority for libddl.

libddl lets a side continue if it has more than half of the ranks that may be alive, or exactly half
including the lowest rank. A rank is known to be dead if a witness on its host reports it. But if
the host is lost, its witnesses are lost, too. A side without a majority then sends a request to the
coordinator, which applies the same rule with more information. It also counts a rank as dead if its
agent reported the exit, or if the agent's connection closed and was not opened again. If a host
merely does not respond, this proves nothing, because its workers may be the side that continues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ddl_elastic.base.protocol import QuorumRequest
from ddl_elastic.coordinator.worker_registry import Worker

MORE = 2.0  # extra seconds in which the coordinator detects that a host does not answer


class QuorumArbiter:
    """The arbiter of one job, which decides which side of a divided group may continue.

    silence  seconds after which an agent whose connection closed counts as dead
    dead     members that other members have declared dead
    answer   called with a worker and the reason why it may not continue; "" means that it may
    grant    called once for each set of missing members: with the side that continues, and the set
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        silence: float,
        dead: Collection[int],
        answer: Callable[[Worker, str], None],
        grant: Callable[[Collection[int], Collection[int]], None],
    ) -> None:
        self._workers, self._silence, self._dead = workers, silence, dead
        self._answer, self._grant = answer, grant
        # Requests without a decision, and their times, by member.
        self._open: dict[int, tuple[QuorumRequest, float]] = {}
        self.given_up: set[int] = set()  # members without which a side was allowed to continue

    def add(self, worker: Worker, request: QuorumRequest, now: float) -> None:
        """Store a worker's request to continue without a majority. Raises ValueError for unknown
        members."""
        members, missing = request.members, request.missing
        known = range(len(self._workers))
        if not ({worker.member, *missing} <= {*members} and all(each in known for each in members)):
            raise ValueError(f"a quorum request with members {members} and missing {missing}")
        self._open[worker.member] = request, now

    def update(self, now: float) -> None:
        """Reply to the requests that can now be decided."""
        for member, (request, asked) in list(self._open.items()):
            why = self._decide(member, request, asked, now)
            if why is not None:
                del self._open[member]
                self._answer(self._workers[member], why)

    def _decide(self, member: int, request: QuorumRequest, asked: float, now: float) -> str | None:
        """Return why a member may not continue, "" if it may, or None if that is undecided."""
        if member in self.given_up or member in self._dead:
            return "other workers continue without it"
        alive = [each for each in request.missing if not self._has_ended(each, now)]
        possible = [
            each for each in request.members if each in alive or each not in request.missing
        ]
        side = len(possible) - len(alive)
        if 2 * side > len(possible) or (2 * side == len(possible) and possible[0] not in alive):
            if not {*request.missing} <= self.given_up:
                self.given_up.update(request.missing)
                self._grant([each for each in possible if each not in alive], request.missing)
            return ""
        waits = any(self._workers[each].evidence == "closed" for each in alive)
        if waits or now < asked + self._silence + MORE:
            return None
        names = ", ".join(self._workers[each].name for each in alive)
        return f"{names} may be alive, and continue"

    def _has_ended(self, member: int, now: float) -> bool:
        worker = self._workers[member]
        if member in self.given_up or worker.evidence == "told":
            return True
        return worker.evidence == "closed" and now >= worker.ended + self._silence
