# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit on many ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from ddl_horovod.tensorflow import functions, operations
from ddl_horovod.tensorflow.world import rank, size
from ddl_keras.packing import shared_variables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """A callback that broadcasts the root's model and optimizer to all ranks after the first batch.

    local_variables  a variable that each rank keeps, or several; device is ignored
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        given = local_variables if isinstance(local_variables, (list, tuple, set)) else None
        self._local: set[int] = set()
        for each in given if given is not None else [local_variables]:
            if each is not None:
                self.register_local_var(each)

    def register_local_var(self, var: Any) -> None:
        """Exclude a variable from the broadcast. Raises ValueError if `var` is not a variable."""
        if not hasattr(var, "assign"):
            raise ValueError(f"local_variables contains {var!r}; must contain only variables")
        self._local.add(_identity(var))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast the variables after the first batch."""
        if self.broadcast_done:
            return
        optimizer = getattr(self.model, "optimizer", None)
        variables = [*self.model.variables, *(shared_variables(optimizer) if optimizer else [])]
        moved = [each for each in variables if _identity(each) not in self._local]
        functions.broadcast_variables(moved, self.root_rank)
        self.broadcast_done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """A callback that averages each epoch's metrics over the ranks. Put it before the callbacks
    that read them. device is ignored."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the metrics in `logs` over the ranks."""
        for name, value in sorted((logs or {}).items()):
            assert logs is not None
            logs[name] = operations.allreduce(keras.ops.convert_to_tensor(value)).numpy()


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """A callback that sets the learning rate to initial_lr times multiplier.

    multiplier           a function of the epoch; or a number m, for m ** (epoch - start_epoch)
    start_epoch          the first epoch in which the rate is set
    end_epoch            the epoch from which the rate is no longer set; None for no end
    staircase            set the rate once an epoch, not for each batch by fractions of epochs
    momentum_correction  multiply the optimizer's momenta by the same factor as the rate
    steps_per_epoch      batches per epoch; None takes the number from model.fit
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is required")
        self.initial_lr, self.staircase = initial_lr, staircase
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.steps_per_epoch, self.current_epoch = steps_per_epoch, 0
        self.momentum_correction = momentum_correction
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            base = multiplier
            self.multiplier = lambda epoch: base ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Determine the number of steps per epoch. Raises ValueError if it is unknown."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "steps_per_epoch is unknown: model.fit did not set it; pass it to this callback"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch's number."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate."""
        after = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or after:
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._set(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report the rate as the metric "lr"."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _set(self, epoch: float) -> None:
        optimizer, before = self.model.optimizer, self._rate()
        optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        if not (self.momentum_correction and getattr(optimizer, "momentum", False) and before):
            return
        # Horovod changes the momentum coefficient for one batch, but Keras 3 compiles it into the
        # step. Multiplying the momenta by the same ratio has the same effect.
        ratio = self._rate() / before
        for each in getattr(optimizer, "momentums", getattr(optimizer, "_momentums", ())):
            each.assign(each * ratio)

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """A callback that increases the learning rate batch by batch from initial_lr / size to
    initial_lr over warmup_epochs. With verbose=1, rank 0 prints when the warm-up is done."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.verbose = verbose

        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch
            done = (epoch + 1 / self.steps_per_epoch) / warmup_epochs
            return (done * (size() - 1) + 1) / size()

        super().__init__(
            *(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction),
            steps_per_epoch,
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print a message on rank 0 when the warm-up is done."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch + 1 == self.end_epoch and rank() == 0:
            print(f"\nEpoch {epoch + 1}: learning rate warmed up to {self._rate():g}")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """A callback that saves the best model to its attribute `filepath`. The program sets this
    attribute before training."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            *(f"none{ending}", monitor, verbose, True, save_weights_only, mode, save_freq)
        )
        self.filepath: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise ValueError if `filepath` is not set."""
        if self.filepath is None:
            raise ValueError("filepath: set this attribute of BestModelCheckpoint before training")
        super().on_train_begin(logs)


def _identity(variable: Any) -> int:
    """Return a key that is equal for a Keras variable and the TensorFlow variable that it wraps."""
    value = getattr(variable, "value", variable)
    return id(variable if callable(value) else value)
