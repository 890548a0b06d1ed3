# SPDX-License-Identifier: Apache-2.0
"""What the bits of TensorFlow's results depend on, and how it is fixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from ddl_elastic.base import environment
from ddl_elastic.frameworks import flat
from ddl_elastic.frameworks import threads as elastic_threads

__all__ = ["describe", "pin", "refuse_fork", "seed"]

# TensorFlow's own generators have states within operations, so programs use stateless operations.
seed = flat.seed


def _is_started() -> bool:
    """Whether TensorFlow has threads in this process, as it has from its first operation on."""
    found = context.context_safe()
    return bool(found and found._initialized)


def pin(threads: int) -> None:
    """Threads within an operation, and algorithms. Random operations without a seed are refused
    from now on: what they draw would depend on what was computed before."""
    tf.config.experimental.enable_op_determinism()
    elastic_threads.pin("TensorFlow", _is_started(), threads, "TF_NUM_INTRAOP_THREADS")


def refuse_fork() -> None:
    """Raises RuntimeError in a process whose children could not use TensorFlow."""
    elastic_threads.refuse_fork("TensorFlow", _is_started(), "a function that makes the model")


def describe(_model: Any = None) -> dict[str, str]:
    """See ddl_elastic.frameworks.protocol.Framework.environment."""
    gpus = tf.config.list_physical_devices("GPU")
    devices = {"GPU": str(tf.config.experimental.get_device_details(gpus[0]))} if gpus else {}
    return {
        "TensorFlow": tf.__version__,
        "number of threads": environment.threads(),
        **devices,
        "NumPy": np.__version__,
        **environment.processor(),
    }
