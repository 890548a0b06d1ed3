# SPDX-License-Identifier: Apache-2.0
"""The comm of all ranks that were started together. A process has at most one at a time."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading

from ddl_core.base.config import Config
from ddl_core.comm import Comm
from ddl_core.endpoint import Endpoint
from ddl_core.errors import InvalidState
from ddl_core.joining import env_switches, mpi
from ddl_core.joining.environment import World, detect

_log = logging.getLogger("ddl_core")

_lock = threading.Lock()  # held while init is in progress
_comm: Comm | None = None
_launched = World("alone")  # the world in which init was called


def init(
    config: Config | None = None,
    *,
    secret: str | None = None,
    host: str | None = None,
    invariant: str | None = None,
) -> Comm:
    """Join the world in which this process was started, and return its comm.

    The launcher is detected from the environment: ddlrun, mpirun of any MPI, torchrun, srun, or
    none (size 1), in this order (see joining/environment.py). It is logged to the logger
    "ddl_core". All ranks call this. If DDL_METRICS_PORT is set, each rank serves its metrics until
    `finalize`, at this port plus its local_rank (see ddl_core.metrics).

    config         the options of the comm
    secret, host   as for Endpoint
    invariant      replaces config.invariant

    Raises
        InvalidState           if this process has already joined its world (`finalize` leaves it)
        InvalidArgument        for a bad argument or environment variable
        Unreachable, TimedOut  if not all ranks join within config.timeout
        Refused                if a rank belongs to another job
        Unsupported            under mpirun without mpi4py
    """
    global _comm, _launched
    if not _lock.acquire(blocking=False):
        raise InvalidState("another thread is calling init; wait for it")
    try:
        if _comm is not None and not _comm.closed:
            raise InvalidState(
                f"initialized already, as rank {_comm.rank} of {_comm.size} ({_launched.launcher});"
                " call ddl_core.finalize() first"
            )
        _comm = None
        config = config or Config()
        if invariant is not None:
            config = dataclasses.replace(config, invariant=invariant)
        config.fields()  # raises InvalidArgument before anything is opened
        found = detect(os.environ)
        if found.warning:
            _log.warning(found.warning)
        env_switches.check(found.rank)
        if found.launcher == "mpirun":
            comm = mpi.connect(found, config, host, secret)
        else:
            endpoint = Endpoint(secret=found.secret if secret is None else secret, host=host)
            try:
                if found.url is None:
                    comm = endpoint.connect([endpoint.address], 0, config, owned=True)
                else:
                    comm = endpoint.rendezvous(
                        found.url, found.rank, found.size, config, owned=True
                    )
            except BaseException:
                endpoint.close()
                raise
        _log.info(
            "rank %d of %d, launcher: %s%s; rank %d of the %d ranks that share memory",
            *(comm.rank, comm.size, found.launcher, f" at {found.url}" if found.url else ""),
            *(comm.local_rank, comm.local_size),
        )
        _comm, _launched = comm, found
        env_switches.joined(__package__, comm.rank, comm.local_rank)
        return comm
    finally:
        _lock.release()


def world() -> Comm:
    """Return the comm that `init` created. Raises InvalidState before `init` and after
    `finalize`."""
    comm = _comm
    if comm is None or comm.closed:
        raise InvalidState("not initialized: call ddl_core.init() first")
    return comm


def launched() -> World:
    """Return the world in which `init` was called. Raises InvalidState as `world` does."""
    world()
    return _launched


def is_initialized() -> bool:
    """Return True between `init` and `finalize`."""
    return _comm is not None and not _comm.closed


def finalize() -> None:
    """Leave the world, if there is one. `init` may then be called again."""
    global _comm
    with _lock:
        comm, _comm = _comm, None
        env_switches.left(__package__)
    if comm is not None:
        comm.close()
