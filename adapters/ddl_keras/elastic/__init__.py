# SPDX-License-Identifier: Apache-2.0
"""Elastic training with Keras 3 on any of its backends: ddl_elastic's adapter for keras.

    import ddl_keras.elastic as elastic

    model.compile("adamw", "mse", metrics=["mae"])              # as it was
    elastic.fit(model, data, batch=256, logical=16, epochs=10)  # was: model.fit(...)

Under `ddl elastic run`, each worker runs the program. `Job` starts workers itself, which create the
model with a function. docs/elastic/ explains the guarantees, and what a program must not do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import keras

import ddl_elastic
from ddl_core import Comm
from ddl_elastic.frameworks import flat
from ddl_elastic.frameworks.protocol import Framework
from ddl_elastic.shares.loading import count_samples, read_example
from ddl_elastic.shares.sampler import Sampler
from ddl_elastic.storage.saving import policy_find
from ddl_elastic.worker import joining
from ddl_elastic.worker.loop import WATCHDOG, Loop
from ddl_keras.elastic import evaluation
from ddl_keras.elastic.adapter import KerasAdapter
from ddl_keras.elastic.callbacks import on_writer
from ddl_keras.elastic.pins import pin, refuse_fork, seed

__all__ = ["Adapter", "Arrays", "Job", "fit", "pin", "preload", "seed"]

Adapter = KerasAdapter  # the name by which ddl_elastic finds it


class Arrays:
    """A data set of arrays with a sample in each row: (inputs, targets)."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)


def fit(
    model: keras.Model,
    data: Any,
    *,
    batch: int,
    logical: int,
    epochs: int = 1,
    seed: int = 0,
    threads: int = 1,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    validation_data: Any = None,
    validation_batch: int | None = None,
    collate: Callable[..., Any] | None = None,
    comm: Comm | None = None,
    watchdog: float = WATCHDOG,
    checkpoint: str | None = None,
    every: int = 100,
    keep: int = 3,
    strict: bool = False,
) -> Any:
    """Train like model.fit, in all processes of the job. Return Keras's History.

    model      a compiled model. Its train_step computes the shares
    data       a data set whose samples are (input, target), or a tuple of arrays
    callbacks  callbacks that run in all processes, with the values of the whole job. Keras
               callbacks that write files run in one process; if it dies, in another one
    epochs     passes over the data. The last step of an epoch may extend into the next one
    validation_data   data like `data` that all processes evaluate together after each epoch
    comm       a comm of the job's processes; None: the processes that `ddl elastic run` started,
               else the result of ddl_core.init
    strict     True to make hidden state an error instead of a warning
    batch, logical, seed, threads, collate, watchdog, checkpoint, every, keep: see ddl_elastic.Job
    """
    pin(threads)
    data, validation_data = _as_dataset(data), _as_dataset(validation_data)
    adapter = _make_adapter(model, data, collate, batch, logical, seed)
    loop = Loop(
        adapter,
        **({"comm": comm} if comm else joining.join()),
        batch=batch,
        logical=logical,
        seed=seed,
        watchdog=watchdog,
        policy=policy_find(checkpoint, every, keep),
        strict=strict,
    )
    loop.checks.callbacks = list(callbacks)
    sampler = Sampler(count_samples(data), batch, logical, seed)
    ends = [sampler.steps(epoch + 1) for epoch in range(epochs)]
    size = validation_batch or batch // logical
    calls = keras.callbacks.CallbackList(
        [on_writer(each, loop) for each in callbacks],
        add_history=True,
        model=model,
        epochs=epochs,
        steps=ends[0] if ends else 0,
        verbose=0,
    )

    def begin_epoch(number: int) -> None:
        if number == ([0, *ends])[epoch]:  # not if the job resumed within the epoch
            adapter.reset_metrics()
        calls.on_epoch_begin(epoch)

    def end_epoch() -> dict[str, Any]:
        logs: dict[str, Any] = evaluation.results(model)
        if validation_data is not None:
            logs |= evaluation.run(adapter, loop, validation_data, size, collate)
        calls.on_epoch_end(epoch, logs)
        return logs

    model.stop_training = False
    epoch, logs = -1, {}
    calls.on_train_begin()
    for step in loop.steps(data, epochs, collate=collate):
        if epoch != (current := bisect_right(ends, step.number)):
            epoch = current
            begin_epoch(step.number)
        calls.on_train_batch_begin(step.number)
        for share in step:
            step.run(share)
        adapter.update()
        epoch = bisect_right(ends, step.number)  # a joining worker knows its step only now
        if step.number == ([0, *ends])[epoch]:  # a state loaded after the reset has old metrics
            adapter.keep_last_metrics()
        calls.on_train_batch_end(step.number, evaluation.results(model))
        if step.number + 1 == ends[epoch]:
            logs = end_epoch()
        if model.stop_training:
            loop.stop()
    model.optimizer.finalize_variable_values(model.trainable_weights)
    calls.on_train_end(logs)
    loop.close()
    return model.history


class Job(ddl_elastic.Job):
    """A job that starts workers and needs no training loop; see ddl_elastic.Job.

    model  a function without arguments that returns a compiled model
    data   the data, as for `fit`
    """

    def __init__(
        self, model: Callable[[], keras.Model], data: Any, *, epochs: int = 1, **options: Any
    ) -> None:
        data = _as_dataset(data)
        unused: Any = None
        super().__init__(
            model=model, data=data, loss=unused, optimizer=unused, passes=epochs, **options
        )

    def train(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> Any:
        refuse_fork()
        return super().train(on_progress)

    def _make_framework(self) -> Framework:
        constants, data = self._constants, self._reading["data"]
        numbers = constants.batch, constants.logical, constants.seed
        return _make_adapter(self._model(), data, self._reading["collate"], *numbers)


def _as_dataset(data: Any) -> Any:
    return Arrays(*data) if isinstance(data, tuple) else data


def _make_adapter(
    model: Any, data: Any, collate: Any, batch: int, logical: int, seed: int
) -> KerasAdapter:
    return KerasAdapter(
        model, read_example(data, batch, logical, seed, flat.seed, collate or flat.stack)
    )


def preload() -> None:
    """Do nothing: importing keras loads all that training needs."""
