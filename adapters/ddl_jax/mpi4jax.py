# SPDX-License-Identifier: Apache-2.0
"""mpi4jax's functions over ddl_jax, and the part of mpi4py that its programs use.

Two lines change:

    from ddl_jax.mpi4jax import MPI    # was: from mpi4py import MPI
    import ddl_jax.mpi4jax as mpi4jax  # was: import mpi4jax

The first use of a communicator joins the job. As in mpi4jax, the transpose of a sum over all ranks
is the identity. Tags are numbers: MPI.ANY_TAG means 0, the default tag of a send.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ddl_core.errors import InvalidArgument, Unsupported
from ddl_jax import collectives, communicators, world
from ddl_jax.arrays import as_array

if TYPE_CHECKING:
    from ddl_core.base.names import Op


class Comm:
    """A communicator: MPI.COMM_WORLD, or a part of it."""

    def __init__(self, part: communicators.Communicator | None = None) -> None:
        self._part = part

    def Get_rank(self) -> int:
        """Return the number of this process."""
        return _members(self)[1]

    def Get_size(self) -> int:
        """Return the number of processes."""
        return _members(self)[2]

    rank, size = property(Get_rank), property(Get_size)

    def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """Create a communicator of the processes that give the same color; None for
        MPI.UNDEFINED."""
        chosen = None if color == UNDEFINED else color
        _members(self)
        of = communicators if self._part is None else self._part
        part = of.split(chosen, key)
        return None if part is None else Comm(part)

    def Clone(self) -> Comm:
        """Create a communicator of the same processes."""
        part = self.Split()
        assert part is not None
        return part

    Dup = Clone

    def Barrier(self) -> None:
        """Wait until all processes have called this."""
        barrier(comm=self)

    def Free(self) -> None:
        """Do nothing: a communicator ends with the job."""


class Status:
    """The status of a received message. Reading it waits for JAX."""

    def __init__(self) -> None:
        self._source, self._tag = -1, -1

    def Get_source(self) -> int:
        """Return the sender's rank."""
        jax.effects_barrier()
        return self._source

    def Get_tag(self) -> int:
        """Return the tag."""
        jax.effects_barrier()
        return self._tag

    source, tag = property(Get_source), property(Get_tag)

    def _fill(self, source: Any, tag: int) -> None:
        self._source, self._tag = int(source), tag


# ---- names of mpi4py's MPI; an op is libddl's name ----

MPI = sys.modules[__name__]
ANY_SOURCE, ANY_TAG, UNDEFINED = -1, -1, -32766
SUM, PROD, MIN, MAX = "sum", "product", "min", "max"
BAND, BOR, BXOR, LAND, LOR = "bit_and", "bit_or", "bit_xor", "logical_and", "logical_or"
COMM_WORLD = Comm()


# ---- mpi4jax's functions; comm: None for all ranks ----


def allreduce(x: Any, op: Op, *, comm: Comm | None = None) -> jax.Array:
    """Combine all processes' arrays."""
    part = _part(comm)
    return collectives.allreduce(x, op, comm=part, transpose="identity")


def allgather(x: Any, *, comm: Comm | None = None) -> jax.Array:
    """Return all processes' arrays, along a new first dimension."""
    return collectives.allgather(as_array(x)[None], comm=_part(comm))


def alltoall(x: Any, *, comm: Comm | None = None) -> jax.Array:
    """Send x[i] to process i, and return the received arrays. x has `size` rows."""
    part, own = _part(comm), as_array(x)
    _check_rows("x", own, _members(comm)[2])
    return collectives.alltoall(own, comm=part)


def barrier(*, comm: Comm | None = None) -> None:
    """Wait until all processes have called this."""
    collectives.barrier(comm=_part(comm))


def bcast(x: Any, root: int, *, comm: Comm | None = None) -> jax.Array:
    """Return the root's array."""
    return collectives.broadcast(x, root, comm=_part(comm))


def gather(x: Any, root: int, *, comm: Comm | None = None) -> jax.Array:
    """Return all processes' arrays on the root, along a new first dimension; elsewhere x."""
    everyone = allgather(x, comm=comm)
    return everyone if _members(comm)[1] == root else as_array(x)


def reduce(x: Any, op: Op, root: int, *, comm: Comm | None = None) -> jax.Array:
    """Return the result of `allreduce` on the root; elsewhere x."""
    combined = collectives.allreduce(x, op, comm=_part(comm))
    return combined if _members(comm)[1] == root else as_array(x)


def scan(x: Any, op: Op, *, comm: Comm | None = None) -> jax.Array:
    """Combine the arrays of the processes up to this one."""
    return collectives.scan(x, op, comm=_part(comm))


def scatter(x: Any, root: int, *, comm: Comm | None = None) -> jax.Array:
    """Return the root's x[i] on process i. On the root, x has `size` rows; elsewhere x has the
    shape and dtype of the result."""
    part, own = _part(comm), as_array(x)
    _, rank, size = _members(comm)
    if rank == root:
        _check_rows("x", own, size)
    rows = own if rank == root else jnp.zeros((size, *own.shape), own.dtype)
    return collectives.broadcast(rows, root, comm=part)[rank]


def send(x: Any, dest: int, *, tag: int = 0, comm: Comm | None = None) -> None:
    """Send an array to process dest."""
    collectives.send(x, dest, tag, comm=_part(comm))


def recv(
    x: Any,
    source: int = ANY_SOURCE,
    *,
    tag: int = ANY_TAG,
    comm: Comm | None = None,
    status: Status | None = None,
) -> jax.Array:
    """Receive an array with the shape and dtype of x from process source. Fills status."""
    part, chosen = _part(comm), _tag(tag)
    result, sender = collectives.recv(x, _source(source), chosen, comm=part, with_source=True)
    if status is not None:
        jax.debug.callback(status._fill, sender, chosen)
    return result


def sendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: int,
    dest: int,
    *,
    sendtag: int = 0,
    recvtag: int = ANY_TAG,
    comm: Comm | None = None,
    status: Status | None = None,
) -> jax.Array:
    """Send an array to process dest, and return an array from process source that has the shape
    and dtype of recvbuf."""
    part, tag = _part(comm), _tag(recvtag)
    if status is not None:
        if source == ANY_SOURCE:
            raise Unsupported("status is not supported for sendrecv from any source; use recv")
        status._fill(source, tag)
    tags = {"send_tag": sendtag, "recv_tag": tag}
    return collectives.sendrecv(sendbuf, dest, _source(source), **tags, like=recvbuf, comm=part)


def has_cuda_support() -> bool:
    """Return False, since arrays are in CPU memory."""
    return False


has_sycl_support = has_cuda_support


def _part(comm: Comm | None) -> communicators.Communicator | None:
    if not world.is_initialized():
        world.init()
    if comm is not None and not isinstance(comm, Comm):
        raise InvalidArgument(
            f"comm is a {type(comm).__name__}; must be a communicator of ddl_jax.mpi4jax.MPI"
        )
    return None if comm is None else comm._part


def _members(comm: Comm | None) -> tuple[int, int, int]:
    return communicators.members(_part(comm))


def _source(source: int) -> int | None:
    return None if source == ANY_SOURCE else source


def _tag(tag: int) -> int:
    return 0 if tag == ANY_TAG else tag


def _check_rows(name: str, array: Any, size: int) -> None:
    if not array.ndim or array.shape[0] != size:
        raise InvalidArgument(f"{name} has shape {array.shape}; its first dimension must be {size}")
