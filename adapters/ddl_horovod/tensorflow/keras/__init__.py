# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for Keras with TensorFlow, over libddl.

    import ddl_horovod.tensorflow.keras as hvd  # was: import horovod.tensorflow.keras as hvd

docs/horovod.md lists what is served and what differs.
"""

from ddl_horovod.common import (
    Average,
    Sum,
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_version_greater_equal_than,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.keras import callbacks, elastic
from ddl_horovod.tensorflow.keras.operations import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    load_model,
    reducescatter,
)
from ddl_horovod.tensorflow.keras.optimizer import DistributedOptimizer
from ddl_horovod.tensorflow.world import (
    ProcessSet,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "is_version_greater_equal_than",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
