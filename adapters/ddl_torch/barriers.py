# SPDX-License-Identifier: Apache-2.0
"""A barrier that names the missing ranks, for programs in which a rank may hang.

Design notes. An operation that times out ends its comm, but a barrier that times out must not, so
it uses the store. Each rank sets a key. Rank 0 waits for all keys and then sets its verdict, which
the other ranks wait for. A late rank reads the verdict of the barrier that it missed, so all ranks
stay in step. The error messages are Gloo's, because programs search for them.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_GRACE = timedelta(seconds=1)  # how much longer than rank 0 the other ranks wait
_MILLISECOND = timedelta(milliseconds=1)
_PASSED = "passed"

_numbers: Counter[tuple[int, int]] = Counter()  # barriers so far, by a native group's tag and rank


def of_native(backend: Any, limit: timedelta, wait_all_ranks: bool) -> None:
    """Perform a monitored barrier of a native group. A negative limit means the group's timeout."""
    from ddl_torch import _build

    store, tag, timeout = _build.module().store(backend)
    _numbers[tag, backend.rank()] += 1
    limit = timeout if limit < timedelta(0) else limit
    place = (str(tag), _numbers[tag, backend.rank()], backend.rank(), backend.size())
    monitored_barrier(store, *place, limit, wait_all_ranks)


def monitored_barrier(
    store: Any, group: str, number: int, rank: int, size: int, limit: timedelta, every: bool
) -> None:
    """Perform the barrier with this number. The group's name must be unique in its store. With
    `every`, rank 0 names all missing ranks, not only the first one."""
    marks = [_key(group, number, of) for of in range(size)]
    verdict = _key(group, number, "verdict")
    store.set(marks[rank], "here")
    if rank == 0:
        _await_arrivals(store, marks, verdict, limit, every)
        if number > 1:  # all ranks have read the keys of the previous barrier
            for of in (*range(size), "verdict"):
                store.delete_key(_key(group, number - 1, of))
        return
    try:
        store.wait([verdict], limit + _GRACE)
        reason = store.get(verdict).decode()
    except RuntimeError:  # a FileStore raises no DistError
        reason = f"no answer within {limit // _MILLISECOND} ms"
    if reason != _PASSED:
        raise dist.DistBackendError(
            f"ddl: [Rank {rank}]: Rank {rank} successfully reached monitoredBarrier, but received"
            f" errors while waiting for send/recv from rank 0: {reason}"
        )


def _key(group: str, number: int, of: object) -> str:
    return f"monitored_barrier/{group}/{number}/{of}"


def _await_arrivals(
    store: Any, marks: list[str], verdict: str, limit: timedelta, every: bool
) -> None:
    took = f"{limit // _MILLISECOND} ms"
    try:
        store.wait(marks, max(limit, _MILLISECOND))
    except RuntimeError:  # timed out, or lost the store: then `check` raises
        missing = [str(of) for of, mark in enumerate(marks) if not store.check([mark])]
        named = missing if every else missing[:1]
        ranks = f"Rank{'s' * (len(named) != 1)} {', '.join(named)}"
        reason = f"{ranks} failed to pass monitoredBarrier in {took}"
        if not missing:  # the last ranks have just arrived
            reason = f"the last ranks arrived too late, after {took}"
        store.set(verdict, reason)
        raise dist.DistBackendError(
            f"ddl: [Rank 0]: Rank 0 timed out in monitoredBarrier after {took}: {reason}"
        ) from None
    store.set(verdict, _PASSED)
