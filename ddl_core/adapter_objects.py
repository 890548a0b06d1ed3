# SPDX-License-Identifier: Apache-2.0
"""Pickled objects. If a rank cannot pickle an object, it sends the error instead, and all ranks
raise it."""

from __future__ import annotations

import pickle
from typing import Any

_PICKLED, _FAILED = b"\0", b"\1"


def packed(value: Any, rank: int) -> bytes:
    """Return the rank's object as bytes for `unpacked`. If it cannot be pickled, they contain the
    error.

    Uses cloudpickle only for objects that pickle cannot send, such as lambdas and local classes,
    because only pickle preserves the identity of classes.
    """
    try:
        try:
            return _PICKLED + pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError):
            import cloudpickle

            by_value: bytes = cloudpickle.dumps(value)
            return _PICKLED + by_value
    except ImportError:
        text = "pickle cannot send it; install cloudpickle to send lambdas and local classes"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return _FAILED + f"the object of rank {rank} cannot be pickled: {text}".encode(errors="replace")


def check(data: bytes) -> None:
    """Raise TypeError if these bytes, which `packed` returned, contain an error instead of an
    object."""
    if data.startswith(_FAILED):
        raise TypeError(data[1:].decode())


def unpacked(data: bytes) -> Any:
    """Return the object in these bytes, which `packed` returned. Raises TypeError if they contain
    an error instead."""
    check(data)
    return pickle.loads(data[1:])
