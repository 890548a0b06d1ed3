# SPDX-License-Identifier: Apache-2.0
"""Metrics of the whole job, for training and validation data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from ddl_elastic.worker.loop import Loop
from ddl_keras.elastic.adapter import KerasAdapter


def results(model: Any) -> dict[str, Any]:
    """Return the model's metrics in the form that `fit` passes to callbacks."""
    found: dict[str, Any] = {}
    for name, value in model.get_metrics_result().items():
        found |= value if isinstance(value, dict) else {name: value}
    return {name: keras.ops.convert_to_numpy(value).tolist() for name, value in found.items()}


def run(adapter: KerasAdapter, loop: Loop, data: Any, batch: int, collate: Any) -> dict[str, Any]:
    """Evaluate the data on all ranks together, and return the metrics. All ranks call this."""
    model = adapter.model

    def evaluate(samples: Any) -> Any:
        """Return the amounts that a batch adds to the metrics' variables."""
        adapter.write_metrics(adapter.unseen)
        model.test_on_batch(*samples)
        values = [keras.ops.convert_to_numpy(each) for each in model.metrics_variables]
        changes = map(np.subtract, values, adapter.unseen)
        return np.concatenate([np.asarray(each, np.float64).reshape(-1) for each in changes])

    total = loop.map(data, evaluate, batch=batch, collate=collate).sum(0)
    ends = np.cumsum([each.size for each in adapter.unseen])
    parts = np.split(total, ends[:-1])
    adapter.write_metrics(
        [
            (unseen + part.reshape(unseen.shape)).astype(unseen.dtype)
            for unseen, part in zip(adapter.unseen, parts, strict=True)
        ]
    )
    found = {f"val_{name}": value for name, value in results(model).items()}
    adapter.write_metrics(adapter.totals)
    return found
