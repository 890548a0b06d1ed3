"""Calls from C: the function `loop` of the library that $BENCH_LOOP names."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Any


def c_loop(comm: int, array: Any, batch: int) -> Callable[[], float]:
    """A function that makes `batch` all-reduces of the array in place, and returns the seconds they
    took. `comm` is the address that loop_KIND.c expects."""
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
