# SPDX-License-Identifier: Apache-2.0
"""The names that match the ranks' operations in graphs.

A default name consists of the function's name and the operation's position in it. If several
functions have one name, such as two Keras models of one architecture, the second and all later ones
are numbered, in the order in which they are first traced. One thread traces them in the same order
on all ranks.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import weakref
from types import FrameType
from typing import Any

import tensorflow as tf

from ddl_core.errors import InvalidArgument

_NAME_MAX = 200  # the most bytes; csrc/kernels.cpp adds a suffix, and libddl allows 255


class Numbers:
    """The functions of one name, numbered in the order of their first traces."""

    def __init__(self) -> None:
        self._functions: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._count = 0
        self._thread = threading.current_thread()

    def find(self, name: str, function: Any) -> int:
        """Return the function's number. Raises InvalidArgument if another thread that still runs
        has traced the previous function, because the order of these threads may differ between
        ranks."""
        if function not in self._functions:
            thread = threading.current_thread()
            if self._count and thread is not self._thread and self._thread.is_alive():
                raise InvalidArgument(
                    f"another function or model already has operations named {name!r}. It was"
                    f" traced in the thread {self._thread.name!r}, and this one is traced in"
                    f" {thread.name!r}, so the ranks could confuse them. Call both once in one"
                    " thread first, or name the operations"
                )
            self._functions[function] = self._count
            self._count += 1
            self._thread = thread
        return self._functions[function]


_lock = threading.Lock()  # functions are traced in several threads at once
_numbers: dict[tuple[str, int], Numbers] = {}  # by name and number of the comm


def forget() -> None:
    """Number functions from the start, as processes do that join the next world."""
    with _lock:
        _numbers.clear()


def match(name: str | None, scope: str, comm: int, forward: str = "") -> str:
    """Return the name that matches an operation on all ranks; "" means by order.

    name     the name that the program has set
    scope    the operation's position in its graph
    comm     the number of the comm
    forward  the name of the operation whose gradient this is
    """
    if name is None:
        if tf.executing_eagerly():
            return ""
        # TensorFlow numbers its graphs of loops and branches. A rank that traces a function more
        # often than other ranks has other numbers, so they are removed.
        graph = getattr(tf.compat.v1.get_default_graph(), "name", None)  # plain graphs have none
        name = "/".join(filter(None, (re.sub(r"_[0-9]+_?$", "", graph or ""), forward)))
        number = _number(name, comm)
        name = f"{name}{f'~{number}' if number else ''}/{scope.rstrip('/')}"
    encoded = name.encode()
    if len(encoded) <= _NAME_MAX:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    return encoded[: _NAME_MAX - 17].decode(errors="ignore") + "~" + digest


def _number(name: str, comm: int) -> int:
    function = _traced_function()
    if function is None:
        return 0
    with _lock:
        return _numbers.setdefault((name, comm), Numbers()).find(name, function)


def _traced_function() -> Any:
    """Return an object that identifies the tf.function that this thread traces, or None. It is the
    same object for each trace of the function. TensorFlow's graphs do not contain it, so it is read
    from the stack frame that traces."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_create_concrete_function":
            return frame.f_locals["tracing_options"].function_captures
        frame = frame.f_back
    return None
