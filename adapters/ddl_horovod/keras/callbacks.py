# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit on many ranks."""

from __future__ import annotations

from typing import Any

from ddl_horovod.tensorflow.keras import callbacks as base
from ddl_horovod.tensorflow.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BestModelCheckpoint(base.BestModelCheckpoint):
    """A callback that saves the best model to its attribute `filepath`. The program sets this
    attribute before training."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(monitor, verbose, False, mode, save_freq)
