# SPDX-License-Identifier: Apache-2.0
"""The operations that differ from ddl_horovod.tensorflow.keras."""

from __future__ import annotations

from typing import Any

from ddl_horovod.common import Reduction
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.keras import operations


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Reduction | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Combine the ranks' values, by default to their average. `op` overrides `average`."""
    chosen = average if op is None else None
    return operations.allreduce(
        value, name, chosen, prescale_factor, postscale_factor, op, compression
    )
