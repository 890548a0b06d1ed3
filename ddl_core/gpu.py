# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of a GPU: where their contents come from, and the stream of an operation.

A producer of such an array says when its contents are there: an exporter of DLPack lets a stream of
the consumer's wait for them; the `__cuda_array_interface__` names a stream that brings them.
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

LEGACY = 1  # the default stream, as both protocols number it


@dataclass(slots=True)
class Contents:
    """When the contents of an array are there: once `let_wait(stream)` was called for work in that
    stream, or in `stream`. Either may be None."""

    let_wait: Callable[[int], object] | None = None
    stream: int | None = None


@functools.cache
def load_libraries() -> None:
    """Load NCCL of Python packages for CUDA: libddl finds it by its name."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in sorted(Path(folder).glob("*/lib/libnccl.so.2")):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(library))


def choose_stream(contents: Sequence[Contents], given: Any) -> int:
    """The stream of an operation on these arrays, which waits for their contents as far as their
    producers do that.

    The one that was given; else the one that brings their contents; else the default one. Raises
    InvalidArgument for what is no stream, and for arrays that name different ones.
    """
    load_libraries()
    if given is not None:
        stream = handle_of(given)
    else:
        named = sorted({each.stream for each in contents if each.stream is not None})
        if len(named) > 1:
            raise InvalidArgument(
                f"stream: None, but the arrays are used in the streams {named[0]:#x} and"
                f" {named[1]:#x}; let one wait for the other, and give that one"
            )
        stream = named[0] if named else LEGACY
    for each in contents:
        if each.let_wait is not None:
            each.let_wait(stream)
    return stream


def handle_of(stream: Any) -> int:
    """The CUstream of a stream of any library, as a number: that of CUDA's Python protocol
    (`__cuda_stream__`), of PyTorch or of CuPy. 0, the default stream, becomes LEGACY."""
    handle = stream
    if hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1]
    elif not isinstance(stream, int):
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < 0:
        raise InvalidArgument(
            f"stream: {stream!r} is no CUDA stream; pass its address as a number, or an object that"
            " has __cuda_stream__, cuda_stream (PyTorch) or ptr (CuPy)"
        )
    return handle or LEGACY
