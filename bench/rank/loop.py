# SPDX-License-Identifier: Apache-2.0
"""Calls from C: the function `loop` of the shared library $BENCH_LOOP."""

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Any


def c_loop(comm: int, array: Any, batch: int) -> Callable[[], float]:
    """Return a function that makes `batch` in-place all-reduces of the array and returns their
    seconds. `comm` is the address that loop_KIND.c expects."""
    loop = ctypes.CDLL(os.environ["BENCH_LOOP"]).loop
    loop.restype = ctypes.c_double
    run = partial(
        loop,
        ctypes.c_void_p(comm),
        ctypes.c_void_p(array.ctypes.data),
        ctypes.c_int(array.size),
        ctypes.c_int(batch),
    )

    def checked() -> float:
        seconds: float = run()
        if seconds < 0:
            raise RuntimeError("an all-reduce from C failed")
        return seconds

    return checked
