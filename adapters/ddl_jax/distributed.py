# SPDX-License-Identifier: Apache-2.0
"""jax's own collectives over libddl, for unchanged programs: psum, shard_map, sharded jit.

jaxlib's CPU collectives can use an MPI. csrc/mpi.c implements the part of MPI that XLA needs.
"""

from __future__ import annotations

import ctypes
import logging
import socket
import sys
from typing import Any

from ddl_core import adapter
from ddl_core.errors import InvalidState
from ddl_core.joining.world_comm import launched
from ddl_jax import _build, world

_log = logging.getLogger("ddl_jax")
_comm: Any = None  # MPI_COMM_WORLD


def initialize(*, timeout: float | None = None) -> None:
    """Make the ranks one jax program over all their devices. Call it before jax is imported, on the
    first line of a program.

    Joins the job as `init` does, starts jax.distributed with its coordinator on rank 0, and makes
    jax's CPU collectives use libddl. Afterwards jax.devices() has one device of each rank, in the
    order of ranks, and everything in jax that supports several processes works. The operations of
    ddl_jax may be used, too. `python -m ddl_jax run PROGRAM` does this for an unchanged program.

    XLA supports only one device per process here, and no psum and all_gather of float16 and the
    float8 types (bfloat16 works). The logger "ddl_jax" logs this.

    timeout: as for `init`. All ranks call it. Raises like `init`, and InvalidState if jax has been
    imported already, or has several devices in this process.
    """
    global _comm
    if "jaxlib" in sys.modules:
        raise InvalidState(
            "jax is already imported and has chosen its MPI: call ddl_jax.initialize() before"
            " importing jax, or start the program by python -m ddl_jax run"
        )
    file = _build.part("mpi").build()  # built before this rank waits for other ranks
    library = ctypes.CDLL(str(file))
    library.ddl_jax_mpi_announce(str(file).encode())

    import jax

    world.init(timeout=timeout)
    rank, size = world.rank(), world.size()
    _comm = world.world().duplicate(adapter.comm_config(timeout))
    library.ddl_jax_mpi_open(ctypes.c_void_p(adapter.address(_comm)))
    world.at_shutdown(lambda: _leave(library))
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "mpi")
    jax.distributed.initialize(
        _coordinator(_comm, launched().master),
        num_processes=size,
        process_id=rank,
        cluster_detection_method="deactivate",
    )
    _log.info("rank %d of %d: collectives use libddl; XLA does not support f16 and f8", rank, size)
    if jax.local_device_count() > 1:  # set by jax_num_cpu_devices or XLA_FLAGS
        raise InvalidState(
            f"this process has {jax.local_device_count()} devices, but XLA's collectives over MPI"
            " support only one; start more processes"
        )


def _leave(library: ctypes.CDLL) -> bool:
    """Wait for this thread's programs, and close the MPI of jaxlib. Return True if no thread uses
    it any more."""
    import jax

    # A thread's programs run in order, even if jit is disabled. So this one ends after all programs
    # that the thread has started, including those whose results are dropped but for which other
    # ranks may wait.
    jax.block_until_ready(jax.numpy.zeros(()) + 1)
    return bool(library.ddl_jax_mpi_close())


def _coordinator(comm: Any, master: str | None) -> str:
    """Return the address for jax's coordinator on all ranks: rank 0's host, and a free port on
    it."""
    own = ""
    if comm.rank == 0:
        host = adapter.host_for(comm, master)
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return adapter.share_text(comm, own)
