"""Makes PyTorch know the backend "ddl". PyTorch calls `register` at the end of `import torch`, by
the entry point of the group torch.backends; so it must be quick, and must never fail."""

from __future__ import annotations

import functools
import logging
from datetime import timedelta
from typing import Any


def register() -> None:
    """Register the backend "ddl" for CPU tensors, unless that was done. Builds, loads nothing."""
    try:
        import torch.distributed as dist

        if dist.is_available() and not hasattr(dist.Backend, "DDL"):
            dist.Backend.register_backend("ddl", _create, extended_api=True, devices=["cpu"])
            _open_monitored_barrier(dist)
            _open_set_pg_timeout(dist)
    except Exception:
        logging.getLogger("ddl_torch").exception("the backend ddl is not available")


def _open_monitored_barrier(dist: Any) -> None:
    """Let dist.monitored_barrier, which takes groups of Gloo only, reach a group of ddl."""
    original = dist.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> None:
        from ddl_torch.world import is_ddl

        own = dist.group.WORLD if group is None else group
        if not is_ddl(own):
            return original(group, timeout, wait_all_ranks)
        if timeout is None:
            timeout = timedelta(milliseconds=-1)  # the group's own
        elif isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        return own.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier


def _open_set_pg_timeout(dist: Any) -> None:
    """Let distributed_c10d._set_pg_timeout, which takes groups of Gloo and NCCL only, reach a group
    of ddl."""
    original = dist.distributed_c10d._set_pg_timeout

    @functools.wraps(original)
    def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        from ddl_torch.world import cpu_backend, is_ddl

        own = dist.group.WORLD if group is None else group
        if not is_ddl(own):
            original(timeout, group)
            return
        if not isinstance(timeout, timedelta):
            raise TypeError(f"timeout: is a {type(timeout).__name__}, not a datetime.timedelta")
        if timeout <= timedelta(0):
            raise ValueError(f"timeout: {timeout} is not positive")
        cpu_backend(own).set_timeout(timeout)
        if any(device.type != "cpu" for device in own._device_types):
            original(timeout, group)

    dist.distributed_c10d._set_pg_timeout = _set_pg_timeout
    if hasattr(dist, "_set_pg_timeout"):  # not in all versions
        dist._set_pg_timeout = _set_pg_timeout


def _create(group: Any, _options: Any) -> Any:
    """The backend of a new group of which this process is a member."""
    from ddl_torch import _build

    native = _build.module_or_none()
    if native is not None:
        return native.create(
            group.store,
            group.group_rank,
            group.group_size,
            group.timeout,
            group.global_ranks_in_group,
            group.group_id,
        )
    from ddl_torch import fallback

    return fallback.ProcessGroup(group.store, group.group_rank, group.group_size, group.timeout)
