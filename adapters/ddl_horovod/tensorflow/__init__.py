# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for TensorFlow, over libddl.

    import ddl_horovod.tensorflow as hvd  # was: import horovod.tensorflow as hvd

docs/horovod.md lists the supported functions and the differences.
"""

from ddl_horovod import built
from ddl_horovod.built import *  # noqa: F403
from ddl_horovod.common import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    check_extension,
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
    split_list,
)
from ddl_horovod.tensorflow import elastic, functions, operations, util, world
from ddl_horovod.tensorflow.batch_norm import SyncBatchNormalization
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.functions import *  # noqa: F403
from ddl_horovod.tensorflow.operations import *  # noqa: F403
from ddl_horovod.tensorflow.training import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
)
from ddl_horovod.tensorflow.world import *  # noqa: F403
from ddl_horovod.tensorflow.world import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    is_homogeneous,
    remove_process_set,
)

_executing_eagerly = util._executing_eagerly  # some programs use this name

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "check_extension",
    "check_num_rank_power_of_2",
    "elastic",
    "get_process_set_ids_and_ranks",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "is_homogeneous",
    "remove_process_set",
    "split_list",
]
__all__ += built.__all__
__all__ += functions.__all__
__all__ += operations.__all__
__all__ += world.__all__
