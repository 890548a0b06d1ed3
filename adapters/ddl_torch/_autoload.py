"""Makes PyTorch know the backend "ddl". PyTorch calls `register` at the end of `import torch`, by
the entry point of the group torch.backends; so it must be quick, and must never fail."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any


def register() -> None:
    """Register the backend "ddl" for CPU tensors, unless that was done. Builds, loads nothing."""
    try:
        import torch.distributed as dist

        if dist.is_available() and not hasattr(dist.Backend, "DDL"):
            dist.Backend.register_backend("ddl", _create, devices=["cpu"])
    except Exception:
        logging.getLogger("ddl_torch").exception("the backend ddl is not available")


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """The c10d backend of a new group of which this process is a member."""
    from ddl_torch import _build

    return _build.module().create(store, rank, size, timeout)
