# SPDX-License-Identifier: Apache-2.0
"""libddl for PyTorch.

    import ddl_torch as ddl

    ddl.init()                       # started by ddlrun, mpirun, torchrun, srun, or alone
    model = DistributedDataParallel(model)
    ...                              # each rank trains on its part of the data
    ddl.shutdown()

`init` creates torch.distributed's default process group with the backend "ddl", so everything built
on torch.distributed works as usual. A program that starts torch.distributed itself calls
torch.distributed.init_process_group("ddl") and need not import this package.
"""

from ddl_torch import _requires  # noqa: F401, raises an error if PyTorch is missing
from ddl_torch.batch_norm import SyncBatchNorm
from ddl_torch.collectives import (
    Work,
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    barrier,
    barrier_async,
    broadcast,
    broadcast_async,
    grouped_allreduce,
    grouped_allreduce_async,
    reduce_scatter,
    reduce_scatter_async,
)
from ddl_torch.optimizer import DistributedOptimizer
from ddl_torch.options import Options
from ddl_torch.packing import GradientCompression, compress_gradients
from ddl_torch.parts import allreduce_parts, reduce_scatter_parts
from ddl_torch.serving import serve
from ddl_torch.state import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ddl_torch.training import average_metrics, scaled_warmup
from ddl_torch.world import (
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

__all__ = [
    "DistributedOptimizer",
    "GradientCompression",
    "Options",
    "SyncBatchNorm",
    "Work",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "allreduce_parts",
    "alltoall",
    "alltoall_async",
    "average_metrics",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compress_gradients",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "reduce_scatter",
    "reduce_scatter_async",
    "reduce_scatter_parts",
    "scaled_warmup",
    "serve",
    "shutdown",
    "size",
]
