"""What the bits of TensorFlow's results depend on, and how it is fixed."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from ddl_elastic import environment, flat

__all__ = ["describe", "pin", "refuse_fork", "seed"]

# TensorFlow's own generators have states within operations, so programs use stateless operations.
seed = flat.seed
_log = logging.getLogger("ddl_elastic")


def _is_started() -> bool:
    """Whether TensorFlow has threads in this process, as it has from its first operation on."""
    found = context.context_safe()
    return bool(found and found._initialized)


def pin(threads: int) -> None:
    """Threads within an operation, and algorithms. Random operations without a seed are refused
    from now on: what they draw would depend on what was computed before."""
    tf.config.experimental.enable_op_determinism()
    if _is_started() and not environment.has_threads(threads):
        _log.warning(
            "TensorFlow has started before its number of threads was set to %d, so it has one for"
            " each core; processes with other numbers of cores may compute other bits. Train before"
            " TensorFlow computes anything, or set TF_NUM_INTRAOP_THREADS=%d",
            threads,
            threads,
        )
        return
    environment.limit_threads(threads)


def refuse_fork() -> None:
    """Raises RuntimeError in a process whose children could not use TensorFlow."""
    if _is_started():
        raise RuntimeError(
            "TensorFlow has computed something in this process already, and cannot be forked then."
            " Train before anything else uses TensorFlow, with a function that makes the model; or"
            " start the program by `ddl elastic run`"
        )


def describe(_model: Any = None) -> dict[str, str]:
    """See ddl_elastic.framework.Framework.environment."""
    gpus = tf.config.list_physical_devices("GPU")
    devices = {"GPU": str(tf.config.experimental.get_device_details(gpus[0]))} if gpus else {}
    return {
        "TensorFlow": tf.__version__,
        "number of threads": environment.threads(),
        **devices,
        "NumPy": np.__version__,
        **environment.processor(),
    }
