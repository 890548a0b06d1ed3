# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for Keras 3 with TensorFlow as its backend, over libddl.

    import ddl_horovod.keras as hvd  # was: import horovod.keras as hvd

docs/horovod.md lists what is served and what differs.
ddl_keras serves the other backends.
"""

from ddl_horovod.common import (
    Adasum,
    Average,
    Sum,
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ddl_horovod.keras import callbacks, elastic
from ddl_horovod.keras.operations import allreduce
from ddl_horovod.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.keras.operations import (
    allgather,
    broadcast,
    broadcast_global_variables,
    load_model,
    reducescatter,
)
from ddl_horovod.tensorflow.world import (
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
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
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
