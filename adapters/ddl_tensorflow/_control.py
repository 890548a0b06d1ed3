"""The world of the compiled part: the functions of csrc/control.cpp, for world.py."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ddl_core.config import milliseconds
from ddl_core.errors import BY_STATUS, InternalError

ADDRESS_MAX = 1024  # DDL_ADDRESS_MAX
_MESSAGE = 1024  # kMessage of csrc/control.cpp


class Control:
    """The way into the world and out of it. Other worlds, as that of _fallback.py, have the same
    four methods."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._endpoint = ctypes.c_void_p()

    def open(self) -> bytes:
        """This process's address, for the others' `join`."""
        message = ctypes.create_string_buffer(_MESSAGE)
        own, length = ctypes.create_string_buffer(ADDRESS_MAX), ctypes.c_size_t()
        status = self._library.ddl_tensorflow_open(
            ctypes.byref(self._endpoint), own, ctypes.byref(length), message
        )
        _check(status, message)
        return own.raw[: length.value]

    def join(self, addresses: Sequence[bytes], rank: int, tag: int, timeout: float | None) -> None:
        """Join, with the addresses of all ranks; tag tells this comm from others of the same."""
        message = ctypes.create_string_buffer(_MESSAGE)
        status = self._library.ddl_tensorflow_join(
            self._endpoint,
            b"".join(address.ljust(ADDRESS_MAX, b"\0") for address in addresses),
            (ctypes.c_size_t * len(addresses))(*map(len, addresses)),
            rank,
            len(addresses),
            ctypes.c_uint64(tag),
            ctypes.c_int64(milliseconds(timeout, "timeout")),
            message,
        )
        _check(status, message)

    def place(self) -> tuple[int, int, int, int]:
        """rank, size, local rank, local size"""
        place = (ctypes.c_int * 4)()
        self._library.ddl_tensorflow_place(place)
        return place[0], place[1], place[2], place[3]

    def leave(self) -> None:
        """End the world, if there is one; operations that do not end in a second are aborted."""
        self._library.ddl_tensorflow_leave()


def _check(status: int, message: Any) -> None:
    if status != 0:
        error = BY_STATUS.get(status, InternalError)
        raise error(message.value.decode(errors="replace"))
