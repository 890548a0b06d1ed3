# SPDX-License-Identifier: Apache-2.0
"""Distributed training with any Keras optimizer."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import keras

from ddl_core.adapter import check_gradients
from ddl_core.errors import InvalidArgument
from ddl_keras._adapter import adapter, among
from ddl_keras.copies import copied_by, saved_as_base
from ddl_keras.packing import (
    WIRES,
    add_residuals,
    reduce_packed,
    reducer,
    with_residuals,
)

if TYPE_CHECKING:
    from ddl_core.base.names import AnyCompression, GradientOp

_COMPRESSED = {None: None, "f16": "float16", "bf16": "bfloat16"}
_SETTINGS = "_ddl_settings"  # attribute of the class of a DistributedOptimizer
_OPTIMIZER = keras.optimizers.Optimizer
_SCALING = keras.optimizers.LossScaleOptimizer
# True while an optimizer applies gradients that are reduced already, so that optimizers to which it
# delegates do not reduce them again.
_is_reduced: ContextVar[bool] = ContextVar("_is_reduced", default=False)


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer | str,
    *,
    op: GradientOp = "average",
    compression: AnyCompression | None = None,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int | None = None,
    comm: Any = None,
) -> keras.optimizers.Optimizer:
    """Make the optimizer apply the gradients of all ranks, and return it.

        model.compile(ddl.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss)

    optimizer        any optimizer, including a LossScaleOptimizer, or its name. Under the global
                     dtype policy mixed_float16, any other optimizer is wrapped in a
                     LossScaleOptimizer, as Model.compile does; a custom training loop calls its
                     scale_loss
    op               "average" or "sum" of the ranks' gradients
    compression      "f16" or "bf16": gradients of float32 and float64 are sent in that type. "int8"
                     or "int4": dense gradients of float32 are sent between hosts in a quarter or an
                     eighth of the bytes, see docs/wire.md. The optimizer's variables then contain
                     this rank's rounding errors, which are added to the next gradients. Supported
                     neither with loss scaling and MultiOptimizer, nor on GPUs except on TensorFlow
    sparse_as_dense  for TensorFlow's IndexedSlices: see ddl_tensorflow.allreduce_gradients
    backward_passes_per_step  number of batches whose gradients are accumulated before the optimizer
                              applies their average; sets its gradient_accumulation_steps. With loss
                              scaling and in a MultiOptimizer, sets the inner optimizers' instead
    comm             a communicator of `split` or `subset`: the ranks whose gradients are applied;
                     None: all. Supported on TensorFlow and JAX

    All ranks do the same number of steps. Gradients are reduced as one group per step, before
    clipping. With accumulation, on TensorFlow and PyTorch, they are reduced only in the steps that
    apply them. With loss scaling, they are reduced for every batch, so that all ranks agree on
    which batches are finite. Only finite batches are accumulated, and count for
    backward_passes_per_step. With a MultiOptimizer, gradients are also reduced for every batch.

    Copies of the optimizer, made by copy, by pickle, or from its class and config, also reduce
    gradients. A saved model, or a config in a file, has the original optimizer, so it loads without
    libddl; `DistributedOptimizer(model.optimizer)` then continues from its state.

    Raises ddl_core.errors.InvalidArgument for arguments out of range, and InvalidState before init
    if compression is "int8" or "int4". The training function later raises the errors of the
    adapter's grouped_allreduce.
    """
    check_gradients(op, compression, WIRES)
    optimizer = keras.optimizers.get(optimizer)
    appliers = _appliers(optimizer)
    if any(hasattr(each, _SETTINGS) for each in (optimizer, *appliers)):
        raise InvalidArgument("optimizer is already a DistributedOptimizer")
    if compression in WIRES and (appliers != [optimizer] or _mixed_float16()):
        raise _unsupported(compression)
    if backward_passes_per_step is not None:
        _accumulate(appliers, backward_passes_per_step)
    if _mixed_float16() and not isinstance(optimizer, _SCALING):
        # Model.compile would do this, too, but here a custom training loop gets its scale_loss.
        optimizer = _SCALING(optimizer, name="loss_scale_optimizer")
    settings = {
        "op": op,
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "options": among(comm),
    }
    return _distribute(optimizer, settings)


def reduce_gradients(
    gradients: Sequence[Any],
    op: str,
    compression: str | None,
    sparse_as_dense: bool,
    options: Mapping[str, Any],
) -> list[Any]:
    """Return the combined gradients of all ranks, with None in place of missing gradients.

    compression  None, "f16" or "bf16"
    """
    if keras.backend.backend() == "tensorflow":  # it has sparse gradients
        reduced: list[Any] = adapter.allreduce_gradients(
            gradients,
            op=op,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            **options,
        )
        return reduced
    result = list(gradients)
    indices = [index for index, gradient in enumerate(result) if gradient is not None]
    dtype = _COMPRESSED[compression]
    sent = []
    for index in indices:
        gradient = result[index]
        narrowed = dtype and keras.backend.standardize_dtype(gradient.dtype) in (
            "float32",
            "float64",
        )
        sent.append(keras.ops.cast(gradient, dtype) if narrowed else gradient)
    together = adapter.grouped_allreduce(sent, op, **options)
    for index, reduced in zip(indices, together, strict=True):
        result[index] = keras.ops.cast(reduced, result[index].dtype)
    return result


def _appliers(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that accumulate and apply gradients: the inner optimizers if this one
    delegates to them, else this one."""
    if isinstance(optimizer, _SCALING):
        return _appliers(optimizer.inner_optimizer)
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return list(optimizer.optimizers)
    return [optimizer]


def _unsupported(compression: str) -> InvalidArgument:
    return InvalidArgument(
        f"compression is {compression}, which supports neither loss scaling nor a MultiOptimizer;"
        " use bf16"
    )


def _mixed_float16() -> bool:
    return bool(keras.config.dtype_policy().name == "mixed_float16")


def _accumulate(optimizers: Sequence[keras.optimizers.Optimizer], passes: int) -> None:
    if passes < 1:
        raise InvalidArgument(f"backward_passes_per_step is {passes}; must be at least 1")
    if not optimizers:
        raise InvalidArgument(
            "backward_passes_per_step: the MultiOptimizer's function creates its optimizers later;"
            f" create them with gradient_accumulation_steps={passes} there"
        )
    for optimizer in optimizers:
        if optimizer.built:
            raise InvalidArgument(
                "backward_passes_per_step cannot be set: the optimizer is already built"
            )
        if optimizer.gradient_accumulation_steps not in (None, passes):
            raise InvalidArgument(
                f"backward_passes_per_step is {passes}, but the optimizer's"
                f" gradient_accumulation_steps is {optimizer.gradient_accumulation_steps}"
            )
        optimizer.gradient_accumulation_steps = passes if passes > 1 else None


def _distribute(
    optimizer: keras.optimizers.Optimizer, settings: Mapping[str, Any]
) -> keras.optimizers.Optimizer:
    """Make the optimizer reduce gradients. It keeps its state, since only its class changes."""
    optimizer.__class__ = _distributed(type(optimizer), settings)
    if settings["compression"] in WIRES and optimizer.built:
        add_residuals(optimizer)
    return optimizer


def _ranks(options: Mapping[str, Any]) -> tuple[int, int]:
    """Return this rank and the number of ranks."""
    comm = options.get("comm")
    return (adapter.rank(), adapter.size()) if comm is None else (comm.rank, comm.size)


@contextmanager
def _once(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any] | None
) -> Iterator[Sequence[Any]]:
    """Yield the reduced gradients. They are not reduced again if the optimizer that delegates to
    this one has reduced them."""
    if _is_reduced.get():
        yield gradients
        return
    gradients = _reduced(optimizer, gradients, variables)
    token = _is_reduced.set(True)
    try:
        yield gradients
    finally:
        _is_reduced.reset(token)


def _reduced(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any] | None
) -> Sequence[Any]:
    settings = dict(getattr(optimizer, _SETTINGS))
    wire = settings["compression"]
    if wire not in WIRES:
        return reduce_gradients(gradients, **settings)
    if settings["sparse_as_dense"]:
        gradients = [each if each is None else _dense(each) for each in gradients]
    if variables is None:
        variables = optimizer._trainable_variables
    elif not optimizer.built:
        optimizer.build(list(variables))
    reduce = reducer(settings["op"], wire, **settings["options"])
    packed = reduce_packed(optimizer, gradients, variables, reduce)
    others = [None if number in packed else each for number, each in enumerate(gradients)]
    result = reduce_gradients(others, **{**settings, "compression": None})
    for number, each in packed.items():
        result[number] = each
    return result


def _dense(gradient: Any) -> Any:
    return keras.ops.convert_to_tensor(gradient, sparse=False)


def _distributed(base: Any, settings: Mapping[str, Any]) -> type:
    """Return a subclass of `base` that reduces gradients."""
    # Only Keras' own way of applying gradients calls `_clip_gradients` with the accumulated ones.
    by_keras = all(
        getattr(base, name) is getattr(_OPTIMIZER, name)
        for name in ("apply", "_backend_apply_gradients")
    )

    if settings["compression"] in WIRES:
        base = with_residuals(base, *_ranks(settings["options"]))

    class Distributed(base):
        _ddl_settings = settings
        _ddl_applied: Sequence[Any] | None = None  # the variables of the accumulated gradients

        def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
            if by_keras and self.gradient_accumulation_steps:
                super().apply(grads, trainable_variables)
                return
            # Reduced first, so that all ranks see the same infinities (loss scaling), norms
            # (clipping) and weights.
            with _once(self, grads, trainable_variables) as grads:
                super().apply(grads, trainable_variables)

        def stateless_apply(self, optimizer_variables: Any, grads: Any, variables: Any) -> Any:
            # Loss scaling on JAX does not call `apply`.
            if base.stateless_apply is _OPTIMIZER.stateless_apply:
                return super().stateless_apply(optimizer_variables, grads, variables)
            with _once(self, grads, None) as grads:
                return super().stateless_apply(optimizer_variables, grads, variables)

        def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Any) -> None:
            object.__setattr__(self, "_ddl_applied", list(trainable_variables))
            super()._backend_apply_gradients(grads, trainable_variables)

        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            # This is the first step that has accumulated gradients.
            if by_keras and self.gradient_accumulation_steps:
                with _once(self, grads, self._ddl_applied) as grads:
                    return super()._clip_gradients(grads)
            return super()._clip_gradients(grads)

        def __reduce__(self) -> tuple[Any, ...]:
            return copied_by(super().__reduce__(), _distribute, settings)

    return saved_as_base(Distributed)


def _scale(initialize: Any) -> Any:
    """Return an `__init__` of LossScaleOptimizer that makes the optimizer reduce the gradients if
    its inner optimizer is a DistributedOptimizer.

    Model.compile creates a LossScaleOptimizer for a model of dtype mixed_float16. It checks for
    infinities before it calls its inner optimizer, and would skip steps in which other ranks wait.
    """

    @functools.wraps(initialize)
    def initialized(self: Any, inner_optimizer: Any, *arguments: Any, **options: Any) -> None:
        initialize(self, inner_optimizer, *arguments, **options)
        settings = getattr(inner_optimizer, _SETTINGS, None)
        if settings and not hasattr(self, _SETTINGS):
            if settings["compression"] in WIRES:
                raise _unsupported(settings["compression"])
            _distribute(self, settings)

    return initialized


_SCALING.__init__ = _scale(_SCALING.__init__)
