# SPDX-License-Identifier: Apache-2.0
"""Initialization and shutdown: torch.distributed's default process group over libddl."""

from __future__ import annotations

import functools
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ddl_torch import shared_memory as sharing
from ddl_torch._autoload import cpu_backend, is_ddl, register
from ddl_torch.options import Options

if TYPE_CHECKING:
    from ddl_core import Comm

_STORE_TIMEOUT = 300.0  # seconds, PyTorch's default

_stores: Any = dist  # the type stubs of torch.distributed lack the stores

_group: Any = None  # the default group, once init has returned
_ours = False  # True if init created the group


@functools.cache
def adapter() -> ModuleType:
    """Import ddl_core.adapter late: `import torch` loads this file, but must not load more."""
    from ddl_core import adapter

    return adapter


def init(
    *,
    timeout: float | None = None,
    shared_memory: bool | str | None = None,
    invariant: str | None = None,
) -> None:
    """Join the job in which this process was started.

    The launcher is detected as by ddl_core.init: ddlrun, mpirun of any MPI, torchrun, srun, or none
    (size 1). This creates torch.distributed's default process group with the backend "ddl", also
    for GPU tensors if there is an NVIDIA GPU; each rank then calls torch.cuda.set_device first. If
    torch.distributed is already initialized, with "ddl" for the CPU, its default group is used.

    timeout        limit in seconds for joining and for each operation; None: PyTorch's 30 minutes
    shared_memory  True: ranks on one host use DistributedDataParallel's buckets and fully_shard's
                   buffers in place, in shared memory. "all": they also use all later tensors of at
                   least 1 MiB in place. None: the value of DDL_TORCH_SHARED (0, 1 or all), or if
                   that is unset, True if another rank is on this host. Ranks may give different
                   values. Forked children, such as data loader workers, get a copy of such memory
    invariant      the order of additions: "size", "ranks:8" or "none", see `Options`; None:
                   DDL_INVARIANT

    All ranks call this. Raises ddl_core.errors.InvalidState on a second call, InvalidArgument for
    an invalid argument, ddl_core's errors if not all ranks join, and
    torch.distributed.DistBackendError if the group cannot be created. Warns if the native part
    cannot be compiled, and uses Python instead.
    """
    global _group, _ours
    if is_initialized():
        raise adapter().joined_already(rank(), size())
    config = adapter().comm_config(timeout)
    options = Options(invariant=invariant)
    sharing.ask(shared_memory)
    if not dist.is_available():
        raise adapter().InvalidState("this PyTorch was built without torch.distributed")
    if dist.is_initialized():
        name = dist.get_backend()
        if not is_ddl(dist.group.WORLD):
            raise adapter().InvalidState(
                f"torch.distributed is initialized already, with the backend {name};"
                ' initialize it with "ddl", or leave it to ddl_torch.init()'
            )
        if invariant is not None:
            raise adapter().InvalidArgument(
                f"invariant is {invariant!r}, but torch.distributed is initialized already; pass"
                f" pg_options=ddl_torch.Options(invariant={invariant!r}) to init_process_group"
            )
        _group, _ours = dist.group.WORLD, False
        _share()
        return

    register()
    _share()  # builds the native part before this rank waits for others
    limit = None if timeout is None else timedelta(seconds=timeout)
    with adapter().job(config) as comm:
        store = _connect_store(comm, limit or timedelta(seconds=_STORE_TIMEOUT))
        own_rank, world_size = comm.rank, comm.size
    backend = "cpu:ddl,cuda:ddl" if torch.cuda.device_count() else "ddl"
    how = {"rank": own_rank, "world_size": world_size, "timeout": limit, "pg_options": options}
    dist.init_process_group(backend, store=store, **how)
    _group, _ours = dist.group.WORLD, True


def is_initialized() -> bool:
    """Return True if `init` has returned, and its group has not been destroyed since."""
    return _group is not None and dist.is_initialized() and dist.group.WORLD is _group


def shutdown() -> None:
    """Leave the job, and destroy the process group if `init` created it. `init` may then be called
    again. Blocks for about a second if operations are pending."""
    global _group, _ours
    if is_initialized() and _ours:
        dist.destroy_process_group()
    _group, _ours = None, False
    sharing.ask(None)


def rank() -> int:
    """Return the rank of this process, starting at 0. Raises InvalidState before `init`."""
    number: int = group().rank()
    return number


def size() -> int:
    """Return the number of processes. Raises InvalidState before `init`."""
    number: int = group().size()
    return number


def local_rank() -> int:
    """Return the rank of this process among the ranks that share memory with it (normally all ranks
    on its host). Raises InvalidState before `init`."""
    return local_numbers(group())[0]


def local_size() -> int:
    """Return the number of ranks that share memory with this process (normally all ranks on its
    host), including itself. Raises InvalidState before `init`."""
    return local_numbers(group())[1]


def group() -> Any:
    """Return the process group of all ranks. Raises InvalidState before `init`."""
    if not is_initialized():
        raise adapter().not_joined("ddl_torch")
    return _group


def private_group() -> Any:
    """Create another process group of all ranks, with the timeout of the first. Its operations
    match only each other. All ranks call this. Raises InvalidState before `init`."""
    return dist.new_group(timeout=cpu_backend(group()).options._timeout)


def _share() -> None:
    from ddl_torch import _build

    native = _build.module_or_none()
    if native is not None:
        sharing.apply(native)


def local_numbers(of: Any) -> tuple[int, int]:
    """Return this process's local rank in a group of ddl, and its number of ranks that share memory
    with this process, including itself."""
    from ddl_torch import _build

    backend = cpu_backend(of)
    numbers: tuple[int, int]
    numbers = backend.local() if hasattr(backend, "local") else _build.module().local(backend)
    return numbers


def _connect_store(comm: Comm, timeout: timedelta) -> Any:
    """Return a store that all ranks are connected to. Rank 0 sends its address over the job's comm,
    so every launcher that ddl_core supports works."""
    if comm.size == 1:
        return _stores.HashStore()
    options = {"wait_for_workers": False, "timeout": timeout}
    store, address = None, ""
    if comm.rank == 0:
        from ddl_core.joining.world_comm import launched

        host = adapter().host_for(comm, launched().master)
        store = _stores.TCPStore(host, 0, comm.size, is_master=True, **options)
        address = f"{store.port} {host}"
    port, _, host = adapter().share_text(comm, address).partition(" ")
    return store or _stores.TCPStore(host, int(port), comm.size, **options)
