# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for PyTorch, over libddl.

    import ddl_horovod.torch as hvd  # was: import horovod.torch as hvd

docs/horovod.md lists the supported functions and the differences.
"""

from ddl_horovod import built
from ddl_horovod.built import *  # noqa: F403
from ddl_horovod.common import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    Product,
    Sum,
    check_extension,
)
from ddl_horovod.torch import elastic, functions, operations, world
from ddl_horovod.torch.compression import Compression
from ddl_horovod.torch.functions import *  # noqa: F403
from ddl_horovod.torch.operations import *  # noqa: F403
from ddl_horovod.torch.optimizer import DistributedOptimizer
from ddl_horovod.torch.world import *  # noqa: F403
from ddl_torch import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "check_extension",
    "elastic",
]
__all__ += built.__all__
__all__ += functions.__all__
__all__ += operations.__all__
__all__ += world.__all__
