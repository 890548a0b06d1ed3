# SPDX-License-Identifier: Apache-2.0
"""Which tensors lie in memory that ranks on one host share, so that these read and write them in
place instead of through a copy (ddl_alloc).

PyTorch lets a process group allocate what it sends: the buckets of DistributedDataParallel, if an
environment variable allows that, and the buffers of fully_shard, if each module is told to. To tell
them, the variable is set here, and fully_shard's default way to allocate is replaced.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any

import torch

_CHOICES = ("none", "buffers", "all")  # csrc/shared_memory.hpp: Sharing

_asked: str | None = None  # by the program; None: the environment decides


def ask(shared_memory: bool | str | None) -> None:
    """What `init` was given. Raises InvalidArgument for anything else."""
    global _asked
    if shared_memory not in (None, False, True, "all"):
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(f"shared_memory: {shared_memory!r} is none of None, False, True, all")
    asked = {None: None, False: "none", True: "buffers"}
    _asked = "all" if shared_memory == "all" else asked[shared_memory]  # type: ignore[index]


def apply(native: ModuleType) -> None:
    """Do what was asked for, in the native part."""
    from ddl_core import torch_choices

    choice = _asked or torch_choices.shared()
    native.share(_CHOICES.index(choice))
    if choice == "none":
        return
    if not torch.cuda.device_count():  # or NCCL would allocate buckets in its own way as well
        from ddl_core import adapter

        adapter.set_default("DDP_DISABLE_COMM_MEM", "0")
    _open_fully_shard(native)


@functools.cache
def _open_fully_shard(native: ModuleType) -> None:
    """Make fully_shard allocate what it sends and receives by `empty_shared`, once."""
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin
    except ImportError:  # another version: it has ordinary memory
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
