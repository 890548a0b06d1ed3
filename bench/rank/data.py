# SPDX-License-Identifier: Apache-2.0
"""The buffers of one operation on one rank, rewritten before and checked after each iteration."""

from collections.abc import Callable
from typing import Any

import numpy as np

Empty = Callable[[Any, Any], np.ndarray]  # of a shape and a dtype

# Values repeat after this many elements. It is a prime, so that no two blocks or segments are
# equal, and small, so that the tile used for rewriting and checking stays in the cache.
PERIOD = 65521

_WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_IN_PLACE = ("allreduce", "broadcast")


def bits(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the values as elements of the dtype, viewed as unsigned integers of the same width."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elements = values.astype(dtype)
    return elements.view(_WIDTHS[elements.itemsize])


def itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


class Data:
    """The `send` and `recv` buffers of one rank, as unsigned integers; the same array if the
    operation is in place. `nbytes` is the size in the tables.

    Element i of rank r's send buffer is i % PERIOD % 16 + r: small integers, whose sums are exact
    in every dtype.
    """

    def __init__(self, operation: str, dtype: str, nbytes: int, rank: int, size: int) -> None:
        self.operation, self.dtype, self.rank, self.size = operation, dtype, rank, size
        total = max(nbytes // itemsize(dtype), 1)
        if operation not in _IN_PLACE:
            total = max(total // size, 1) * size
        self.block = total // size
        self.total = total
        whole = total if operation != "reduce_scatter" else self.block
        self._lengths = (self.block if operation == "allgather" else total, whole)
        self._width = _WIDTHS[itemsize(dtype)]
        self._buffers: dict[Any, tuple[np.ndarray, np.ndarray]] = {}
        self._values = np.arange(2 * PERIOD) % PERIOD % 16
        self.choose()

    def choose(self, empty: Empty = np.empty, apart: bool = False) -> None:
        """Use buffers that `empty` allocates. `apart`: even an in-place operation gets a separate
        buffer for the result."""
        self.in_place = self.operation in _IN_PLACE and not apart
        if (empty, apart) not in self._buffers:
            send = empty(self._lengths[0], self._width)
            recv = send if self.in_place else empty(self._lengths[1], self._width)
            self._buffers[empty, apart] = send, recv
        self.send, self.recv = self._buffers[empty, apart]

    def rewrite(self) -> None:
        if not self.in_place:
            self.recv.fill(np.iinfo(self.recv.dtype).max)
        if self.operation == "broadcast" and self.rank:
            self.send.fill(np.iinfo(self.send.dtype).max)
        else:
            _write(self.send, bits(self._values + self.rank, self.dtype))

    def check(self) -> None:
        n, ranks = self.size, self.size * (self.size - 1) // 2
        own = self.rank * self.block
        if self.operation == "allreduce":
            self._compare(0, self.recv, n * self._values + ranks)
        elif self.operation == "reduce_scatter":
            self._compare(0, self.recv, n * self._values + ranks, own)
        elif self.operation == "broadcast":
            self._compare(0, self.recv, self._values)
        elif self.operation != "barrier":
            first = own if self.operation == "alltoall" else 0
            for r in range(n):
                block = self.recv[r * self.block : (r + 1) * self.block]
                self._compare(r * self.block, block, self._values + r, first)

    def _compare(self, at: int, part: np.ndarray, values: np.ndarray, first: int = 0) -> None:
        tile = bits(values, self.dtype)[first % PERIOD :]
        for i in range(0, len(part), PERIOD):
            piece = part[i : i + PERIOD]
            want = tile[: len(piece)]
            if not np.array_equal(piece, want):
                wrong = int(np.flatnonzero(piece != want)[0])
                raise AssertionError(
                    f"{self.operation} gave a wrong result: rank {self.rank}, element"
                    f" {at + i + wrong} of {self.dtype} is {piece[wrong]:#x}, not {want[wrong]:#x}"
                )


def _write(array: np.ndarray, tile: np.ndarray) -> None:
    for i in range(0, len(array), PERIOD):
        piece = array[i : i + PERIOD]
        piece[:] = tile[: len(piece)]
