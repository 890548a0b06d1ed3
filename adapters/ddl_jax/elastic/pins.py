# SPDX-License-Identifier: Apache-2.0
"""Settings that make the bits of JAX's results reproducible."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jaxlib
import numpy as np
from jax._src import xla_bridge

from ddl_elastic.base import environment
from ddl_elastic.frameworks import flat
from ddl_elastic.frameworks import threads as elastic_threads

__all__ = ["describe", "pin", "refuse_fork", "seed", "tell_device"]

seed = flat.seed
_log = logging.getLogger("ddl_elastic")


def _is_started() -> bool:
    """Return True if JAX has run its first computation, and has therefore started its threads."""
    return bool(xla_bridge.backends_are_initialized())


def pin(threads: int) -> None:
    """Fix the number of XLA's threads, which XLA reads at JAX's first computation."""
    elastic_threads.pin("JAX", _is_started(), threads, "NPROC")


def refuse_fork() -> None:
    """Raise RuntimeError if forked children of this process could not use JAX."""
    elastic_threads.refuse_fork(
        "JAX", _is_started(), "a state of NumPy arrays or a function that makes it"
    )


def describe(_model: Any = None) -> dict[str, str]:
    """Return versions and hardware; see ddl_elastic.frameworks.protocol.Framework.environment."""
    device = jax.devices()[0]
    return {
        "JAX": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "device": f"{device.platform} {device.device_kind}",
        "number of threads": environment.threads(),
        "NumPy": np.__version__,
        **environment.processor(),
    }


def tell_device() -> None:
    """Log a warning if JAX's device may give different bits in each run."""
    platform = jax.default_backend()
    if platform != "cpu":
        _log.warning(
            "JAX computes on %s, where each run may have other bits in its results (on GPUs, set"
            " XLA_FLAGS=--xla_gpu_deterministic_ops=true); all other guarantees hold",
            platform,
        )
