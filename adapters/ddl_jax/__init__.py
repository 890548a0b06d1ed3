"""libddl for JAX.

    import ddl_jax as ddl

    ddl.init()                      # started by ddlrun, mpirun, torchrun, srun, or alone
    parameters = ddl.broadcast_parameters(parameters)
    ...
    loss, gradients = ddl.value_and_grad(loss_of)(parameters, batch)  # averaged over all ranks

Programs of jax's own collectives call `initialize` instead, before jax is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddl_jax.collectives import (
        allgather,
        allreduce,
        alltoall,
        barrier,
        broadcast,
        grouped_allreduce,
        recv,
        reduce_scatter,
        send,
        sendrecv,
    )
    from ddl_jax.distributed import initialize
    from ddl_jax.programs import jit
    from ddl_jax.training import (
        all_reduce_gradients,
        broadcast_parameters,
        gradient_transformation,
        rank_key,
        value_and_grad,
    )
    from ddl_jax.world import init, is_initialized, local_rank, local_size, rank, shutdown, size

# Where each name lies. It is imported when first asked for, because jax must not be imported before
# `initialize` has told jaxlib what its MPI is.
_PLACES = {
    "all_reduce_gradients": "training",
    "allgather": "collectives",
    "allreduce": "collectives",
    "alltoall": "collectives",
    "barrier": "collectives",
    "broadcast": "collectives",
    "broadcast_parameters": "training",
    "gradient_transformation": "training",
    "grouped_allreduce": "collectives",
    "init": "world",
    "initialize": "distributed",
    "is_initialized": "world",
    "jit": "programs",
    "local_rank": "world",
    "local_size": "world",
    "rank": "world",
    "rank_key": "training",
    "recv": "collectives",
    "reduce_scatter": "collectives",
    "send": "collectives",
    "sendrecv": "collectives",
    "shutdown": "world",
    "size": "world",
    "value_and_grad": "training",
}

__all__ = [
    "all_reduce_gradients",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_parameters",
    "gradient_transformation",
    "grouped_allreduce",
    "init",
    "initialize",
    "is_initialized",
    "jit",
    "local_rank",
    "local_size",
    "rank",
    "rank_key",
    "recv",
    "reduce_scatter",
    "send",
    "sendrecv",
    "shutdown",
    "size",
    "value_and_grad",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ddl_jax.{_PLACES[name]}"), name)
    globals()[name] = value
    return value
