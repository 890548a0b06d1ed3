# SPDX-License-Identifier: Apache-2.0
"""The placement of jobs on hosts: a job keeps its slots, and new ones are on few hosts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ddl_scheduler.planning.jobs import Map, PolicySlot


def places_find(
    sizes: Mapping[str, int], kinds: Mapping[str, str], slots: Sequence[PolicySlot], last: Map
) -> dict[str, tuple[str, ...]]:
    """Return the slots of each job, in the order of `slots`. `sizes` must fit the slots of each
    kind.

    A job that shrinks first leaves the hosts on which it has the fewest slots. A job that grows
    prefers the hosts on which it already runs. Large jobs are placed first, each on the hosts that
    it fills best.
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
    """Return at most `size` of a job's slots, preferring the hosts on which the job has the most
    slots."""
    count = Counter(host[slot] for slot in own)
    first = {name: number for number, name in reversed(list(enumerate(map(host.get, own))))}
    return sorted(own, key=lambda slot: (-count[host[slot]], first[host[slot]]))[:size]


def _take(free: dict[str, list[str]], count: int, here: Mapping[str, int]) -> list[str]:
    """Take `count` free slots on the fewest hosts: the job's own hosts first, then the smallest
    host with enough free slots, else the host with the most free slots."""
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
