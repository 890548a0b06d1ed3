# SPDX-License-Identifier: Apache-2.0
"""Marks: short digests of values, which show changes without a copy of the value."""

from __future__ import annotations

import hashlib
import random
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

LARGE = 16 << 20  # bytes; of larger tensors only the address and version are compared
MOST = 1000  # maximum number of elements of a container that are compared
DEPTH = 6  # maximum depth of nested containers

CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def mark(value: Any) -> str:
    """Return a digest of a value: a number, text, tensor, generator or a container of these. Other
    objects are represented by their class."""
    found = hashlib.blake2b(digest_size=8)
    _add(found, value, 0)
    return found.hexdigest()


def is_tensor(value: Any) -> bool:
    """Return True for an array of NumPy, PyTorch, JAX, TensorFlow or Keras."""
    if isinstance(value, np.ndarray):
        return True
    return not isinstance(value, type) and all(
        hasattr(value, name) for name in ("dtype", "shape", "__array__")
    )


def is_generator(value: Any) -> bool:
    """Return True for a generator of random numbers."""
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return True
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    kind = type(value)
    return kind.__name__ == "Generator" and kind.__module__.startswith("torch")


def is_position(value: Any) -> bool:
    """Return True for an object that is marked by its position: a file, or an iterator from
    itertools."""
    return type(value).__module__ == "itertools" or hasattr(value, "fileno")


def _add(found: Any, value: Any, depth: int) -> None:
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        found.update(repr(value).encode())
    elif is_generator(value):
        found.update(_generator(value))
    elif is_tensor(value):
        found.update(_tensor(value))
    elif isinstance(value, CONTAINERS):
        _add_container(found, value, depth)
    elif is_position(value):
        found.update(_position(value).encode())
    else:
        found.update(type(value).__qualname__.encode())


def _add_container(found: Any, value: Any, depth: int) -> None:
    found.update(f"{type(value).__name__} {len(value)}".encode())
    if depth > DEPTH:
        return
    if isinstance(value, set | frozenset):
        parts = sorted(mark(each) for each in list(value)[:MOST])
    elif isinstance(value, Mapping):
        parts = [part for item in list(value.items())[-MOST:] for part in item]
    else:
        parts = list(value)[-MOST:]  # the newest elements
    for each in parts:
        _add(found, each, depth + 1)


def _generator(value: Any) -> bytes:
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state).encode()
    if isinstance(value, np.random.RandomState):
        kind, keys, *rest = value.get_state(legacy=True)
        return f"{kind}{np.asarray(keys).tobytes()!r}{rest}".encode()
    if isinstance(value, random.Random):
        return repr(value.getstate()).encode()
    return bytes(value.get_state().numpy().tobytes())


def _tensor(value: Any) -> bytes:
    shape = f"{tuple(value.shape)} {value.dtype}"
    version = getattr(value, "_version", None)
    if hasattr(value, "data_ptr") and (value.nbytes > LARGE or str(value.device) != "cpu"):
        return f"{shape} {value.data_ptr()} {version}".encode()
    array = _as_array(value)
    if array is None or array.dtype == object:
        return shape.encode()
    return f"{shape} {zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data)}".encode()


def _as_array(value: Any) -> Any:
    try:
        if hasattr(value, "detach"):
            value = value.detach()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return np.atleast_1d(np.asarray(value))
    except Exception:  # a special kind, such as a traced array or a key of JAX
        return None


def _position(value: Any) -> str:
    try:
        return str(value.tell()) if hasattr(value, "fileno") else repr(value)
    except (OSError, ValueError):
        return "closed"
