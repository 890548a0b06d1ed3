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
            f"ddl_keras works with the Keras backends {', '.join(_ADAPTERS)}; this is {backend}"
            " (see KERAS_BACKEND)"
        )
    return importlib.import_module(_ADAPTERS[backend])


adapter = _find()


def among(comm: Any) -> dict[str, Any]:
    """The option by which the adapter's operations are restricted to a communicator; None: all
    ranks. Unsupported on PyTorch."""
    if comm is None:
        return {}
    _check_parts("comm")
    return {"comm": comm}


class Communicator(Protocol):
    """Some of the ranks, as the backend's adapter has them. For the keyword comm."""

    rank: int
    size: int


@overload
def split(color: int, key: int = 0) -> Communicator: ...


@overload
def split(color: None, key: int = 0) -> None: ...


def split(color: int | None, key: int = 0) -> Communicator | None:
    """The communicator of the ranks that give the same color, in the order of key, then of their
    rank. All ranks call it; with None a rank gets None. On TensorFlow and JAX; Unsupported on
    PyTorch, and raises like ddl_core.Comm.split."""
    _check_parts("split")
    part: Communicator | None = adapter.split(color, key)
    return part


def subset(ranks: Sequence[int]) -> Communicator:
    """The communicator of these ranks, in this order. Only they call it. Raises like `split`."""
    _check_parts("subset")
    part: Communicator = adapter.subset(ranks)
    return part


def _check_parts(what: str) -> None:
    if not hasattr(adapter, "split"):
        raise Unsupported(
            f"{what}: ddl_keras on PyTorch has operations of all ranks only; use the backend"
            " tensorflow or jax, or process groups of torch.distributed"
        )
