# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for Keras with TensorFlow, over libddl.

    import ddl_horovod.tensorflow.keras as hvd  # was: import horovod.tensorflow.keras as hvd

docs/horovod.md lists the supported functions and the differences.
"""

from ddl_horovod import built
from ddl_horovod.built import *  # noqa: F403
from ddl_horovod.common import Average, Sum, is_version_greater_equal_than
from ddl_horovod.tensorflow import world
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.keras import callbacks, elastic, operations
from ddl_horovod.tensorflow.keras.operations import *  # noqa: F403
from ddl_horovod.tensorflow.keras.operations import allreduce
from ddl_horovod.tensorflow.keras.optimizer import DistributedOptimizer
from ddl_horovod.tensorflow.world import *  # noqa: F403
from ddl_horovod.tensorflow.world import ProcessSet, add_process_set, remove_process_set

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allreduce",
    "callbacks",
    "elastic",
    "is_version_greater_equal_than",
    "remove_process_set",
]
__all__ += built.__all__
__all__ += operations.__all__
__all__ += world.__all__
