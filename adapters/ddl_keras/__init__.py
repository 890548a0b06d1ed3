# SPDX-License-Identifier: Apache-2.0
"""libddl for Keras 3, on each of its backends: TensorFlow, JAX and PyTorch.

    import ddl_keras as ddl

    ddl.init()                            # started by ddlrun, mpirun, torchrun, srun, or alone
    ...                                   # each rank trains on its part of the data
    model.compile(ddl.DistributedOptimizer("adam"), loss)
    model.fit(..., callbacks=[ddl.callbacks.BroadcastModel(), ddl.callbacks.AverageMetrics()])

The operations (init, rank, allreduce, ...) are the operations of the backend's own adapter:
ddl_tensorflow, ddl_jax or ddl_torch.
"""

from ddl_keras import callbacks
from ddl_keras._adapter import Communicator, adapter, split, subset
from ddl_keras.batch_norm import SyncBatchNormalization
from ddl_keras.optimizer import DistributedOptimizer
from ddl_keras.state import average_metrics, broadcast_model

allgather = adapter.allgather
allreduce = adapter.allreduce
alltoall = adapter.alltoall
barrier = adapter.barrier
broadcast = adapter.broadcast
grouped_allreduce = adapter.grouped_allreduce
init = adapter.init
is_initialized = adapter.is_initialized
local_rank = adapter.local_rank
local_size = adapter.local_size
rank = adapter.rank
reduce_scatter = adapter.reduce_scatter
shutdown = adapter.shutdown
size = adapter.size

__all__ = [
    "Communicator",
    "DistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "alltoall",
    "average_metrics",
    "barrier",
    "broadcast",
    "broadcast_model",
    "callbacks",
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
