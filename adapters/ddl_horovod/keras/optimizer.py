# SPDX-License-Identifier: Apache-2.0
"""Keras optimizers that apply the gradients of all ranks."""

from __future__ import annotations

from typing import Any

import keras

from ddl_horovod.common import Average, Reduction
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.keras import optimizer as base
from ddl_horovod.tensorflow.training import local_variables
from ddl_horovod.tensorflow.world import global_process_set
from ddl_horovod.world import ProcessSet

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"the backend of Keras is {keras.backend.backend()}; ddl_horovod.keras supports only"
        " tensorflow: use ddl_keras, which supports all backends"
    )


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Reduction = Average,
    num_groups: int = 0,
    groups: Any = None,
) -> Any:
    """Make a Keras optimizer apply the combined gradients of all members, and return it.

    ddl_horovod.tensorflow.keras.DistributedOptimizer documents the options and has more of them.
    """
    return base.DistributedOptimizer(
        *(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense),
        *(gradient_predivide_factor, op),
        num_groups=num_groups,
        groups=groups,
    )


def PartialDistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Reduction = Average,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Call `DistributedOptimizer`, but keep the gradients of some layers local to each rank.

    local_layers           a built Keras layer, or several
    scale_local_gradients  divide these gradients by the number of members
    """
    made = base.DistributedOptimizer(
        *(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense),
        *(gradient_predivide_factor, op),
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in local_variables(local_layers):
        made.register_local_var(variable)
    return made
