# SPDX-License-Identifier: Apache-2.0
"""Settings that make the bits of TensorFlow's results reproducible."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from ddl_elastic.base import environment
from ddl_elastic.frameworks import flat
from ddl_elastic.frameworks import threads as elastic_threads

__all__ = ["describe", "pin", "refuse_fork", "seed"]

# TensorFlow's stateful random operations hide their state, so programs use stateless operations.
seed = flat.seed


def _is_started() -> bool:
    """Return True if TensorFlow has run its first operation, and has therefore started its
    threads."""
    found = context.context_safe()
    return bool(found and found._initialized)


def pin(threads: int) -> None:
    """Fix the number of threads per operation, and the algorithms. TensorFlow then rejects random
    operations without a seed, because their results would depend on earlier computations."""
    tf.config.experimental.enable_op_determinism()
    elastic_threads.pin("TensorFlow", _is_started(), threads, "TF_NUM_INTRAOP_THREADS")


def refuse_fork() -> None:
    """Raise RuntimeError if forked children of this process could not use TensorFlow."""
    elastic_threads.refuse_fork("TensorFlow", _is_started(), "a function that makes the model")


def describe(_model: Any = None) -> dict[str, str]:
    """Return versions and hardware; see ddl_elastic.frameworks.protocol.Framework.environment."""
    gpus = tf.config.list_physical_devices("GPU")
    devices = {"GPU": str(tf.config.experimental.get_device_details(gpus[0]))} if gpus else {}
    return {
        "TensorFlow": tf.__version__,
        "number of threads": environment.threads(),
        **devices,
        "NumPy": np.__version__,
        **environment.processor(),
    }
