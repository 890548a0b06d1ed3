# SPDX-License-Identifier: Apache-2.0
"""Memory for arrays of floating-point numbers, parts of which can be freed. A freed part is NaN, so
that a program that uses it notices this.

The memory is a private mapping of a file whose bits are all 1, which is NaN in each type. A write
copies a page of the file. To free the copy is to return to the file.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from functools import cache

import torch
from torch import Tensor

_FILE = 4 << 20  # bytes of the file, which is mapped repeatedly
_MAP_FIXED = 0x10


class Pages:
    """The memory of an array, with these values at first.

    tensor  the array
    """

    def __init__(self, values: Tensor) -> None:
        count, self._size = values.nbytes, values.element_size()
        self._map = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for begin in range(0, count, _FILE):
            _map_file(address + begin, min(_FILE, count - begin))
        self.tensor = torch.frombuffer(self._map, dtype=values.dtype).copy_(values)

    def drop(self, begin: int, end: int) -> None:
        """Free the memory of the elements in this interval."""
        page = mmap.PAGESIZE // self._size
        first, last = -(-begin // page) * page, end // page * page
        if first < last:
            self._map.madvise(mmap.MADV_DONTNEED, first * self._size, (last - first) * self._size)
        self.tensor[begin : min(first, end)] = math.nan
        self.tensor[max(last, begin) : end] = math.nan


@cache
def _open_file() -> int:
    file = os.memfd_create("ddl nan")
    os.write(file, b"\xff" * _FILE)
    return file


def _map_file(address: int, count: int) -> None:
    """Map the beginning of the file at this address, which is mapped already."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    pointer, size, access = ctypes.c_void_p(address), ctypes.c_size_t(count), mmap.PROT_READ
    flags = mmap.MAP_PRIVATE | _MAP_FIXED
    found = function(pointer, size, access | mmap.PROT_WRITE, flags, _open_file(), ctypes.c_long(0))
    if found != address:
        raise OSError(ctypes.get_errno(), "cannot map the memory of parameters")
