"""jax's own collectives over libddl: psum, all_gather, shard_map, sharded jit, unchanged.

jaxlib's CPU collectives can be an MPI. csrc/mpi.c is one, as far as XLA needs it.
"""

from __future__ import annotations

import ctypes
import logging
import socket
import sys
from typing import Any

from ddl_jax import _build, world

_log = logging.getLogger("ddl_jax")
_LOOPBACK = "127.0.0.1"
_comm: Any = None  # what MPI_COMM_WORLD is


def initialize(*, timeout: float | None = None) -> None:
    """Make the ranks one jax program over all their devices: the first line of a program, before
    jax is imported.

    Joins the world as `init` does, starts jax.distributed with its coordinator on rank 0, and has
    jax's CPU collectives go over libddl. Afterwards jax.devices() has one device of each rank, in
    the order of ranks, and all of jax that works on several processes works. The operations of
    ddl_jax may be used as well. `python -m ddl_jax run PROGRAM` does this for a program that knows
    nothing of it.

    What XLA does not allow by this way: more than one device per process, and psum and all_gather
    of float16 and the float8 types (bfloat16 works). It is logged to the logger "ddl_jax".

    timeout: as for `init`. All ranks call it. Raises like `init`; InvalidState where jax has been
    imported already, or has several devices in this process.
    """
    global _comm
    from ddl_core.errors import InvalidState
    from ddl_core.world_comm import launched

    if "jaxlib" in sys.modules:
        raise InvalidState(
            "jax has been imported already, and with it its MPI chosen: call ddl_jax.initialize()"
            " first, or start the program by python -m ddl_jax run"
        )
    file = _build.build(_build.MPI)  # before anybody waits for anybody
    library = ctypes.CDLL(str(file))
    library.ddl_jax_mpi_announce(str(file).encode())

    import jax

    world.init(timeout=timeout)
    rank, size = world.rank(), world.size()
    _comm = world.world().duplicate(world.config(timeout))
    library.ddl_jax_mpi_open(ctypes.c_void_p(world.address(_comm)))
    world.at_shutdown(lambda: _leave(library))
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "mpi")
    jax.distributed.initialize(
        _coordinator(_comm, launched().master),
        num_processes=size,
        process_id=rank,
        cluster_detection_method="deactivate",
    )
    _log.info("rank %d of %d: collectives over libddl; XLA refuses those of f16 and f8", rank, size)
    if jax.local_device_count() > 1:  # by jax_num_cpu_devices or XLA_FLAGS
        raise InvalidState(
            f"there are {jax.local_device_count()} devices in this process, but XLA's collectives"
            " by MPI are for one; start more processes"
        )


def _leave(library: ctypes.CDLL) -> bool:
    """Take the world back from jaxlib. Whether nobody uses it any more."""
    import jax

    # A thread's programs run one after the other. So this one ends when all have that the thread
    # has started, also those whose results nobody keeps, but the other ranks may wait for.
    jax.block_until_ready(jax.numpy.zeros(()) + 1)  # and so it does where jit is disabled
    return bool(library.ddl_jax_mpi_close())


def _coordinator(comm: Any, master: str | None) -> str:
    """Rank 0's host and a free port of it, on all ranks. Between hosts the name that the launcher
    has for it counts before its own, by which the others may not find it."""
    text = bytearray(256)
    if comm.rank == 0:
        alone = comm.local_size == comm.size
        host = _LOOPBACK if alone else master or socket.gethostname()
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        text[: len(own)] = own.encode()
    comm.broadcast(text)
    return text.rstrip(b"\0").decode()
