# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of a GPU: when their contents are ready, and the stream of an operation.

The producer of such an array signals when its contents are ready. A DLPack exporter makes a stream
of the consumer wait for the contents. `__cuda_array_interface__` names a stream that writes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddl_core.errors import InvalidArgument

LEGACY = 1  # the default stream's number in both protocols


@dataclass(slots=True)
class Contents:
    """The way to wait for an array's contents. They are ready for work in a stream after
    `let_wait(stream)`, or for later work in `stream`. Either may be None."""

    let_wait: Callable[[int], object] | None = None
    stream: int | None = None


@functools.cache
def load_libraries() -> None:
    """Load NCCL from Python packages for CUDA, so that libddl finds it by its name."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in sorted(Path(folder).glob("*/lib/libnccl.so.2")):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(library))


def choose_stream(contents: Sequence[Contents], given: Any) -> int:
    """Return the stream in which to run an operation on these arrays. Make it wait for the arrays'
    contents, if the arrays' libraries support that.

    It is the given stream, else the stream that writes the arrays' contents, else the default
    stream. Raises InvalidArgument if the given object is not a stream, or the arrays name different
    streams.
    """
    load_libraries()
    if given is not None:
        stream = handle_of(given)
    else:
        named = sorted({each.stream for each in contents if each.stream is not None})
        if len(named) > 1:
            raise InvalidArgument(
                f"stream is None, but the arrays are used in the streams {named[0]:#x} and"
                f" {named[1]:#x}; make one wait for the other, and pass the waiting one"
            )
        stream = named[0] if named else LEGACY
    for each in contents:
        if each.let_wait is not None:
            each.let_wait(stream)
    return stream


def handle_of(stream: Any) -> int:
    """Return the CUstream of a stream as a number. The stream is a number, or an object of CUDA's
    Python protocol (`__cuda_stream__`), of PyTorch or of CuPy. 0, the default stream, becomes
    LEGACY."""
    handle = stream
    if hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1]
    elif not isinstance(stream, int):
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < 0:
        raise InvalidArgument(
            f"stream is {stream!r}, which is not a CUDA stream; pass its address as a number,"
            " or an object"
            " that has __cuda_stream__, cuda_stream (PyTorch) or ptr (CuPy)"
        )
    return handle or LEGACY
