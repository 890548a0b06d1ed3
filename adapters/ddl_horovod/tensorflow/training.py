# SPDX-License-Identifier: Apache-2.0
"""Gradient tapes and TensorFlow 1 optimizers that combine the gradients of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ddl_horovod.common import Adasum, Average, PackedCompressor, Reduction, Sum, is_packed
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.operations import grouped_allreduce, packed_allreduce
from ddl_horovod.tensorflow.world import global_process_set
from ddl_horovod.world import ProcessSet

_as_it_is = tf.autograph.experimental.do_not_convert  # the functions here need no AutoGraph


class Reducer:
    """A reducer that combines the gradients of variables, except the rank's local variables."""

    def __init__(
        self,
        compression: Any,
        sparse_as_dense: bool,
        op: Reduction,
        gradient_predivide_factor: float,
        num_groups: int,
        groups: Any,
        process_set: ProcessSet,
        scale_local_gradients: bool,
    ) -> None:
        if op not in (Average, Sum, Adasum):
            raise ValueError(f"op is {op}; must be one of Average, Sum, Adasum")
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor is set, but op is not Average")
        if num_groups:
            warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=3)
        if groups is not None and not isinstance(groups, list) and groups <= 0:
            raise ValueError(f"groups is {groups!r}; must be a list or a positive number")
        self.process_set = process_set
        self._compression, self._sparse_as_dense, self._op = compression, sparse_as_dense, op
        self.wire: str | None = None
        if is_packed(compression, op, gradient_predivide_factor):
            self._compression, self.wire = Compression.none, compression.wire
        self._predivide, self._scales_local = gradient_predivide_factor, scale_local_gradients
        self._local: set[Any] = set()

    def register_local(self, variable: Any) -> None:
        """Make a variable local: do not combine its gradients. They are divided by the number of
        members if scale_local_gradients is set."""
        self._local.add(_key(variable))

    def check_copy(self) -> None:
        """Raise ValueError if there are local variables, because the registration does not carry
        over to the variables of a copy."""
        if self._local:
            raise ValueError(
                f"the optimizer has {len(self._local)} local variables, so it cannot be copied:"
                " create another DistributedOptimizer"
            )

    def __getstate__(self) -> dict[str, Any]:
        self.check_copy()
        return vars(self)

    def is_local(self, variable: Any) -> bool:
        """Return True if the variable was registered as local."""
        return _key(variable) in self._local

    def to_pack(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients to combine in the wire format, and None for the others."""
        if self.wire is None or not self.process_set.included():
            return [None] * len(gradients)
        return [
            None
            if gradient is None or self.is_local(variable)
            else (tf.convert_to_tensor(gradient) if self._sparse_as_dense else gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]

    def reduce_flat(self, flat: tf.Tensor, residual: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Combine flat tensors in the wire format. Return the result and the new residual."""
        assert self.wire is not None
        result, lost = packed_allreduce(flat, residual, self._op, self.wire, self.process_set)
        return result, lost

    @_as_it_is
    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the combined gradients of the variables; None for a variable without one."""
        results = list(gradients)
        sent = {}
        for number, (gradient, variable) in enumerate(zip(results, variables, strict=True)):
            if gradient is None:
                continue
            if self.is_local(variable):
                results[number] = self._divided(gradient) if self._scales_local else gradient
            elif self._sparse_as_dense or self._op == Adasum:
                sent[number] = tf.convert_to_tensor(gradient)
            else:
                sent[number] = gradient
        dense = {n: each for n, each in sent.items() if not isinstance(each, tf.IndexedSlices)}
        for chosen in (dense, {n: each for n, each in sent.items() if n not in dense}):
            for number, reduced in zip(chosen, self._combined(list(chosen.values())), strict=True):
                results[number] = reduced
        return results

    def _combined(self, gradients: list[Any]) -> list[Any]:
        if not gradients or not self.process_set.included():  # other ranks train alone
            return gradients
        options = {"compression": self._compression, "process_set": self.process_set}
        if not isinstance(gradients[0], tf.IndexedSlices):
            options |= {"prescale_factor": 1 / self._predivide, "postscale_factor": self._predivide}
        return grouped_allreduce(gradients, op=self._op, **options)

    def _divided(self, gradient: Any) -> Any:
        members = self.process_set.size()
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / members
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / members


class _Tape:
    """The methods that `DistributedGradientTape` adds to a tape."""

    _reducer: Reducer

    def register_local_source(self, source: Any) -> None:
        """Make a variable local: its gradients are not combined."""
        self._reducer.register_local(source)

    @_as_it_is
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> Any:
        """Call tf.GradientTape.gradient, and combine the members' gradients."""
        own = super().gradient(target, sources, output_gradients)  # type: ignore[misc]
        flat = tf.nest.flatten(sources)
        reduced = self._reducer.reduce(tf.nest.flatten(own), flat)
        return tf.nest.pack_sequence_as(own, reduced)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """Return (source, gradient) pairs: first of the local sources, then of the others."""
        gradients = self.gradient(target, sources, output_gradients)
        pairs = list(zip(sources, gradients, strict=True))
        local = [pair for pair in pairs if self._reducer.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._reducer.is_local(pair[0])]


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Reduction = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make the tape's `gradient` return the combined gradients of all members. Return the tape.

    compression                Compression.fp16 sends gradients in float16
    sparse_as_dense            make tf.IndexedSlices dense first
    op                         Average, Sum or Adasum
    gradient_predivide_factor  f: with Average, divide gradients by f before they are added, and by
                               size / f after
    num_groups, groups         checked but not used; all dense gradients are sent together
    scale_local_gradients      divide gradients of local sources by the number of members

    The devices are ignored. Raises ValueError for options that conflict.
    """
    _refuse_packing(compression)
    reducer = Reducer(
        *(compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups),
        *(process_set, scale_local_gradients),
    )
    _extend(gradtape, _Tape)
    tape: Any = gradtape
    tape._reducer = reducer
    return tape


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Reduction = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Call `DistributedGradientTape`, but keep the gradients of some layers local to each rank.

    local_layers  a Keras layer, or several
    """
    tape = DistributedGradientTape(
        *(gradtape, device_dense, device_sparse, compression, sparse_as_dense, op),
        *(gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients),
    )
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)
    return tape


def local_variables(layers: Any) -> list[Any]:
    """Return the trainable weights of one or several layers. Raises ValueError for other values."""
    given = [layers] if isinstance(layers, tf.keras.layers.Layer) else list(layers or ())
    if not all(isinstance(each, tf.keras.layers.Layer) for each in given):
        raise ValueError(f"local_layers: {layers!r} is neither a layer of Keras nor a list of them")
    return [variable for layer in given for variable in layer.trainable_weights]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Reduction = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer combine the gradients of all members, and return it.

    ddl_horovod.tensorflow.keras documents Keras optimizers. Optimizers of tf.compat.v1.train
    combine gradients in compute_gradients, and support only backward_passes_per_step=1. Other
    options are as in `DistributedGradientTape`.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if op == Adasum:
            raise ValueError("op is Adasum; must be Average or Sum for optimizers of Keras")
        from ddl_horovod.tensorflow import keras as of_keras

        reducing = (compression, sparse_as_dense, gradient_predivide_factor, op)
        accumulating = (backward_passes_per_step, average_aggregated_gradients)
        grouping: tuple[Any, ...] = (num_groups, groups, process_set, scale_local_gradients)
        every: tuple[Any, ...] = (name, device_dense, device_sparse, *reducing, *accumulating)
        return of_keras.DistributedOptimizer(optimizer, *every, *grouping)
    if backward_passes_per_step != 1:
        raise NotImplementedError(
            f"backward_passes_per_step is {backward_passes_per_step}; must be 1, except for"
            " optimizers of Keras"
        )
    _refuse_packing(compression)
    reducer = Reducer(
        *(compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups),
        *(process_set, scale_local_gradients),
    )
    _extend(optimizer, _Optimizer)
    optimizer._reducer = reducer
    return optimizer


def _refuse_packing(compression: Any) -> None:
    if isinstance(compression, type) and issubclass(compression, PackedCompressor):
        raise ValueError(
            f"compression is Compression.{compression.wire}, which needs a Keras optimizer, whose"
            " variables keep the rounding errors: use the DistributedOptimizer of one,"
            " ddl_tensorflow.DistributedGradientTape with a residual, or fp16"
        )


class _Optimizer:
    """The methods that `DistributedOptimizer` adds to a TensorFlow 1 optimizer."""

    _reducer: Reducer

    def register_local_var(self, var: Any) -> None:
        """Make a variable local: its gradients are not combined."""
        self._reducer.register_local(var)

    def compute_gradients(self, *arguments: Any, **options: Any) -> list[Any]:
        """Return pairs of a combined gradient and its variable."""
        pairs = super().compute_gradients(*arguments, **options)  # type: ignore[misc]
        gradients, variables = zip(*pairs, strict=True)
        return list(zip(self._reducer.reduce(gradients, variables), variables, strict=True))


def _extend(value: Any, more: type) -> None:
    """Add the methods of `more` to an object's class, unless it has them already."""
    kind = type(value)
    if not issubclass(kind, more):
        value.__class__ = type(kind.__name__, (more, kind), {"__module__": kind.__module__})


def _key(variable: Any) -> Any:
    """Return a key that is equal for a Keras variable and the TensorFlow variable that it wraps."""
    held = getattr(variable, "value", variable)
    return (held if hasattr(held, "ref") else variable).ref()
