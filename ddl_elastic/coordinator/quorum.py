# SPDX-License-Identifier: Apache-2.0
"""Who goes on when a group is divided, and a side of it is no majority: the coordinator is asked.

libddl lets a side go on that has more than half of the ranks which may be alive, or half of them
with the lowest one. A rank does not count if a witness on its host has seen its process end; but a
host that is lost takes its witnesses with it. The coordinator knows more: an agent may have told of
the end before, or the agent's connection has ended, and it has not dialed again. With that, the
same rule holds once more. A host that merely does not answer proves nothing: its workers may be the
side that goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddl_elastic.coordinator.worker_registry import Worker

MORE = 2.0  # seconds, until it is known that a host does not answer


@dataclass(frozen=True)
class _QuorumRequest:
    asked: float
    members: Sequence[int]  # of the divided group, by rank
    missing: Collection[int]


class QuorumArbiter:
    """Decides which side of a divided group may continue, for the workers of one job.

    silence  seconds after which an agent whose connection has ended counts as ended
    dead     members that the others have counted as dead
    answer   called with a worker, and why it may not go on; "": it may
    grant    called once for each set of missing members, with those who go on without them
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
        self._open: dict[int, _QuorumRequest] = {}  # by member
        self.given_up: set[int] = set()  # members without whom others were let go on

    def add(self, worker: Worker, fields: Mapping[str, Any], now: float) -> None:
        """Store a worker's request to continue without a majority. Raises ValueError for unknown
        members."""
        members, missing = fields["members"], fields["missing"]
        known = range(len(self._workers))
        if not ({worker.member, *missing} <= {*members} and all(each in known for each in members)):
            raise ValueError(f"members {members}, missing {missing}")
        self._open[worker.member] = _QuorumRequest(now, members, missing)

    def update(self, now: float) -> None:
        """Answer the requests that can be decided by now."""
        for member, request in list(self._open.items()):
            why = self._decide(member, request, now)
            if why is not None:
                del self._open[member]
                self._answer(self._workers[member], why)

    def _decide(self, member: int, request: _QuorumRequest, now: float) -> str | None:
        """Return why a member may not continue; "" if it may, None if that is not known yet."""
        if member in self.given_up or member in self._dead:
            return "others go on without it"
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
        if waits or now < request.asked + self._silence + MORE:
            return None
        names = ", ".join(self._workers[each].name for each in alive)
        return f"{names} may be alive, and go on"

    def _has_ended(self, member: int, now: float) -> bool:
        worker = self._workers[member]
        if member in self.given_up or worker.evidence == "told":
            return True
        return worker.evidence == "closed" and now >= worker.ended + self._silence
