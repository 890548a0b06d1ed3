# SPDX-License-Identifier: Apache-2.0
"""The registration of the backend "ddl". PyTorch calls `register` at the end of `import torch`,
through an entry point in the group torch.backends, so it must be fast and must never fail."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

_UNSET = timedelta(milliseconds=-1)  # means the group's timeout


def register() -> None:
    """Register the backend "ddl" for CPU tensors, if it is not registered. Build and load
    nothing."""
    try:
        import torch.distributed as dist

        from ddl_torch import serving

        if dist.is_available() and not hasattr(dist.Backend, "DDL"):
            dist.Backend.register_backend("ddl", _create, extended_api=True, devices=["cpu"])
            _open_monitored_barrier(dist)
            _open_set_pg_timeout(dist)
            serving.open_gloo_requests(dist)
            _open_init_process_group(dist, serving.is_for_ddl)
            _open_destroy_process_group(dist)
            _open_shrink_group(dist)
    except Exception:
        logging.getLogger("ddl_torch").exception("the backend ddl is not available")


def is_ddl(candidate: Any) -> bool:
    """Return True if this is a process group whose backend for CPU tensors is "ddl"."""
    import torch.distributed as dist

    if not isinstance(candidate, dist.ProcessGroup):
        return False
    try:
        return bool(cpu_backend(candidate).name() == "ddl")
    except RuntimeError:  # the group has no backend for the CPU
        return False


def cpu_backend(of: Any) -> Any:
    """Return the group's c10d backend for CPU tensors."""
    import torch

    return backend_of(of, torch.device("cpu"))


def backend_of(group: Any, device: Any) -> Any:
    """Return the group's c10d backend for a device, without TORCH_DISTRIBUTED_DEBUG's wrapper."""
    backend = group._get_backend(device)
    return getattr(backend, "wrapped_pg", backend)


def _open_init_process_group(dist: Any, is_for_ddl: Callable[[Any], bool]) -> None:
    """Load the native part while dist.init_process_group waits for the other ranks."""
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: Any = None, *rest: Any, **options: Any) -> None:
        if is_for_ddl(backend):
            from ddl_core.joining import env_switches

            env_switches.handle_dump_signal()  # a rank may hang before it has a group
            threading.Thread(target=_load_ahead, name="ddl load", daemon=True).start()
        original(backend, *rest, **options)

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group


def _open_destroy_process_group(dist: Any) -> None:
    """Make dist.destroy_process_group undo the environment switches of the default group."""
    original = dist.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(group: Any = None) -> None:
        original(group)
        # Loaded by the first group of ddl.
        switches = sys.modules.get("ddl_core.joining.env_switches")
        if switches is not None and not dist.is_initialized():
            switches.left("torch.distributed")

    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy_process_group


def _open_shrink_group(dist: Any) -> None:
    """Make dist.shrink_group, which replaces the default group, keep the environment switches that
    the creation of the default group has turned on."""
    original = getattr(dist, "shrink_group", None)  # since PyTorch 2.10
    if original is None:
        return

    @functools.wraps(original)
    def shrink_group(*given: Any, **options: Any) -> Any:
        group = original(*given, **options)
        if group is dist.group.WORLD and is_ddl(group):
            from ddl_core.frameworks import torch_choices
            from ddl_core.joining import env_switches

            rank = group.rank()
            env_switches.joined("torch.distributed", rank, torch_choices.local_rank(rank))
        return group

    dist.shrink_group = dist.distributed_c10d.shrink_group = shrink_group


def _load_ahead() -> None:
    from ddl_torch import _build

    _build.load_ahead()


def _open_monitored_barrier(dist: Any) -> None:
    """Make dist.monitored_barrier, and the method that it calls, accept groups of ddl. PyTorch's
    accept only groups of Gloo."""
    original, of_group = dist.monitored_barrier, dist.ProcessGroup.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> None:
        own = dist.group.WORLD if group is None else group
        if not is_ddl(own):
            return original(group, timeout, wait_all_ranks)
        if timeout is None:
            timeout = _UNSET
        elif isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        return own.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    @functools.wraps(of_group)
    def method(group: Any, timeout: timedelta = _UNSET, wait_all_ranks: bool = False) -> None:
        if not is_ddl(group):
            return of_group(group, timeout, wait_all_ranks)
        from ddl_torch import barriers

        return barriers.of_native(cpu_backend(group), timeout, wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier
    dist.ProcessGroup.monitored_barrier = method


def _open_set_pg_timeout(dist: Any) -> None:
    """Make distributed_c10d._set_pg_timeout accept groups of ddl. PyTorch's accepts only groups of
    Gloo and NCCL."""
    original = dist.distributed_c10d._set_pg_timeout

    @functools.wraps(original)
    def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        own = dist.group.WORLD if group is None else group
        if not is_ddl(own):
            original(timeout, group)
            return
        if not isinstance(timeout, timedelta):
            raise TypeError(f"timeout is a {type(timeout).__name__}, not a datetime.timedelta")
        if timeout <= timedelta(0):
            raise ValueError(f"timeout is {timeout}; must be positive")
        cpu_backend(own).set_timeout(timeout)
        if any(backend_of(own, device).name() != "ddl" for device in own._device_types):
            original(timeout, group)

    dist.distributed_c10d._set_pg_timeout = _set_pg_timeout
    if hasattr(dist, "_set_pg_timeout"):  # not in all versions
        dist._set_pg_timeout = _set_pg_timeout


def _create(group: Any, given: Any) -> Any:
    """Create the backend of a new group that this process is a member of."""
    if group.global_ranks_in_group:
        return _join(group, given)[0]
    from ddl_core.joining import env_switches

    env_switches.check(group.group_rank)
    backend, local_rank = _join(group, given)
    env_switches.joined("torch.distributed", group.group_rank, local_rank)
    return backend


def _join(group: Any, given: Any) -> tuple[Any, int]:
    """Join a new group with these pg_options. Return its backend and this process's local rank in
    it."""
    import torch

    from ddl_core.frameworks import torch_choices
    from ddl_torch import _build
    from ddl_torch.options import of_new_group

    options = of_new_group(group, given)
    if torch_choices.logs_info():
        from ddl_torch import hints

        hints.watch()
    native = _build.module_or_none()
    reconfigurable = bool(getattr(group, "enable_reconfigure", False))  # since PyTorch 2.14
    if native is not None:
        from ddl_torch import shared_memory

        shared_memory.apply(native)
        if torch.version.cuda is not None:
            from ddl_core.calls.gpu import load_libraries

            load_libraries()
        backend = native.create(
            group.store,
            group.group_rank,
            group.group_size,
            group.timeout,
            group.global_ranks_in_group,
            group.group_id,
            reconfigurable,
            options.number(),
        )
        shared_memory.report(native)
        if reconfigurable:  # the ranks on this host are not known before the first reconfiguration
            return backend, torch_choices.local_rank(group.group_rank)
        return backend, native.local(backend)[0]
    if reconfigurable:
        raise NotImplementedError(
            "enable_reconfigure=True needs the native part of ddl_torch, which is off or could not"
            " be compiled; `python -m ddl_torch build` shows why"
        )
    from ddl_torch import fallback

    joined = fallback.ProcessGroup(
        *(group.store, group.group_rank, group.group_size, group.timeout, options)
    )
    return joined, joined.local()[0]
