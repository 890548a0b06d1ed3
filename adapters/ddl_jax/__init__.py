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
        allreduce_gradients,
        broadcast_parameters,
        gradient_transformation,
        rank_key,
        value_and_grad,
    )
    from ddl_jax.world import init, is_initialized, local_rank, local_size, rank, shutdown, size

# Imported when first asked for: jax must not be imported before `initialize` has told jaxlib what
# its MPI is.
_MODULES = {
    "collectives": (
        *("allgather", "allreduce", "alltoall", "barrier", "broadcast", "grouped_allreduce"),
        *("recv", "reduce_scatter", "send", "sendrecv"),
    ),
    "distributed": ("initialize",),
    "programs": ("jit",),
    "training": (
        *("allreduce_gradients", "broadcast_parameters", "gradient_transformation"),
        *("rank_key", "value_and_grad"),
    ),
    "world": (*("init", "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size"),),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_gradients",
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
    if name == "all_reduce_gradients":
        from ddl_core import adapter

        name = adapter.renamed(__name__, name, "allreduce_gradients")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ddl_jax.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
