# SPDX-License-Identifier: Apache-2.0
"""The Keras adapter of ddl_elastic: shares and updates of a compiled model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ddl_elastic.frameworks import flat, protocol
from ddl_elastic.frameworks.buffers import Buffers
from ddl_elastic.frameworks.flat import Flat, Spec, Values
from ddl_keras.batch_norm import SyncBatchNormalization
from ddl_keras.elastic import pins
from ddl_keras.elastic.backends import make_functions


class KerasAdapter(Flat):
    """The Keras adapter; implements ddl_elastic.frameworks.protocol.Framework.

    A share starts with the committed variables, empty metrics, and seed generators seeded for this
    share. The shares' changes of variables such as batch norm's statistics are averaged. Their
    changes of metrics are added, so metrics cover all shares since `reset_metrics`.

    example  a batch with the shapes that every share has
    """

    seed = staticmethod(pins.seed)

    def __init__(self, model: keras.Model, example: Any) -> None:
        _refuse(model)
        self.model = model
        model._symbolic_build(data_batch=example)
        self._compute, self._update = make_functions(model)
        self._trained, self._settings = _trained(model), _settings(model.optimizer)
        others = model.non_trainable_variables
        self._seeds = [each for each in others if each.name == "seed_generator_state"]
        buffers = [each for each in others if each.name != "seed_generator_state"]
        self._buffers = Buffers(lambda: _read(buffers), lambda values: _write(buffers, values))
        model.reset_metrics()
        self._metrics = list(model.metrics_variables)
        self.unseen = _read(self._metrics)
        self.reset_metrics()
        averaged = [*model.trainable_variables, *buffers]
        specs = [Spec(tuple(each.shape), np.dtype(each.dtype), name=each.path) for each in averaged]
        specs += [Spec(each.shape, each.dtype, "sum") for each in self.unseen]
        self.lay_out(specs)

    def reset_metrics(self) -> None:
        """Reset all metrics."""
        self.totals = [each.copy() for each in self.unseen]
        self.write_metrics(self.totals)

    def keep_last_metrics(self) -> None:
        """Reset the metrics to the values of the last step. A worker that joined or resumed in this
        step has loaded a state from before the reset."""
        self.totals = [*map(np.add, self.unseen, self._added)]
        self.write_metrics(self.totals)

    def write_metrics(self, values: Sequence[Values]) -> None:
        """Set the variables of all metrics."""
        _write(self._metrics, values)

    def environment(self) -> dict[str, str]:
        return pins.describe(self.model)

    # ---- a share ----

    def begin(self, worker: int) -> None:
        self._buffers.begin()
        self.write_metrics(self.unseen)
        self._seed()

    def _seed(self) -> None:
        """Seed the share's generators from Python's generator, which the caller has seeded for this
        step and worker."""
        for each in self._seeds:
            each.assign(np.array([random.getrandbits(31), 0]))

    def run(self, batch: Any, ready: protocol.Ready | None = None) -> protocol.Share:
        flat.check_trained(self._trained, _trained(self.model))
        found, logs = self._compute(batch)
        gradients = [*map(self._gradient, self.model.trainable_variables, found)]
        metrics = map(np.subtract, _read(self._metrics), self.unseen)
        return self.take(
            [*gradients, *self._buffers.changes(), *metrics], logs.get("loss", float("nan"))
        )

    def _gradient(self, variable: Any, gradient: Any) -> Values:
        if gradient is None:
            raise ValueError(
                f"the loss does not depend on {variable.path}; set trainable=False for its layer"
            )
        found: Values = keras.ops.convert_to_numpy(gradient)
        return found

    def backward(
        self, loss: Any, ready: protocol.Ready | None = None, weight: Any = 1.0
    ) -> protocol.Share:
        raise NotImplementedError(
            "Keras jobs have no step.backward: the model's train_step computes the gradients"
        )

    # ---- the result ----

    def apply(self) -> None:
        flat.check_trained(self._trained, _trained(self.model))
        _check_settings(self._settings, _settings(self.model.optimizer))
        found = self.results()
        count = len(self.model.trainable_variables)
        self._gradients, found = found[:count], found[count:]
        count = len(found) - len(self.totals)
        self._buffers.commit(found[:count])
        self._added = found[count:]
        self.totals = [*map(np.add, self.totals, self._added)]
        self.write_metrics(self.totals)
        self._seed()

    def update(self) -> None:
        self._update(self._gradients)

    # ---- for the search for hidden state, see ddl_elastic/hidden/ ----

    def held(self) -> list[Any]:
        """Return the parts of the job's state."""
        return [self.model.optimizer, *self._named().values(), *self._metrics]

    @property
    def walked(self) -> list[Any]:
        """The layers of the program's own classes, which may have hidden state."""
        layers = [self.model, *self.model._flatten_layers()]
        return [each for each in layers if not type(each).__module__.startswith("keras.")]

    # ---- the state ----

    def state(self) -> protocol.State:
        values = {name: keras.ops.convert_to_numpy(each) for name, each in self._named().items()}
        totals = {f"metric.{number}": each for number, each in enumerate(self.totals)}
        return self.add_loss(flat.pack({**values, **totals}))

    def load(self, state: protocol.State) -> None:
        named = self._named()
        like = {name: keras.ops.convert_to_numpy(each) for name, each in named.items()}
        totals = {f"metric.{number}": each for number, each in enumerate(self.totals)}
        found = flat.unpack(state, {**like, **totals})
        self.load_loss(state)
        _write(list(named.values()), [found[name] for name in named])
        self._buffers.forget()
        self.totals = [found[name].copy() for name in totals]
        self.write_metrics(self.totals)

    def _named(self) -> dict[str, Any]:
        """Return the variables by names that contain their numbers. The layers' own names are not
        enough, because a second model in the process gives its layers other names."""
        groups = {"model": self.model.variables, "optimizer": self.model.optimizer.variables}
        return {
            f"{kind}.{number}.{each.name}": each
            for kind, group in groups.items()
            for number, each in enumerate(group)
        }


def _trained(model: Any) -> dict[int, str]:
    return {id(each): each.path for each in model.trainable_variables}


def _settings(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's settings that are not variables, and so are not in the state."""
    plain = (bool, int, float, str, type(None))
    config = optimizer.get_config().items()
    return {k: v for k, v in config if isinstance(v, plain) and k != "learning_rate"}


def _check_settings(before: dict[str, Any], now: dict[str, Any]) -> None:
    for name in before.keys() | now.keys():
        if before.get(name) != now.get(name):
            raise RuntimeError(
                f"the optimizer's {name} was {before.get(name)} when the job began, but is now"
                f" {now.get(name)}: workers that join do not have it. Set it before the job, and"
                " start a new job"
            )


def _read(variables: Sequence[Any]) -> list[Values]:
    return [np.array(keras.ops.convert_to_numpy(each)) for each in variables]


def _write(variables: Sequence[Any], values: Sequence[Values]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _refuse(model: Any) -> None:
    """Raise ValueError or TypeError for a model that elastic training does not support."""
    if getattr(model, "optimizer", None) is None:
        raise ValueError("model has no optimizer: call model.compile first")
    for layer in model._flatten_layers():
        is_ours = isinstance(layer, SyncBatchNormalization)
        if is_ours or getattr(layer, "synchronized", False):
            raise TypeError(
                f"{layer.name} normalizes by all processes' batches: its statistics would depend on"
                " their number. Use BatchNormalization: elastic training averages its statistics"
                " over the logical workers"
            )
