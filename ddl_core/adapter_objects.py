# SPDX-License-Identifier: Apache-2.0
"""Objects as bytes. If an object cannot be pickled, the bytes say so, and all ranks raise."""

from __future__ import annotations

import pickle
from typing import Any

_PICKLED, _FAILED = b"\0", b"\1"


def packed(value: Any, rank: int) -> bytes:
    """Return the rank's object as bytes for `unpacked`. pickle keeps the identity of classes, so
    cloudpickle is used for the rest only: lambdas and local classes."""
    try:
        try:
            return _PICKLED + pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError):
            import cloudpickle

            by_value: bytes = cloudpickle.dumps(value)
            return _PICKLED + by_value
    except ImportError:
        text = (
            "pickle cannot send it; install cloudpickle, which can send lambdas and local classes"
        )
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return _FAILED + f"the object of rank {rank} cannot be pickled: {text}".encode(errors="replace")


def check(data: bytes) -> None:
    """Raise TypeError if the object could not be pickled."""
    if data.startswith(_FAILED):
        raise TypeError(data[1:].decode())


def unpacked(data: bytes) -> Any:
    """Return the object. TypeError if its rank could not pickle it."""
    check(data)
    return pickle.loads(data[1:])
