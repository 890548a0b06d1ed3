"""Joining and leaving: torch.distributed's default process group over libddl."""

from __future__ import annotations

import math
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_LOOPBACK = "127.0.0.1"
_STORE_TIMEOUT = 300.0  # seconds, PyTorch's default

_stores: Any = dist  # whose type stubs lack them

_group: Any = None  # the default group, once init has returned
_ours = False  # whether init made it


def init(*, timeout: float | None = None) -> None:
    """Join the world that this process was started in.

    The world is found as ddl_core.init finds it: ddlrun, mpirun of any MPI, torchrun, srun, or
    alone (size 1). Makes torch.distributed's default process group with the backend "ddl". Where
    torch.distributed is initialised already, with "ddl" for the CPU, its default group is used.

    timeout: seconds that joining, and later each operation, may take; None: PyTorch's default (30
    minutes).

    All ranks call it. Raises ddl_core.errors.InvalidState on a second call, InvalidArgument for a
    bad timeout, ddl_core's errors when the ranks do not find together, and
    torch.distributed.DistBackendError when the group cannot be made. Warns where the native part
    cannot be compiled and Python has to do.
    """
    global _group, _ours
    from ddl_core.errors import InvalidArgument, InvalidState

    if is_initialized():
        raise InvalidState(f"initialised already, as rank {rank()} of {size()}; see shutdown()")
    if timeout is not None and not 0 < timeout < math.inf:
        raise InvalidArgument(f"timeout: {timeout!r} is not a positive number of seconds")
    if not dist.is_available():
        raise InvalidState("this PyTorch was built without torch.distributed")
    if dist.is_initialized():
        name = dist.get_backend()
        if not is_ddl(dist.group.WORLD):
            raise InvalidState(
                f"torch.distributed is initialised already, with the backend {name};"
                ' initialise it with "ddl", or leave it to ddl_torch.init()'
            )
        _group, _ours = dist.group.WORLD, False
        return

    from ddl_torch import _build
    from ddl_torch._autoload import register

    register()
    _build.module_or_none()  # before anybody waits for anybody
    limit = None if timeout is None else timedelta(seconds=timeout)
    store, own_rank, world_size = _connect_store(timeout)
    dist.init_process_group("ddl", store=store, rank=own_rank, world_size=world_size, timeout=limit)
    _group, _ours = dist.group.WORLD, True


def is_initialized() -> bool:
    """Whether `init` has returned, and the group it joined was not destroyed since."""
    return _group is not None and dist.is_initialized() and dist.group.WORLD is _group


def shutdown() -> None:
    """Leave the world: destroys the process group that `init` made, if there is one. `init` may
    then be called again. Blocks about a second where operations are pending."""
    global _group, _ours
    if is_initialized() and _ours:
        dist.destroy_process_group()
    _group, _ours = None, False


def rank() -> int:
    """This process's number among all, from 0 on. InvalidState before `init`."""
    number: int = group().rank()
    return number


def size() -> int:
    """How many processes there are. InvalidState before `init`."""
    number: int = group().size()
    return number


def local_rank() -> int:
    """This process's number among those that share its memory. InvalidState before `init`."""
    return _local()[0]


def local_size() -> int:
    """How many processes share this one's memory, itself included. InvalidState before `init`."""
    return _local()[1]


def group() -> Any:
    """The process group of all ranks. InvalidState before `init`."""
    if not is_initialized():
        from ddl_core.errors import InvalidState

        raise InvalidState("not initialised: call ddl_torch.init() first")
    return _group


def is_ddl(candidate: Any) -> bool:
    """Whether this is a process group whose backend for CPU tensors is "ddl"."""
    if not isinstance(candidate, dist.ProcessGroup):
        return False
    try:
        return bool(cpu_backend(candidate).name() == "ddl")
    except RuntimeError:  # it has none for the CPU
        return False


def _local() -> tuple[int, int]:
    from ddl_torch import _build

    backend = cpu_backend(group())
    place: tuple[int, int]
    place = backend.local() if hasattr(backend, "local") else _build.module().local(backend)
    return place


def cpu_backend(of: Any) -> Any:
    """The group's c10d backend for CPU tensors, without the wrapper of TORCH_DISTRIBUTED_DEBUG."""
    backend = of._get_backend(torch.device("cpu"))
    return getattr(backend, "wrapped_pg", backend)


def _connect_store(timeout: float | None) -> tuple[Any, int, int]:
    """A store that all ranks are connected to, this rank, and their number.

    libddl's own world comm brings the store's address from rank 0 to the others; so every launcher
    that ddl_core knows will do.
    """
    import ddl_core

    was_there = ddl_core.is_initialized()
    comm = ddl_core.world() if was_there else ddl_core.init(ddl_core.Config(timeout=timeout))
    try:
        if comm.size == 1:
            return _stores.HashStore(), 0, 1
        store_timeout = timedelta(seconds=_STORE_TIMEOUT if timeout is None else timeout)
        same_host = comm.local_size == comm.size
        store = None
        place = bytearray(256)  # "port host"
        if comm.rank == 0:
            host = _LOOPBACK if same_host else socket.gethostname()
            store = _stores.TCPStore(
                host, 0, comm.size, is_master=True, wait_for_workers=False, timeout=store_timeout
            )
            text = f"{store.port} {host}".encode()
            place[: len(text)] = text
        comm.broadcast(place)
        if store is None:
            port, _, host = place.rstrip(b"\0").decode().partition(" ")
            store = _stores.TCPStore(
                host, int(port), comm.size, wait_for_workers=False, timeout=store_timeout
            )
        return store, comm.rank, comm.size
    finally:
        if not was_there:
            ddl_core.finalize()
