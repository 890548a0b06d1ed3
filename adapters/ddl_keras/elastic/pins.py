# SPDX-License-Identifier: Apache-2.0
"""Settings that make the bits of a share reproducible with the backend that Keras uses."""

from __future__ import annotations

import importlib
from typing import Any

import keras

_HALVES = {
    "tensorflow": "ddl_tensorflow.elastic.pins",
    "jax": "ddl_jax.elastic.pins",
    "torch": "ddl_torch.elastic.pins",
}
_backend = importlib.import_module(_HALVES[keras.backend.backend()])

pin = _backend.pin
seed = _backend.seed
refuse_fork = _backend.refuse_fork


def describe(model: Any) -> dict[str, str]:
    """Return versions and hardware; see ddl_elastic.frameworks.protocol.Framework.environment."""
    found: dict[str, str] = _backend.describe(model)
    return {"Keras": keras.__version__, **found}
