# SPDX-License-Identifier: Apache-2.0
"""Arrays in memory that ranks on the same host can read in place: see ddl_alloc in ddl.h."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core.errors import InvalidArgument
from ddl_core.joining.world_comm import world


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return a NumPy array of zeros that operations can send faster between ranks on one host.
    Operations of `world()` and of comms created from it read the array in place instead of through
    a copy. Otherwise, it is like any array. Arrays below 128 KiB are in ordinary memory, as are all
    further arrays while 256 arrays of this kind exist. A forked child gets a copy, which takes time
    and memory at the fork.

    Raises InvalidState before `init`, InvalidArgument for a dtype that holds objects or a negative
    size, and OutOfMemory.
    """
    kind = np.dtype(dtype)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if kind.hasobject:
        raise InvalidArgument(f"dtype is {kind}; must not contain Python objects")
    if any(size < 0 for size in sizes):
        raise InvalidArgument(f"shape is {shape}; sizes must be at least 0")
    nbytes = math.prod(sizes) * kind.itemsize
    memory = world()._endpoint._allocate(nbytes)
    return np.frombuffer(memory, np.uint8, nbytes).view(kind).reshape(sizes)
