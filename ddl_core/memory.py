# SPDX-License-Identifier: Apache-2.0
"""Arrays in memory that ranks on the same host read in place: see ddl_alloc in ddl.h."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core.errors import InvalidArgument
from ddl_core.world_comm import world


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """A NumPy array of zeros, which operations of `world()` and of comms made from it move faster
    between ranks on one host: these read it in place instead of through a copy.

    Otherwise it is like any array. It pays for long ones; those below 128 KiB, and those beyond the
    256th that is alive, are in ordinary memory. A forked child has a copy of it, which takes time
    and memory at the fork.

    Raises InvalidState before `init`, InvalidArgument for a dtype that holds objects or a negative
    size, OutOfMemory.
    """
    kind = np.dtype(dtype)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if kind.hasobject:
        raise InvalidArgument(f"dtype is {kind}: such an array cannot hold objects")
    if any(size < 0 for size in sizes):
        raise InvalidArgument(f"shape is {shape}: a size is negative")
    nbytes = math.prod(sizes) * kind.itemsize
    memory = world()._endpoint._allocate(nbytes)
    return np.frombuffer(memory, np.uint8, nbytes).view(kind).reshape(sizes)
