# SPDX-License-Identifier: Apache-2.0
"""Gradients that are sent between hosts in a wire format of fewer bytes, with error feedback."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ddl_torch.parts import ddl_backend
from ddl_torch.world import adapter

if TYPE_CHECKING:
    from ddl_torch.sharded_packing import ShardedGradientCompression

WIRES = ("int8", "int4")


class Residuals:
    """The rounding errors of the parameters' gradients, which are added to the next gradients.
    Gradients that are reduced together have one contiguous residual. When the parameters are
    grouped in another way, as DistributedDataParallel does after its first step, it is created
    again from the parameters' residuals.
    """

    def __init__(self, group: Any) -> None:
        self._rank, self._size = group.rank(), group.size()
        self.clear()

    def clear(self) -> None:
        """Set all residuals to zero."""
        self._flat: dict[tuple[tuple[int, int], ...], Tensor] = {}
        self._of: Any = WeakTensorKeyDictionary()  # by parameter, its part of a flat residual

    def flat(self, parameters: Sequence[Tensor]) -> Tensor:
        """Return the residual of the flattened gradients of these parameters, in this order."""
        key = tuple((id(each), each.numel()) for each in parameters)
        if key not in self._flat:
            flat = torch.cat([self._part(each) for each in parameters])
            moved = set(key)
            self._flat = {k: v for k, v in self._flat.items() if moved.isdisjoint(k)}
            self._flat[key] = flat
            parts = flat.split([each.numel() for each in parameters])
            for each, part in zip(parameters, parts, strict=True):
                self._of[each] = part
        return self._flat[key]

    def _part(self, parameter: Tensor) -> Tensor:
        known: Tensor | None = self._of.get(parameter)
        return torch.zeros(parameter.numel()) if known is None else known

    def state_dict(self, parameters: Mapping[Any, Tensor]) -> dict[str, Any]:
        """Return copies of this rank's residuals, by the keys of the parameters."""
        parts = {key: self._of.get(each) for key, each in parameters.items()}
        kept = {key: part.clone() for key, part in parts.items() if part is not None}
        return {"rank": self._rank, "size": self._size, "residuals": kept}

    def load_state_dict(self, parameters: Mapping[Any, Tensor], state: Mapping[str, Any]) -> None:
        """Continue with the residuals that `state_dict` has returned on this rank. If another rank
        saved them, or there were more or fewer ranks, warn and begin with zeros."""
        self.clear()
        if not is_of_rank(state, self._rank, self._size):
            return
        for key, saved in state["residuals"].items():
            if key not in parameters:
                raise adapter().InvalidArgument(
                    f"there is a residual of {key!r}, which is no parameter: load the state of this"
                    " model"
                )
            if saved.numel() != parameters[key].numel():
                raise adapter().InvalidArgument(
                    f"the residual of {key!r} has {saved.numel()} elements; must have"
                    f" {parameters[key].numel()}, as many as the parameter"
                )
            self._of[parameters[key]] = saved.to(torch.float32, copy=True).flatten()


def is_of_rank(state: Mapping[str, Any], rank: int, size: int) -> bool:
    """Return True if this rank saved the state. Otherwise warn."""
    if (state["rank"], state["size"]) == (rank, size):
        return True
    warnings.warn(
        f"the residuals were saved by rank {state['rank']} of {state['size']}, and this is rank"
        f" {rank} of {size}: they begin with zeros, as in a new run. Save and load a file for each"
        " rank",
        RuntimeWarning,
        stacklevel=4,
    )
    return False


def require_host(compression: str, parameters: Sequence[Tensor]) -> None:
    """Raise InvalidArgument if a parameter of float32 is not in CPU memory."""
    for each in parameters:
        if each.dtype == torch.float32 and each.device.type != "cpu":
            raise adapter().InvalidArgument(
                f"compression is {compression}, but a parameter is on {each.device}: only gradients"
                " in CPU memory are packed; use bf16"
            )


def start(
    group: Any,
    tensor: Tensor,
    residual: Tensor,
    op: str,
    wire: str,
    output: Tensor | None = None,
) -> Any:
    """Start to reduce a contiguous tensor of float32 in this wire format, in place, or with its
    scattered sum in `output`. Return c10d's work."""
    from ddl_core.base.config import wire_number
    from ddl_core.calls.arguments import op_value

    backend = ddl_backend(group)
    how: tuple[Any, ...] = op_value(op), wire_number(wire)
    if isinstance(backend, dist.ProcessGroup):  # the fallback in Python
        how = op, wire
    if output is None:
        return backend.allreduce_packed(tensor, residual, *how)
    return backend.reduce_scatter_packed(tensor, output, residual, *how)


def allreduce_flat(flat: Tensor, residual: Tensor, op: str, wire: str) -> tuple[Tensor, Tensor]:
    """Reduce a flat tensor of float32 of all ranks in this wire format. Return the result and the
    new residual, in the same memory. Raises InvalidArgument for a tensor on a GPU."""
    require_host(wire, [flat])
    start(None, flat, residual, op, wire).wait()
    return flat, residual


class GradientCompression:
    """The state of a DistributedDataParallel whose gradients `compress_gradients` packs."""

    def __init__(self, model: Any, compression: str) -> None:
        self._model, self._wire = model, compression
        self._group = model.process_group
        self._residuals = Residuals(self._group)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, with a tensor for each parameter. Each rank saves its own."""
        return self._residuals.state_dict(dict(self._model.module.named_parameters()))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a state of `state_dict`, of the same rank. Warns and begins with zeros if
        another rank saved it, or there were more or fewer ranks. Raises InvalidArgument for another
        model."""
        self._residuals.load_state_dict(dict(self._model.module.named_parameters()), state)

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Start to average the gradients of a bucket."""
        gradients = bucket.buffer()
        if gradients.dtype == torch.float32:
            residual = self._residuals.flat(bucket.parameters())
            work = start(self._group, gradients, residual, "average", self._wire)
        else:
            work = dist.all_reduce(gradients, dist.ReduceOp.AVG, self._group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


def compress_gradients(
    model: Any, compression: Literal["int8", "int4"]
) -> GradientCompression | ShardedGradientCompression:
    """Send the gradients of a DistributedDataParallel, or of a model of fully_shard, between hosts
    in a quarter or an eighth of the bytes.

        model = DistributedDataParallel(model)
        compression = ddl_torch.compress_gradients(model, "int8")

    compression  "int8" or "int4": the wire format of gradients of float32, see docs/wire.md. Other
                 gradients are sent as they are

    Rounding errors are added to the next step's gradients. They are part of the training's state:
    save `compression.state_dict()` on each rank. With fully_shard, they take as many bytes on each
    rank as all parameters. Call this on all ranks, once, before the first step and after
    fully_shard. Raises
      ddl_core.errors.InvalidArgument  for another compression, or parameters on a GPU
      TypeError   if the model is neither a DistributedDataParallel nor an FSDPModule
      ValueError  if its process group is not one of ddl; with fully_shard, in backward()
    """
    if compression not in WIRES:
        raise adapter().InvalidArgument(
            f"compression is {compression!r}; must be one of {', '.join(WIRES)}. For fp16,"
            " register PyTorch's fp16_compress_hook; for bf16, set DDL_WIRE=bf16"
        )
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        from torch.distributed.fsdp import FSDPModule

        if isinstance(model, FSDPModule):
            from ddl_torch.sharded_packing import ShardedGradientCompression

            require_host(compression, list(model.parameters()))
            return ShardedGradientCompression(model, compression)
        raise TypeError(
            f"model has type {type(model).__name__}; must be a DistributedDataParallel, or a model"
            " to which fully_shard was applied"
        )
    ddl_backend(model.process_group)
    require_host(compression, list(model.parameters()))
    state = GradientCompression(model, compression)
    model._ddl_wire = compression  # for the line of hints.py
    # Without annotations, which DistributedDataParallel would compare as texts.
    model.register_comm_hook(state, lambda own, bucket: own.reduce(bucket))
    return state
