# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

from ddl_keras import SyncBatchNormalization as _Synchronized


class SyncBatchNormalization(_Synchronized):
    """The layer of ddl_keras. fused must be False. It also works in functions that XLA compiles,
    but not while a rank has called join()."""

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError(f"fused is {fused}; must be False")
        super().__init__(**kwargs)


for _name in ("__name__", "__qualname__", "__module__"):
    setattr(SyncBatchNormalization, _name, getattr(_Synchronized, _name))
