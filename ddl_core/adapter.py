# SPDX-License-Identifier: Apache-2.0
"""The base of all adapters: joining the job, and the checks of arguments.

docs/adapters.md shows how to write an adapter with it.
"""

from __future__ import annotations

import atexit
import operator
import os
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import ddl_core
from ddl_core.errors import InvalidArgument, InvalidState
from ddl_core.joining import env_switches

if TYPE_CHECKING:
    from ddl_core import Comm, Config, Order
    from ddl_core.base.names import Op

OPS = ("sum", "average", "min", "max", "product", "bit_and", "bit_or", "bit_xor")
_LOOPBACK = "127.0.0.1"
_TEXT_BYTES = 256


class World:
    """The job of an adapter. It has its own comm, a duplicate of the job's, so that the program can
    also use ddl_core.world(). An adapter exports the methods as its functions.

    adapter     the name of the adapter's package, for messages
    keeps_job   True to keep a world that `init` creates in ddl_core until `shutdown`; False to
                close it after `init`, so that the program can create its own
    """

    def __init__(self, adapter: str, *, keeps_job: bool = True) -> None:
        self._adapter = adapter
        self._keeps_job = keeps_job
        self._comm: Comm | None = None
        self._leave = ExitStack()  # closes the comm, and ddl_core's world if it was kept

    # ---- overridden by adapters with a native part ----

    def _prepare(self) -> None:
        """Load the framework and the native part, before this rank waits for others."""

    def _opened(self, comm: Comm) -> None:
        """Make the new comm usable by the adapter's operations."""

    def _closing(self) -> bool:
        """End the operations on the comm, which is about to be closed. Return False if threads
        still use it; then it is kept."""
        return True

    # ---- exported by adapters ----

    def init(self, *, timeout: float | None = None, invariant: str | None = None) -> None:
        """Join the job in which this process was started.

        The launcher is detected as by ddl_core.init: ddlrun, mpirun of any MPI, torchrun, srun, or
        none (size 1). If ddl_core is already initialized, its world is used. All ranks call this.

        timeout   time limit in seconds for joining, and later for each operation; None: 5 minutes
                  for joining, 30 minutes for an operation
        invariant the order of additions, as in ddl_core.Config: "size", "ranks:8" or "none"; None:
                  DDL_INVARIANT

        Raises ddl_core.errors.InvalidState on a second call, InvalidArgument for a bad timeout,
        ddl_core's errors if not all ranks join, and ddl_core.native.BuildError if a native part
        cannot be compiled.
        """
        if self._comm is not None:
            raise joined_already(self.rank(), self.size())
        config = comm_config(timeout, invariant)
        self._prepare()
        # Registered after the framework's exit functions, so it runs before them: they may wait for
        # operations that only this function ends.
        atexit.unregister(self.shutdown)
        atexit.register(self.shutdown)
        leaves_job = not self._keeps_job and not ddl_core.is_initialized()
        with ExitStack() as joined, ExitStack() as joining:
            world = (joining if leaves_job else joined).enter_context(job(config))
            comm = world.duplicate(config)
            joined.callback(comm.close)
            self._opened(comm)
            env_switches.joined(self._adapter, comm.rank, comm.local_rank)
            joined.callback(env_switches.left, self._adapter)
            if leaves_job:
                comm._owns_endpoint, world._owns_endpoint = True, False
                comm._parent = None
            self._comm, self._leave = comm, joined.pop_all()

    def is_initialized(self) -> bool:
        """Return True between `init` and `shutdown`."""
        return self._comm is not None

    def shutdown(self) -> None:
        """Leave the job if this process has joined it. Python's exit calls this, too.

        `init` may be called again afterwards. Operations that are still pending after about a
        second are aborted.
        """
        comm, self._comm = self._comm, None
        if comm is not None and self._closing():
            self._leave.close()

    def rank(self) -> int:
        """Return the number of this process among all ranks, from 0. Raises InvalidState before
        `init`."""
        return self.comm().rank

    def size(self) -> int:
        """Return the number of ranks. Raises InvalidState before `init`."""
        return self.comm().size

    def local_rank(self) -> int:
        """Return the number of this process among the ranks that share memory with it (normally all
        ranks on its host). Raises InvalidState before `init`."""
        return self.comm().local_rank

    def local_size(self) -> int:
        """Return the number of ranks that share memory with this process (normally all ranks on its
        host), including itself. Raises InvalidState before `init`."""
        return self.comm().local_size

    def comm(self) -> Comm:
        """Return the adapter's comm. Raises InvalidState before `init`."""
        if self._comm is None:
            raise not_joined(self._adapter)
        return self._comm


# ---- joining ----


def comm_config(timeout: float | None, invariant: str | None = None) -> Config:
    """Return the configuration of a comm with one time limit for joining and for each operation.
    Raises InvalidArgument for a bad argument."""
    config = ddl_core.Config(timeout=timeout, operation_timeout=timeout, invariant=invariant)
    config.fields()
    return config


@contextmanager
def job(config: Config) -> Iterator[Comm]:
    """Yield the job's comm, ddl_core's world. Join it if necessary, and leave it at the end of the
    block."""
    joined = ddl_core.is_initialized()
    try:
        yield ddl_core.world() if joined else ddl_core.init(config)
    finally:
        if not joined:
            ddl_core.finalize()


def horovod_timeline() -> str:
    """Return the file that HOROVOD_TIMELINE names, or "" if it is not set or is "DYNAMIC"."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    return "" if path == "DYNAMIC" else path


def address(of: Comm | Order) -> int:
    """Return the address of the ddl_comm or ddl_order, for native parts."""
    from ddl_core.base._lib import ffi

    return int(ffi.cast("uintptr_t", of._handle))


def host_for(comm: Comm, master: str | None) -> str:
    """Return the name by which other ranks reach this host. Call it on rank 0.

    master   the launcher's name for this host. If the job spans several hosts, it is preferred to
             the host's own name, which the other hosts may not be able to resolve
    """
    return _LOOPBACK if comm.local_size == comm.size else master or socket.gethostname()


def share_text(comm: Comm, text: str) -> str:
    """Return rank 0's text on all ranks. It has at most 256 bytes. Other ranks' texts are
    ignored."""
    buffer = bytearray(text.encode().ljust(_TEXT_BYTES, b"\0"))
    comm.broadcast(buffer)
    return buffer.rstrip(b"\0").decode()


def joined_already(rank: int, size: int) -> InvalidState:
    return InvalidState(f"initialized already, as rank {rank} of {size}; see shutdown()")


def not_joined(adapter: str) -> InvalidState:
    return InvalidState(f"not initialized: call {adapter}.init() first")


# ---- checks, which raise InvalidArgument with the argument's name and value ----


def check_op(op: Any) -> Op:
    """Return `op` if it is the name of a reduction."""
    if not isinstance(op, str) or op not in OPS:
        raise InvalidArgument(f"op is {op!r}; must be one of {', '.join(OPS)}")
    return cast("Op", op)


def has_op(dtype: str, op: str) -> bool:
    """Return True if `op` can reduce elements of `dtype`, which is NumPy's name of the type."""
    if op.startswith(("bit", "logical")):
        return dtype == "bool" or "int" in dtype
    if dtype.startswith("complex"):
        return op in ("sum", "average")
    return not (dtype == "bool" and op == "average")


def check_rank(argument: str, given: Any, size: int) -> int:
    """Return the given rank as an int if it is from 0 to size - 1."""
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if not 0 <= number < size:
        raise InvalidArgument(f"{argument} is {given!r}; must be a rank from 0 to {size - 1}")
    return number


def check_rows(argument: str, given: Sequence[Any], size: int) -> list[int]:
    """Return the given numbers of rows as ints if there is one for each rank."""
    try:
        numbers = [operator.index(each) for each in given]
    except TypeError:
        numbers = []
    if len(numbers) != size or min(numbers) < 0:
        raise InvalidArgument(
            f"{argument} is {given!r}; must have one number for each of {size} ranks"
        )
    return numbers


def equal_rows(argument: str, shape: Sequence[int], size: int) -> int:
    """Return the number of each rank's rows if the first dimension is divided equally."""
    if not shape or shape[0] % size:
        raise InvalidArgument(
            f"{argument}: the first dimension of shape {tuple(shape)} is not a multiple of {size}"
        )
    return shape[0] // size


def check_gradients(op: str, compression: str | None, wires: Sequence[str] = ()) -> None:
    """Check the options of a reduction of gradients. wires: the supported wire formats."""
    if op not in ("average", "sum"):
        raise InvalidArgument(f"op is {op!r}; must be average or sum")
    check_compression(compression, wires)


def check_compression(compression: str | None, wires: Sequence[str] = ()) -> None:
    """Check the name of the type or wire format in which gradients are sent."""
    known = ("f16", "bf16", *wires)
    if compression is not None and compression not in known:
        raise InvalidArgument(
            f"compression is {compression!r}; must be None, {', '.join(known[:-1])} or {known[-1]}"
        )


def average_metrics(
    metrics: Mapping[str, Any], weight: float, allreduce: Callable[[list[float]], Sequence[float]]
) -> dict[str, float]:
    """Return the weighted average of each metric over the ranks. `allreduce` sums lists of float64.

    Raises InvalidArgument if the names, or their order, differ between ranks.
    """
    if not weight >= 0:
        raise InvalidArgument(f"weight is {weight}; must be at least 0")
    names = ", ".join(map(str, metrics))
    digest = float(zlib.crc32(names.encode()))
    own = [float(value) * weight for value in metrics.values()]
    *sums, total, ranks, digests = allreduce([*own, weight, 1.0, digest])
    if digests != ranks * digest:
        raise InvalidArgument(
            f"metrics: this rank has {names}, but another rank has other names; give all ranks the"
            " same names in the same order"
        )
    return {name: each / total if total else 0.0 for name, each in zip(metrics, sums, strict=True)}
