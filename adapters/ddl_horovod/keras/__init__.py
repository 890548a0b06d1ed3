# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for Keras 3 with TensorFlow as its backend, over libddl.

    import ddl_horovod.keras as hvd  # was: import horovod.keras as hvd

docs/horovod.md lists the supported functions and the differences.
ddl_keras supports the other backends.
"""

from ddl_horovod import built
from ddl_horovod.built import *  # noqa: F403
from ddl_horovod.common import Adasum, Average, Sum
from ddl_horovod.keras import callbacks, elastic
from ddl_horovod.keras.operations import allreduce
from ddl_horovod.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from ddl_horovod.tensorflow import world
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.keras import operations
from ddl_horovod.tensorflow.keras.operations import *  # noqa: F403
from ddl_horovod.tensorflow.world import *  # noqa: F403

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
    "allreduce",
    "callbacks",
    "elastic",
]
__all__ += built.__all__
__all__ += operations.__all__
__all__ += world.__all__
