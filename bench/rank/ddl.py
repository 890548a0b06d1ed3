# SPDX-License-Identifier: Apache-2.0
"""Calls of libddl, through ddl_core."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from data import Data
from loop import c_loop

import ddl_core
from ddl_core.base._lib import check, ffi, lib
from ddl_core.calls.arguments import OPS
from ddl_core.calls.buffer import as_buffer


class Ddl:
    def __init__(self) -> None:
        self._comm = ddl_core.init()
        self.rank, self.size = self._comm.rank, self._comm.size
        self.version = ddl_core.__version__
        self.barrier = self._comm.barrier

    def use(self, data: Data | None) -> None:
        self._data = data
        if data is None:
            return
        dtype: Any = data.dtype
        if dtype == "bfloat16":
            import ml_dtypes

            dtype = ml_dtypes.bfloat16
        self._dtype = dtype

    def calls(self, way: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
        data = self._data
        empty = ddl_core.empty if way.startswith("shared") else np.empty
        data.choose(empty, way in ("apart", "ordered", "shared apart"))
        send, recv = data.send.view(self._dtype), data.recv.view(self._dtype)
        if way in ("apart", "ordered"):
            call = self._library_call(send, recv, way == "ordered")
            return call, call
        function = getattr(self._comm, data.operation + ("_async" if way == "async" else ""))
        arrays = () if data.operation == "barrier" else (recv,) if data.in_place else (send, recv)
        options = {"name": "gradient"} if way == "named" else {}
        call = partial(function, *arrays, **options)
        repeats = data.operation == "allreduce" and data.in_place
        again = partial(call, op="max") if repeats else call
        if way == "async":
            return lambda: call().wait(), lambda: again().wait()
        return call, again

    def _library_call(self, send: Any, recv: Any, ordered: bool) -> Callable[[], None]:
        """Return the library's own function without the checks of ddl_core, which take longer for
        an ordered sum than a short all-reduce does."""
        send, recv = (as_buffer(array, "array") for array in (send, recv))
        own, result = (ffi.cast("void *", buffer.address) for buffer in (send, recv))
        more = (result, send.count, send.dtype.value, OPS["sum"], ffi.NULL, ffi.NULL)
        order, parts = self._comm.order(range(self.size)), ffi.new("void *[]", [own])
        handle = self._comm._handle

        def plain() -> None:
            check(lib.ddl_allreduce(handle, own, *more))

        def in_order() -> None:
            check(lib.ddl_allreduce_ordered(handle, order._handle, parts, *more))

        return in_order if ordered else plain

    def loop(self, batch: int) -> Callable[[], float]:
        """Return a function that makes `batch` all-reduces in C and returns their seconds
        (loop.h)."""
        self._data.choose()
        array = self._data.recv.view(self._dtype)
        return c_loop(int(ffi.cast("uintptr_t", self._comm._handle)), array, batch)

    def leave(self) -> None:
        ddl_core.finalize()


join = Ddl
