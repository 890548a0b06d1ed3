"""libddl for PyTorch.

    import ddl_torch as ddl

    ddl.init()                       # started by ddlrun, mpirun, torchrun, srun, or alone
    model = DistributedDataParallel(model)
    ...                              # each rank trains on its part of the data
    ddl.shutdown()

`init` makes torch.distributed's default process group with the backend "ddl", so everything built
on torch.distributed works as usual. Who starts torch.distributed himself calls
torch.distributed.init_process_group("ddl"), for which nothing need be imported from here.
"""

from ddl_torch.collectives import (
    Work,
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    barrier,
    barrier_async,
    broadcast,
    broadcast_async,
    broadcast_parameters,
)
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
    "Work",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "broadcast_parameters",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
