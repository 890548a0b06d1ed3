# SPDX-License-Identifier: Apache-2.0
"""The adapter of the backend that Keras uses in this process."""

from __future__ import annotations

import importlib
from types import ModuleType

import keras

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
