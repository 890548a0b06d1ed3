# SPDX-License-Identifier: Apache-2.0
"""libddl for JAX.

    import ddl_jax as ddl

    ddl.init()                      # started by ddlrun, mpirun, torchrun, srun, or alone
    parameters = ddl.broadcast_parameters(parameters)
    ...
    loss, gradients = ddl.value_and_grad(loss_of)(parameters, batch)  # averaged over all ranks

Programs that use jax's own collectives call `initialize` instead, before jax is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddl_jax.collectives import (
        allgather,
        allreduce,
        allreduce_parts,
        alltoall,
        barrier,
        broadcast,
        grouped_allreduce,
        recv,
        reduce_scatter,
        reduce_scatter_parts,
        scan,
        send,
        sendrecv,
    )
    from ddl_jax.communicators import Communicator, split, subset
    from ddl_jax.distributed import initialize
    from ddl_jax.programs import jit
    from ddl_jax.training import (
        allreduce_gradients,
        broadcast_object,
        broadcast_parameters,
        gradient_transformation,
        rank_key,
        value_and_grad,
    )
    from ddl_jax.world import init, is_initialized, local_rank, local_size, rank, shutdown, size

# Imported at first use. The first two do not import jax, which must not be imported before
# `initialize` has chosen jaxlib's MPI.
_MODULES = ("distributed", "world", "communicators", "collectives", "programs", "training")

__all__ = [
    "Communicator",
    "allgather",
    "allreduce",
    "allreduce_gradients",
    "allreduce_parts",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
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
    "reduce_scatter_parts",
    "scan",
    "send",
    "sendrecv",
    "shutdown",
    "size",
    "split",
    "subset",
    "value_and_grad",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = (importlib.import_module(f"ddl_jax.{module}") for module in _MODULES)
    value = globals()[name] = next(getattr(m, name) for m in modules if hasattr(m, name))
    return value
