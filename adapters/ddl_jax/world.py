"""Joining and leaving."""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable

import ddl_core

_comm: ddl_core.Comm | None = None
_ours = False  # whether init made ddl_core's world
_at_shutdown: list[Callable[[], bool]] = []
_place: tuple[int, int] | None = None  # rank and size that programs were traced with


def init(*, timeout: float | None = None) -> None:
    """Join the world that this process was started in.

    The world is found as ddl_core.init finds it: ddlrun, mpirun of any MPI, torchrun, srun, or
    alone (size 1). Where ddl_core is initialised already, its world is used. The operations of
    ddl_jax have a comm of their own there, so ddl_core.world() may be used beside them.

    timeout: seconds that joining, and later each operation, may take; None: libddl's own (5 and 30
    minutes).

    All ranks call it. Raises ddl_core.errors.InvalidState on a second call, InvalidArgument for a
    bad timeout, ddl_core's errors when the ranks do not find together, and
    ddl_core.native.BuildError where the native part cannot be compiled.
    """
    global _comm, _ours, _place
    import jax

    from ddl_core.errors import InvalidArgument, InvalidState
    from ddl_jax import _build, programs

    if _comm is not None:
        raise InvalidState(f"initialised already, as rank {rank()} of {size()}; see shutdown()")
    if timeout is not None and not 0 < timeout < math.inf:
        raise InvalidArgument(f"timeout: {timeout!r} is not a positive number of seconds")
    # Behind JAX's own, so that it runs before them: they wait for what nobody may answer.
    atexit.unregister(shutdown)
    atexit.register(shutdown)
    handler = _build.handler()  # before anybody waits for anybody

    _ours = not ddl_core.is_initialized()
    everyone = ddl_core.init(config(timeout)) if _ours else ddl_core.world()
    try:
        _comm = everyone.duplicate(config(timeout))
    except BaseException:
        if _ours:
            ddl_core.finalize()
        raise
    if _place not in (None, (rank(), size())):
        jax.clear_caches()  # programs know their rank and size
    _place = rank(), size()
    programs.forget()
    handler.ddl_jax_open(address(_comm))


def is_initialized() -> bool:
    """Whether `init` has returned, and `shutdown` was not called since."""
    return _comm is not None


def shutdown() -> None:
    """Leave the world, if there is one, as the process does when it ends. `init` may then be called
    again. Waits for the operations, and the programs of jax's own collectives, that this thread has
    started, and some seconds for those of other threads, which are then aborted; what they fail
    with is dropped."""
    global _comm
    comm, _comm = _comm, None
    if comm is None:
        return
    import jax

    from ddl_jax import _build, programs

    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError:
        programs.forget()
    unused = [_at_shutdown.pop()() for _ in range(len(_at_shutdown))]
    # What a thread of XLA does not leave, even aborted, is left as it is: it must not be freed.
    if _build.handler().ddl_jax_close() and all(unused):
        try:
            comm.close()
        finally:
            if _ours:
                ddl_core.finalize()


def rank() -> int:
    """This process's number among all, from 0 on. InvalidState before `init`."""
    return world().rank


def size() -> int:
    """How many processes there are. InvalidState before `init`."""
    return world().size


def local_rank() -> int:
    """This process's number among those that share its memory. InvalidState before `init`."""
    return world().local_rank


def local_size() -> int:
    """How many processes share this one's memory, itself included. InvalidState before `init`."""
    return world().local_size


def world() -> ddl_core.Comm:
    """The comm of the operations. InvalidState before `init`."""
    if _comm is None:
        from ddl_core.errors import InvalidState

        raise InvalidState("not initialised: call ddl_jax.init() first")
    return _comm


def at_shutdown(call: Callable[[], bool]) -> None:
    """Have this called before the world is left. It returns whether nobody uses the world by it
    any more; else the world is kept."""
    _at_shutdown.append(call)


def config(timeout: float | None) -> ddl_core.Config:
    """That of a comm of the world."""
    return ddl_core.Config(timeout=timeout, operation_timeout=timeout)


def address(comm: ddl_core.Comm) -> int:
    """Where libddl's own comm lies, for native parts."""
    from ddl_core._lib import ffi

    return int(ffi.cast("uintptr_t", comm._handle))
