# SPDX-License-Identifier: Apache-2.0
"""libddl for TensorFlow.

    import ddl_tensorflow as ddl

    ddl.init()                       # started by ddlrun, mpirun, torchrun, srun, or alone
    with ddl.DistributedGradientTape() as tape:
        ...                          # each rank trains on its part of the data
    ddl.shutdown()

For Keras models use ddl_keras, which works with every backend of Keras.
"""

from ddl_tensorflow import _requires  # noqa: F401, which says what is missing
from ddl_tensorflow import gradients as _gradients  # noqa: F401, which registers them
from ddl_tensorflow.collectives import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allreduce,
    reduce_scatter,
)
from ddl_tensorflow.communicators import Communicator, split, subset
from ddl_tensorflow.packing import gradient_residual
from ddl_tensorflow.training import (
    DistributedGradientTape,
    allgather_object,
    allreduce_gradients,
    average_metrics,
    broadcast_object,
    broadcast_parameters,
)
from ddl_tensorflow.world import (
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

__all__ = [
    "Communicator",
    "DistributedGradientTape",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_gradients",
    "alltoall",
    "average_metrics",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "gradient_residual",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "reduce_scatter",
    "shutdown",
    "size",
    "split",
    "subset",
]
