# SPDX-License-Identifier: Apache-2.0
"""Joining and leaving: torch.distributed's default process group over libddl."""

from __future__ import annotations

import functools
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ddl_torch import shared_memory as sharing
from ddl_torch._autoload import cpu_backend, is_ddl, register

if TYPE_CHECKING:
    from ddl_core import Comm

_STORE_TIMEOUT = 300.0  # seconds, PyTorch's default

_stores: Any = dist  # whose type stubs lack them

_group: Any = None  # the default group, once init has returned
_ours = False  # whether init made it


@functools.cache
def adapter() -> ModuleType:
    """ddl_core.adapter. Not imported above: `import torch` loads this file, and nothing more."""
    from ddl_core import adapter

    return adapter


def init(*, timeout: float | None = None, shared_memory: bool | str | None = None) -> None:
    """Join the job that this process was started in.

    The job is found as ddl_core.init finds it: ddlrun, mpirun of any MPI, torchrun, srun, or
    alone (size 1). Makes torch.distributed's default process group with the backend "ddl", where
    there is a GPU of NVIDIA's for its tensors as well: each rank then calls torch.cuda.set_device
    before. Where torch.distributed is initialized already, with "ddl" for the CPU, its default
    group is used.

    timeout: seconds that joining, and later each operation, may take; None: PyTorch's default (30
    minutes).

    shared_memory: True: DistributedDataParallel's buckets and fully_shard's buffers lie in memory
    that ranks on one host read and write in place; "all": and all tensors of 1 MiB and more that
    are made from now on. A forked child, such as a data loader's worker, has a copy of such memory.
    None: what DDL_TORCH_SHARED says (0, 1 or all). Ranks need not agree.

    All ranks call it. Raises ddl_core.errors.InvalidState on a second call, InvalidArgument for a
    bad argument, ddl_core's errors when not all ranks come, and
    torch.distributed.DistBackendError when the group cannot be made. Warns where the native part
    cannot be compiled and Python replaces it.
    """
    global _group, _ours
    if is_initialized():
        raise adapter().joined_already(rank(), size())
    config = adapter().comm_config(timeout)
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
    dist.init_process_group(
        backend, store=store, rank=own_rank, world_size=world_size, timeout=limit
    )
    _group, _ours = dist.group.WORLD, True


def is_initialized() -> bool:
    """Whether `init` has returned and its group was not destroyed since."""
    return _group is not None and dist.is_initialized() and dist.group.WORLD is _group


def shutdown() -> None:
    """Leave the job: destroys the process group that `init` made, if any. `init` may then be called
    again. Blocks about a second if operations are pending."""
    global _group, _ours
    if is_initialized() and _ours:
        dist.destroy_process_group()
    _group, _ours = None, False
    sharing.ask(None)


def rank() -> int:
    """The number of this process among all, from 0 on. InvalidState before `init`."""
    number: int = group().rank()
    return number


def size() -> int:
    """How many processes there are. InvalidState before `init`."""
    number: int = group().size()
    return number


def local_rank() -> int:
    """The number of this process among those that share its memory. InvalidState before `init`."""
    return _local()[0]


def local_size() -> int:
    """How many processes share this one's memory, itself included. InvalidState before `init`."""
    return _local()[1]


def group() -> Any:
    """The process group of all ranks. InvalidState before `init`."""
    if not is_initialized():
        raise adapter().not_joined("ddl_torch")
    return _group


def private_group() -> Any:
    """Create another process group of all ranks, with the timeout of the first. Its operations are
    matched among themselves. All ranks call it. InvalidState before `init`."""
    return dist.new_group(timeout=cpu_backend(group()).options._timeout)


def _share() -> None:
    from ddl_torch import _build

    native = _build.module_or_none()
    if native is not None:
        sharing.apply(native)


def _local() -> tuple[int, int]:
    from ddl_torch import _build

    backend = cpu_backend(group())
    numbers: tuple[int, int]
    numbers = backend.local() if hasattr(backend, "local") else _build.module().local(backend)
    return numbers


def _connect_store(comm: Comm, timeout: timedelta) -> Any:
    """A store that all ranks are connected to. The job's comm tells the others where it is, so
    every launcher that ddl_core knows will do."""
    if comm.size == 1:
        return _stores.HashStore()
    options = {"wait_for_workers": False, "timeout": timeout}
    store, address = None, ""
    if comm.rank == 0:
        from ddl_core.world_comm import launched

        host = adapter().host_for(comm, launched().master)
        store = _stores.TCPStore(host, 0, comm.size, is_master=True, **options)
        address = f"{store.port} {host}"
    port, _, host = adapter().share_text(comm, address).partition(" ")
    return store or _stores.TCPStore(host, int(port), comm.size, **options)
