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
            dist.Backend.register_backend("ddl", _create, devices=["cpu"])
            _open_monitored_barrier(dist)
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


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """The c10d backend of a new group of which this process is a member."""
    from ddl_torch import _build

    return _build.module().create(store, rank, size, timeout)
