# SPDX-License-Identifier: Apache-2.0
"""What the adapters share: joining the job, and the checks of arguments.

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
from ddl_core import env_switches
from ddl_core.errors import InvalidArgument, InvalidState

if TYPE_CHECKING:
    from ddl_core import Comm, Config
    from ddl_core.names import Op

OPS = ("sum", "average", "min", "max", "product", "bit_and", "bit_or", "bit_xor")
_LOOPBACK = "127.0.0.1"
_TEXT_BYTES = 256


class World:
    """The job, as an adapter joins it: by a comm of its own, a duplicate of the job's, so that
    ddl_core.world() may be used beside it. An adapter exports the methods as its functions.

    adapter     the name of the adapter's package, for messages
    keeps_job   whether ddl_core's world, if `init` makes it, stays until `shutdown`; else the
                program may make one of its own
    """

    def __init__(self, adapter: str, *, keeps_job: bool = True) -> None:
        self._adapter = adapter
        self._keeps_job = keeps_job
        self._comm: Comm | None = None
        self._leave = ExitStack()  # closes the comm, and ddl_core's world if it was kept

    # ---- what an adapter overrides where it has a native part ----

    def _prepare(self) -> None:
        """Before this rank waits for others: load the framework and the native part."""

    def _opened(self, comm: Comm) -> None:
        """The comm is made."""

    def _closing(self) -> bool:
        """The comm is about to be closed: end the operations on it. False if threads remain that
        use it; then it is kept."""
        return True

    # ---- what an adapter exports ----

    def init(self, *, timeout: float | None = None) -> None:
        """Join the job that this process was started in.

        The job is found as ddl_core.init finds it: ddlrun, mpirun of any MPI, torchrun, srun, or
        alone (size 1). Where ddl_core is initialized already, its world is used.

        timeout: seconds that joining, and later each operation, may take; None: 5 minutes for
        joining, 30 for an operation.

        All ranks call it. Raises ddl_core.errors.InvalidState on a second call, InvalidArgument
        for a bad timeout, ddl_core's errors when not all ranks come, and
        ddl_core.native.BuildError where a native part cannot be compiled.
        """
        if self._comm is not None:
            raise joined_already(self.rank(), self.size())
        config = comm_config(timeout)
        self._prepare()
        # Registered after the framework's own exit functions, it runs before them: they may wait
        # for operations that only this ends.
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
        """Whether `init` has returned, and `shutdown` was not called since."""
        return self._comm is not None

    def shutdown(self) -> None:
        """Leave the job, if it was joined, as the process does when it ends. `init` may then be
        called again. Operations that are still pending after about a second are aborted."""
        comm, self._comm = self._comm, None
        if comm is not None and self._closing():
            self._leave.close()

    def rank(self) -> int:
        """The number of this process among all, from 0 on. InvalidState before `init`."""
        return self.comm().rank

    def size(self) -> int:
        """How many processes there are. InvalidState before `init`."""
        return self.comm().size

    def local_rank(self) -> int:
        """The number of this process among those that share its memory. InvalidState before
        `init`."""
        return self.comm().local_rank

    def local_size(self) -> int:
        """How many processes share this one's memory, itself included. InvalidState before
        `init`."""
        return self.comm().local_size

    def comm(self) -> Comm:
        """The adapter's comm. InvalidState before `init`."""
        if self._comm is None:
            raise not_joined(self._adapter)
        return self._comm


# ---- joining ----


def comm_config(timeout: float | None) -> Config:
    """That of a comm with one limit for joining and for each operation. InvalidArgument for a bad
    one."""
    config = ddl_core.Config(timeout=timeout, operation_timeout=timeout)
    config.fields()
    return config


@contextmanager
def job(config: Config) -> Iterator[Comm]:
    """The job's comm: ddl_core's world, joined for this long if need be."""
    joined = ddl_core.is_initialized()
    try:
        yield ddl_core.world() if joined else ddl_core.init(config)
    finally:
        if not joined:
            ddl_core.finalize()


def set_default(variable: str, value: str) -> None:
    """Set an environment variable that the framework reads, unless it is set."""
    os.environ.setdefault(variable, value)


def horovod_timeline() -> str:
    """HOROVOD_TIMELINE, Horovod's own variable: a file; "" if it is not set, or "DYNAMIC"."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    return "" if path == "DYNAMIC" else path


def address(comm: Comm) -> int:
    """Of the ddl_comm, for native parts."""
    from ddl_core._lib import ffi

    return int(ffi.cast("uintptr_t", comm._handle))


def host_for(comm: Comm, master: str | None) -> str:
    """Rank 0's host, on rank 0, as the others reach it. master: the launcher's name for it, which
    counts between hosts, since the others may not know its own."""
    return _LOOPBACK if comm.local_size == comm.size else master or socket.gethostname()


def share_text(comm: Comm, text: str) -> str:
    """Rank 0's text, of up to 256 bytes, on all ranks; on the others `text` is ignored."""
    buffer = bytearray(text.encode().ljust(_TEXT_BYTES, b"\0"))
    comm.broadcast(buffer)
    return buffer.rstrip(b"\0").decode()


def joined_already(rank: int, size: int) -> InvalidState:
    return InvalidState(f"initialized already, as rank {rank} of {size}; see shutdown()")


def not_joined(adapter: str) -> InvalidState:
    return InvalidState(f"not initialized: call {adapter}.init() first")


# ---- checks: InvalidArgument, with the argument's name and value ----


def check_op(op: Any) -> Op:
    """The name of a reduction."""
    if not isinstance(op, str) or op not in OPS:
        raise InvalidArgument(f"op: {op!r} is none of {', '.join(OPS)}")
    return cast("Op", op)


def has_op(dtype: str, op: str) -> bool:
    """Whether elements of a type, by NumPy's name, can be reduced by an operator."""
    if op.startswith(("bit", "logical")):
        return dtype == "bool" or "int" in dtype
    if dtype.startswith("complex"):
        return op in ("sum", "average")
    return not (dtype == "bool" and op == "average")


def check_rank(argument: str, given: Any, size: int) -> int:
    """The number of a rank."""
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if not 0 <= number < size:
        raise InvalidArgument(f"{argument}: {given!r} is not a rank; there are {size}")
    return number


def check_rows(argument: str, given: Sequence[Any], size: int) -> list[int]:
    """A number of rows for each rank."""
    try:
        numbers = [operator.index(each) for each in given]
    except TypeError:
        numbers = []
    if len(numbers) != size or min(numbers) < 0:
        raise InvalidArgument(f"{argument}: {given!r} is not one number for each of {size} ranks")
    return numbers


def equal_rows(argument: str, shape: Sequence[int], size: int) -> int:
    """Each rank's rows where the first dimension is divided equally."""
    if not shape or shape[0] % size:
        raise InvalidArgument(
            f"{argument}: the first dimension of shape {tuple(shape)} is no multiple of {size}"
        )
    return shape[0] // size


def check_gradients(op: str, compression: str | None) -> None:
    """How gradients are reduced."""
    if op not in ("average", "sum"):
        raise InvalidArgument(f"op: {op!r} is neither average nor sum")
    check_compression(compression)


def check_compression(compression: str | None) -> None:
    """The type that gradients travel in."""
    if compression not in (None, "f16", "bf16"):
        raise InvalidArgument(f"compression: {compression!r} is none of None, f16, bf16")


def average_metrics(
    metrics: Mapping[str, Any], weight: float, allreduce: Callable[[list[float]], Sequence[float]]
) -> dict[str, float]:
    """Return the ranks' weighted average of each metric; `allreduce` sums lists of float64.

    Raises InvalidArgument if another rank has other names, or the same in another order.
    """
    if not weight >= 0:
        raise InvalidArgument(f"weight: {weight} is negative")
    names = ", ".join(map(str, metrics))
    digest = float(zlib.crc32(names.encode()))
    own = [float(value) * weight for value in metrics.values()]
    *sums, total, ranks, digests = allreduce([*own, weight, 1.0, digest])
    if digests != ranks * digest:
        raise InvalidArgument(
            f"metrics: are {names} here, and others on another rank; give all ranks the same names"
            " in the same order"
        )
    return {name: each / total if total else 0.0 for name, each in zip(metrics, sums, strict=True)}
