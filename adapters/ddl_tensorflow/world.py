"""Joining and leaving."""

from __future__ import annotations

import ctypes
import math
import secrets
from typing import Any

import numpy as np

import ddl_core
from ddl_core.errors import BY_STATUS, InternalError, InvalidArgument, InvalidState

_ADDRESS_MAX = 1024  # DDL_ADDRESS_MAX
_MESSAGE = 1024  # kMessage of csrc/control.cpp

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
    cannot be compiled.
    """
    global _place
    if _place is not None:
        raise InvalidState(
            f"initialised already, as rank {_place[0]} of {_place[1]}; see shutdown()"
        )
    if timeout is not None and not 0 < timeout < math.inf:
        raise InvalidArgument(f"timeout: {timeout!r} is not a positive number of seconds")

    from ddl_tensorflow import _build

    control = _build.load().control  # before anybody waits for anybody
    was_there = ddl_core.is_initialized()
    comm = ddl_core.world() if was_there else ddl_core.init(ddl_core.Config(timeout=timeout))
    try:
        _join(control, comm, 0 if timeout is None else max(1, math.ceil(timeout * 1000)))
    finally:
        if not was_there:
            ddl_core.finalize()
    place = (ctypes.c_int * 4)()
    control.ddl_tensorflow_place(place)
    _place = (place[0], place[1], place[2], place[3])


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
        _build.load().control.ddl_tensorflow_leave()


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


def _join(control: ctypes.CDLL, comm: ddl_core.Comm, timeout_ms: int) -> None:
    """Make the native part's own comm: `comm` brings the ranks' addresses to each other."""
    message = ctypes.create_string_buffer(_MESSAGE)
    endpoint, length = ctypes.c_void_p(), ctypes.c_size_t()
    own = ctypes.create_string_buffer(_ADDRESS_MAX)
    status = control.ddl_tensorflow_open(ctypes.byref(endpoint), own, ctypes.byref(length), message)
    _check(status, message)

    addresses = np.zeros((comm.size, _ADDRESS_MAX), np.uint8)
    # Each rank's length, and a tag, of which rank 0's is taken: it tells this comm from others of
    # the same ranks.
    facts = np.zeros((comm.size, 2), np.uint64)
    comm.allgather(np.frombuffer(own.raw, np.uint8), addresses)
    comm.allgather(np.array([length.value, secrets.randbits(63) | 1], np.uint64), facts)
    lengths = (ctypes.c_size_t * comm.size)(*facts[:, 0].tolist())
    status = control.ddl_tensorflow_join(
        endpoint,
        addresses.ctypes.data_as(ctypes.c_char_p),
        lengths,
        comm.rank,
        comm.size,
        ctypes.c_uint64(int(facts[0, 1])),
        ctypes.c_int64(timeout_ms),
        message,
    )
    _check(status, message)


def _check(status: int, message: Any) -> None:
    if status != 0:
        error = BY_STATUS.get(status, InternalError)
        raise error(message.value.decode(errors="replace"))
