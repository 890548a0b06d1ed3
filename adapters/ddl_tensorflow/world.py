"""Joining and leaving."""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np

import ddl_core
from ddl_core.errors import InvalidArgument, InvalidState
from ddl_tensorflow._control import ADDRESS_MAX

_place: tuple[int, int, int, int] | None = None  # rank, size, local rank, local size


def init(*, timeout: float | None = None) -> None:
    """Join the world that this process was started in.

    The world is found as ddl_core.init finds it: ddlrun, mpirun of any MPI, torchrun, srun, or
    alone (size 1).

    timeout: seconds that joining, and later each operation, may take; None: 5 minutes for joining,
    30 for an operation.

    All ranks call it, before functions with operations are compiled by XLA. Raises
    ddl_core.errors.InvalidState on a second call, InvalidArgument for a bad timeout, ddl_core's
    errors when the ranks do not find together, and ddl_core.native.BuildError where the native part
    cannot be compiled. Where there is no compiler, a RuntimeWarning tells what is lost by that.
    """
    global _place
    if _place is not None:
        raise InvalidState(
            f"initialised already, as rank {_place[0]} of {_place[1]}; see shutdown()"
        )
    if timeout is not None and not 0 < timeout < math.inf:
        raise InvalidArgument(f"timeout: {timeout!r} is not a positive number of seconds")

    from ddl_tensorflow import _build

    world = _build.load().world  # before anybody waits for anybody
    was_there = ddl_core.is_initialized()
    comm = ddl_core.world() if was_there else ddl_core.init(ddl_core.Config(timeout=timeout))
    try:
        _join(world, comm, timeout)
    finally:
        if not was_there:
            ddl_core.finalize()
    _place = world.place()


def is_initialized() -> bool:
    """Whether `init` has returned, and `shutdown` was not called since."""
    return _place is not None


def shutdown() -> None:
    """Leave the world, if there is one. `init` may then be called again. Blocks about a second
    where operations are pending, which end with an error. Functions that were compiled by XLA in a
    world of another size are not to be called any more."""
    global _place
    if _place is not None:
        from ddl_tensorflow import _build

        _place = None
        _build.load().world.leave()


def rank() -> int:
    """This process's number among all, from 0 on. InvalidState before `init`."""
    return _world()[0]


def size() -> int:
    """How many processes there are. InvalidState before `init`."""
    return _world()[1]


def local_rank() -> int:
    """This process's number among those that share its memory. InvalidState before `init`."""
    return _world()[2]


def local_size() -> int:
    """How many processes share this one's memory, itself included. InvalidState before `init`."""
    return _world()[3]


def _world() -> tuple[int, int, int, int]:
    if _place is None:
        raise InvalidState("not initialised: call ddl_tensorflow.init() first")
    return _place


def _join(world: Any, comm: ddl_core.Comm, timeout: float | None) -> None:
    """Make the adapter's own comm: `comm` brings the ranks' addresses to each other."""
    own = world.open()
    addresses = np.zeros((comm.size, ADDRESS_MAX), np.uint8)
    # Each rank's length, and a tag, of which rank 0's is taken: it tells this comm from others of
    # the same ranks.
    facts = np.zeros((comm.size, 2), np.uint64)
    comm.allgather(np.frombuffer(own.ljust(ADDRESS_MAX, b"\0"), np.uint8), addresses)
    comm.allgather(np.array([len(own), secrets.randbits(63) | 1], np.uint64), facts)
    listed = [row.tobytes()[: int(n)] for row, n in zip(addresses, facts[:, 0], strict=True)]
    world.join(listed, comm.rank, int(facts[0, 1]), timeout)
