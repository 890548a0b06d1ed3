# SPDX-License-Identifier: Apache-2.0
"""The adapter of the backend that Keras uses in this process."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol, overload

import keras

from ddl_core.errors import Unsupported

_ADAPTERS = {"tensorflow": "ddl_tensorflow", "jax": "ddl_jax", "torch": "ddl_torch"}


def _find() -> ModuleType:
    backend = keras.backend.backend()
    if backend not in _ADAPTERS:
        raise ImportError(
            f"the backend of Keras is {backend}; ddl_keras works with the Keras backends"
            f" {', '.join(_ADAPTERS)}: set KERAS_BACKEND"
        )
    return importlib.import_module(_ADAPTERS[backend])


adapter = _find()


def among(comm: Any) -> dict[str, Any]:
    """Return the option that restricts the adapter's operations to a communicator; {} for None,
    which means all ranks. Raises Unsupported on PyTorch."""
    if comm is None:
        return {}
    _check_parts("comm")
    return {"comm": comm}


class Communicator(Protocol):
    """A communicator of the backend's adapter, for the keyword argument `comm`."""

    rank: int
    size: int


@overload
def split(color: int, key: int = 0) -> Communicator: ...


@overload
def split(color: None, key: int = 0) -> None: ...


def split(color: int | None, key: int = 0) -> Communicator | None:
    """Create a communicator of the ranks that give the same color, ordered by key, then by rank.

    All ranks call it; a rank with color None gets None. Supported on TensorFlow and JAX. Raises
    Unsupported on PyTorch, and like ddl_core.Comm.split.
    """
    _check_parts("split")
    part: Communicator | None = adapter.split(color, key)
    return part


def subset(ranks: Sequence[int]) -> Communicator:
    """Create a communicator of these ranks, in this order. Only they call it. Raises like
    `split`."""
    _check_parts("subset")
    part: Communicator = adapter.subset(ranks)
    return part


def _check_parts(what: str) -> None:
    if not hasattr(adapter, "split"):
        raise Unsupported(
            f"{what}: ddl_keras on PyTorch supports only operations of all ranks; use the backend"
            " tensorflow or jax, or process groups of torch.distributed"
        )
