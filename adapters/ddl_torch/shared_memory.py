# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that the ranks on one host share (ddl_alloc), and read and write in place.

PyTorch lets a process group allocate the buckets of DistributedDataParallel if an environment
variable is set, and the buffers of fully_shard if each module requests it. This module sets the
variable, and replaces fully_shard's default allocator.
"""

from __future__ import annotations

import functools
import logging
import math
from types import ModuleType
from typing import Any

import torch

_CHOICES = ("none", "buffers", "all", "automatic")  # must match Sharing in csrc/shared_memory.hpp

_log = logging.getLogger("ddl_torch")
_asked: str | None = None  # the program's choice; None: the environment decides


def ask(shared_memory: bool | str | None) -> None:
    """Store the argument of `init`. Raises InvalidArgument if it is not one of the choices."""
    global _asked
    if shared_memory not in (None, False, True, "all"):
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(
            f'shared_memory is {shared_memory!r}; must be one of None, False, True, "all"'
        )
    asked = {None: None, False: "none", True: "buffers"}
    _asked = "all" if shared_memory == "all" else asked[shared_memory]  # type: ignore[index]


def apply(native: ModuleType) -> None:
    """Apply the choice to the native part, DistributedDataParallel and fully_shard."""
    from ddl_core.frameworks import torch_choices

    choice = _asked or torch_choices.shared()
    native.share(_CHOICES.index(choice))
    if choice == "none":
        return
    if not torch.cuda.device_count():  # with GPUs, NCCL would allocate its buckets differently, too
        torch_choices.let_groups_allocate()
    _open_fully_shard(native)


def report(native: ModuleType) -> None:
    """Log once which tensors lie in shared memory, after a group was created."""
    if native.shares():
        _log_choice(native)


@functools.cache
def _log_choice(native: ModuleType) -> None:
    _log.info(
        "the ranks on this host share the memory of DistributedDataParallel's buckets and"
        " fully_shard's buffers (DDL_TORCH_SHARED=0 disables this)"
    )


@functools.cache
def _open_fully_shard(native: ModuleType) -> None:
    """Make fully_shard allocate its communication buffers with `empty_shared`. Runs once."""
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin
    except ImportError:  # another version of PyTorch: keep its allocator
        return
    original = DefaultAllocMixin.allocate

    @functools.wraps(original)
    def allocate(self: Any, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if device.type != "cpu" or torch.compiler.is_compiling():
            return original(self, size, dtype=dtype, device=device)
        like = torch.empty(0, dtype=dtype, device=device)
        flat: torch.Tensor = native.empty_shared(math.prod(size), like)
        return flat.view(tuple(size))

    DefaultAllocMixin.allocate = allocate
