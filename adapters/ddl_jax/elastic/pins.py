# SPDX-License-Identifier: Apache-2.0
"""What the bits of JAX's results depend on, and how it is fixed."""

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
    """Whether JAX has threads in this process, as it has from its first computation on."""
    return bool(xla_bridge.backends_are_initialized())


def pin(threads: int) -> None:
    """XLA's threads, whose number is read when JAX computes for the first time."""
    elastic_threads.pin("JAX", _is_started(), threads, "NPROC")


def refuse_fork() -> None:
    """Raises RuntimeError in a process whose children could not use JAX."""
    elastic_threads.refuse_fork(
        "JAX", _is_started(), "a state of NumPy arrays or a function that makes it"
    )


def describe(_model: Any = None) -> dict[str, str]:
    """See ddl_elastic.frameworks.protocol.Framework.environment."""
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
    """Warn on a device whose results may differ."""
    platform = jax.default_backend()
    if platform != "cpu":
        _log.warning(
            "JAX computes on %s, where its results may have other bits in each run (on GPUs unless"
            " XLA_FLAGS has --xla_gpu_deterministic_ops=true); everything else that is promised"
            " holds",
            platform,
        )
