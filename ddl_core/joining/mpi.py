# SPDX-License-Identifier: Apache-2.0
"""Joining under mpirun: the ranks exchange their endpoints' addresses through MPI.

No other part of libddl uses MPI, so every MPI that mpi4py supports works.
"""

from __future__ import annotations

import secrets
import struct
import time
from typing import TYPE_CHECKING, Any

from ddl_core.base.config import Config
from ddl_core.comm import Comm
from ddl_core.endpoint import Endpoint
from ddl_core.errors import DdlError, InvalidState, Refused, TimedOut, Unreachable, Unsupported
from ddl_core.joining.environment import World

if TYPE_CHECKING:
    from collections.abc import Callable

_SECRET_BYTES = 32
# A rank's record: whether it has an address, the length of the next field, the address or an error.
_RECORD = struct.Struct("?H2045s")
_TEXT_BYTES = 2045
_DEFAULT_TIMEOUT = 300.0  # seconds, as for ddl_comm_create


def connect(world: World, config: Config, host: str | None, secret: str | None) -> Comm:
    """Join all ranks of MPI_COMM_WORLD. All of them call it.

    secret  the job's secret; None makes rank 0 generate one

    Raises the errors of Endpoint and Endpoint.connect, and
        Unsupported  without a usable mpi4py
        Refused      if mpi4py and mpirun belong to different MPIs
        TimedOut     if not all ranks join
        Unreachable  if another rank failed
    """
    mpi = _import()
    comm = mpi.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    if world.size not in (0, size):
        raise Refused(
            f"mpirun started this process as rank {world.rank} of {world.size}, but mpi4py with"
            f" {mpi.Get_library_version().split(',')[0].strip()!r} reports {size} ranks, so it uses"
            " another MPI than mpirun: set MPI4PY_LIBMPI to the library of mpirun's MPI"
        )
    seconds = _DEFAULT_TIMEOUT if config.timeout is None else config.timeout
    deadline = time.monotonic() + seconds

    def finish(request: Any) -> None:
        pause = 1e-5
        while not request.Test():
            if time.monotonic() > deadline:
                raise TimedOut(f"not all of the {size} MPI ranks called init within {seconds} s")
            time.sleep(pause)
            pause = min(2 * pause, 1e-2)

    if secret is None:
        secret = _agree_on_secret(comm, finish)
    endpoint, failure = None, None
    try:
        endpoint = Endpoint(secret=secret, host=host)
        good, text = True, endpoint.address
    except DdlError as error:
        failure = error
        good, text = False, str(error).encode()[:_TEXT_BYTES]
    try:
        own = bytearray(_RECORD.pack(good, len(text), text))
        everybody = bytearray(size * _RECORD.size)
        finish(comm.Iallgather(own, everybody))
        if failure:
            raise failure
        assert endpoint is not None
        return endpoint.connect(_addresses(everybody), rank, config, owned=True)
    except BaseException:
        if endpoint:
            endpoint.close()
        raise


def _import() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise Unsupported(
            f"mpirun started this process, but mpi4py cannot be imported ({error});"
            " pip install 'libddl[mpi]'"
        ) from error
    except RuntimeError as error:  # mpi4py finds no MPI library
        raise Unsupported(
            f"mpirun started this process, but mpi4py does not work: {error}"
        ) from error
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise InvalidState("MPI is not initialized, or is already finalized")
    return MPI


def _agree_on_secret(comm: Any, finish: Callable[[Any], None]) -> str:
    secret = bytearray(secrets.token_bytes(_SECRET_BYTES))
    finish(comm.Ibcast(secret, root=0))
    return secret.hex()


def _addresses(records: bytearray) -> list[bytes]:
    """Return the ranks' addresses. Raises Unreachable, which names the first rank without an
    address, and its error."""
    addresses = []
    for rank, (good, length, text) in enumerate(_RECORD.iter_unpack(records)):
        if not good:
            reason = text[:length].decode(errors="replace")
            raise Unreachable(f"rank {rank} could not open its endpoint: {reason}")
        addresses.append(text[:length])
    return addresses
