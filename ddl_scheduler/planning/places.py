# SPDX-License-Identifier: Apache-2.0
"""On which hosts a job's slots are: it keeps what it has, else it is on few hosts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ddl_scheduler.planning.jobs import Map, PolicySlot


def places_find(
    sizes: Mapping[str, int], kinds: Mapping[str, str], slots: Sequence[PolicySlot], last: Map
) -> dict[str, tuple[str, ...]]:
    """The slots of each job, in the order of `slots`. `sizes` must fit the slots of each kind.

    A job that shrinks gives up the hosts where it has least. A job that grows prefers hosts where
    it is. Then the largest are placed first, each on the hosts that it fills best.
    """
    order = {slot.name: number for number, slot in enumerate(slots)}
    host = {slot.name: slot.host for slot in slots}
    kept = {
        name: _keep([slot for slot in last.get(name, ()) if slot in order], host, size)
        for name, size in sizes.items()
        if size
    }
    taken = {slot for own in kept.values() for slot in own}
    free: dict[str, dict[str, list[str]]] = {}
    for slot in slots:
        if slot.name not in taken:
            free.setdefault(slot.kind, {}).setdefault(slot.host, []).append(slot.name)
    for name in sorted(kept, key=lambda name: (not kept[name], -sizes[name], name)):
        own = kept[name]
        here = Counter(host[slot] for slot in own)
        own += _take(free.get(kinds[name], {}), sizes[name] - len(own), here)
    return {name: tuple(sorted(own, key=order.__getitem__)) for name, own in kept.items()}


def _keep(own: list[str], host: Mapping[str, str], size: int) -> list[str]:
    """At most `size` of a job's slots, those of the hosts where it has most."""
    count = Counter(host[slot] for slot in own)
    first = {name: number for number, name in reversed(list(enumerate(map(host.get, own))))}
    return sorted(own, key=lambda slot: (-count[host[slot]], first[host[slot]]))[:size]


def _take(free: dict[str, list[str]], count: int, here: Mapping[str, int]) -> list[str]:
    """Take `count` free slots of the fewest hosts: of those where the job is, then of the host
    that is just large enough, else of the largest."""
    taken: list[str] = []
    for name in sorted(here, key=lambda name: (-here[name], name)):
        taken += _pop(free, name, count - len(taken))
    while len(taken) < count:
        missing = count - len(taken)
        name = min(
            free,
            key=lambda name: (
                (0, len(free[name]), name)
                if len(free[name]) >= missing
                else (1, -len(free[name]), name)
            ),
        )
        taken += _pop(free, name, missing)
    return taken


def _pop(free: dict[str, list[str]], host: str, count: int) -> list[str]:
    own = free.get(host, [])
    taken, rest = own[:count], own[count:]
    if rest:
        free[host] = rest
    else:
        free.pop(host, None)
    return taken
