# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit on many ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from ddl_core.errors import InvalidArgument
from ddl_keras import state
from ddl_keras._adapter import adapter

__all__ = [
    "AverageMetrics",
    "BroadcastModel",
    "Checkpoint",
    "LearningRateSchedule",
    "LearningRateWarmup",
    "Timeline",
]


class BroadcastModel(keras.callbacks.Callback):
    """A callback that copies the root's weights and optimizer to all ranks when training begins.
    All ranks therefore start with equal values, even if only the root has loaded a checkpoint. See
    ddl_keras.broadcast_model.

    If the model is not built on all ranks at that time, as on TensorFlow without keras.Input, the
    values are copied after the first batch. If the root's model was already built, the ranks get
    the values that it had before this batch.

    comm  a communicator whose ranks take part, instead of all
    """

    def __init__(self, root: int = 0, *, comm: Any = None) -> None:
        super().__init__()
        self._root = root
        self._comm = comm
        self._is_pending = False
        self._values: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_pending = True
        self._broadcast()
        if self._is_pending and self.model.built:
            self._values = state.read(state.variables_of(self.model))

    # These methods follow a batch; the first one that is called does the work. `on_train_batch_end`
    # would make Keras wait for each batch.
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._broadcast()

    def on_test_begin(self, logs: Any = None) -> None:
        self._broadcast()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._broadcast()

    def _broadcast(self) -> None:
        if self._is_pending and state.broadcast_built(
            self.model, self._root, self._comm, self._values
        ):
            self._is_pending, self._values = False, None


class AverageMetrics(keras.callbacks.Callback):
    """A callback that averages the metrics of each epoch and of evaluations over the ranks.

    Put it before the callbacks that read them, such as EarlyStopping, which would decide
    differently on each rank. comm: a communicator whose ranks take part, instead of all.
    """

    def __init__(self, *, comm: Any = None) -> None:
        super().__init__()
        self._comm = comm

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs.update(self._averaged(logs))

    def on_test_begin(self, logs: Any = None) -> None:
        # Callbacks get a copy of the result of `evaluate`, so the metrics are averaged where they
        # are computed.
        self.on_test_end()
        own = self.model._get_metrics_result_or_logs
        self.model._get_metrics_result_or_logs = lambda logs: self._averaged(_flat(own(logs)))

    def on_test_end(self, logs: Any = None) -> None:
        self.model.__dict__.pop("_get_metrics_result_or_logs", None)

    def _averaged(self, logs: dict[str, Any]) -> dict[str, Any]:
        numbers = {name: value for name, value in logs.items() if _is_number(value)}
        return logs | (state.average_metrics(numbers, comm=self._comm) if numbers else {})


class LearningRateSchedule(keras.callbacks.Callback):
    """A callback that sets the learning rate to `initial` times `multiplier`. It sets the rate only
    before batches at which the rate changes, so several such callbacks may follow one another.

    initial      the rate that is multiplied
    multiplier   a number, or a function of the epoch
    start        the first epoch in which the callback sets the rate
    end          the first epoch in which it no longer sets the rate; None: there is none
    staircase    True to change the rate with whole epochs only, False to change it for each batch
    """

    def __init__(
        self,
        initial: float,
        multiplier: float | Callable[[float], float],
        start: int = 0,
        end: int | None = None,
        staircase: bool = True,
    ) -> None:
        super().__init__()
        self._initial = initial
        self._multiplier = multiplier
        self._start = start
        self._end = end
        self._staircase = staircase
        self._steps_per_epoch = 0
        self._epoch = 0
        self._last: float | None = None

    def rate(self, epoch: float) -> float | None:
        """Return the learning rate at `epoch`, which may be fractional, or None if the callback
        does not set the rate at that time."""
        if epoch < self._start or (self._end is not None and epoch >= self._end):
            return None
        time_ = float(int(epoch)) if self._staircase else epoch
        factor = self._multiplier(time_) if callable(self._multiplier) else self._multiplier
        return self._initial * factor

    def on_train_begin(self, logs: Any = None) -> None:
        self._last = None
        self._steps_per_epoch = int(self.params.get("steps") or 0)
        if isinstance(getattr(self.model.optimizer, "_learning_rate", None), _SCHEDULE):
            raise InvalidArgument(
                "the optimizer already has a LearningRateSchedule; use a number as learning rate"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._set(self.rate(epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._steps_per_epoch:
            self._set(self.rate(self._epoch + batch / self._steps_per_epoch))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None and self._last is not None:
            logs["learning_rate"] = self._last

    def _set(self, rate: float | None) -> None:
        if rate is not None and rate != self._last:
            state.synchronize(self.model)
            self.model.optimizer.learning_rate = rate
            self._last = rate


class LearningRateWarmup(LearningRateSchedule):
    """A callback that raises the learning rate linearly from `initial` to `scale` times `initial`.
    `initial` is the rate for one rank's batch. The batch of all ranks is larger and allows a higher
    rate, which would be too high for initial weights.

    initial  the learning rate at the start
    epochs   the duration of the rise
    scale    None: the number of ranks
    """

    def __init__(self, initial: float, epochs: float = 5, scale: float | None = None) -> None:
        if epochs < 0:
            raise InvalidArgument(f"epochs is {epochs}; must be at least 0")
        super().__init__(initial, self._factor, staircase=False)
        self._epochs = epochs
        self._scale = scale

    def _factor(self, epoch: float) -> float:
        scale = float(adapter.size() if self._scale is None else self._scale)
        done = min(epoch / self._epochs, 1.0) if self._epochs else 1.0
        return 1.0 + (scale - 1.0) * done


class Checkpoint(keras.callbacks.ModelCheckpoint):
    """A keras.callbacks.ModelCheckpoint that saves on rank 0 only. Its arguments are the same. The
    files load without libddl."""

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._saves = adapter.rank() == 0

    def _save_model(self, *arguments: Any, **options: Any) -> None:
        if self._saves:
            super()._save_model(*arguments, **options)


class Timeline(keras.callbacks.Callback):
    """A callback that writes a trace of epochs, batches and evaluations. Chrome's tracing page and
    Perfetto show it. Each rank writes its own file when training ends. Together, the files show
    which ranks wait for which.

    file  the name of the file, in which {rank} stands for the rank
    """

    def __init__(self, file: str | Path) -> None:
        super().__init__()
        self._file = str(file)
        self._events: list[dict[str, Any]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self._events = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._event("B", f"epoch {epoch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._event("E", f"epoch {epoch}")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._event("B", "batch", batch=batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._event("E", "batch")

    def on_test_begin(self, logs: Any = None) -> None:
        self._event("B", "evaluation")

    def on_test_end(self, logs: Any = None) -> None:
        self._event("E", "evaluation")

    def on_train_end(self, logs: Any = None) -> None:
        file = Path(self._file.replace("{rank}", str(adapter.rank())))
        file.write_text(json.dumps({"traceEvents": self._events}))

    def _event(self, phase: str, name: str, **arguments: Any) -> None:
        # Wall-clock time, so that the ranks' files can be merged.
        where = {"pid": adapter.rank(), "tid": 0, "ts": time.time_ns() / 1000}
        event = {"ph": phase, "name": name, **where}
        self._events.append({**event, "args": arguments} if arguments else event)


_SCHEDULE = keras.optimizers.schedules.LearningRateSchedule


def _flat(logs: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
