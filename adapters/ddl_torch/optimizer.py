# SPDX-License-Identifier: Apache-2.0
"""Training with any optimizer on all ranks' gradients, without DistributedDataParallel."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ddl_torch.collectives import Work, allreduce_async, grouped_allreduce_async
from ddl_torch.world import adapter, group

if TYPE_CHECKING:
    from ddl_core.names import Compression, GradientOp

_hooks: Any = WeakTensorKeyDictionary()  # by parameter
_COMPRESSED = {None: None, "f16": torch.float16, "bf16": torch.bfloat16}


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    *,
    op: GradientOp = "average",
    backward_passes_per_step: int = 1,
    compression: Compression | None = None,
    bucket_bytes: int = 16 << 20,
) -> torch.optim.Optimizer:
    """Make the optimizer step on the gradients of all ranks, and return it.

        optimizer = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        ddl.broadcast_parameters(model)
        ...
        loss.backward()      # the gradients are reduced meanwhile
        optimizer.step()     # waits for them

    op           "average" or "sum" of the ranks' gradients
    backward_passes_per_step  number of backward() calls before each step(); the gradients add up as
                 usual, and are reduced once, in the last call
    compression  "f16" or "bf16": gradients of float32 and float64 are sent in that type, which
                 halves or quarters the bytes and costs precision
    bucket_bytes gradients are reduced in groups of about this size

    All ranks do this with the same parameters in the same order. Parameters may be added, or begin
    to require gradients, later. A parameter without a gradient on
    this rank counts as zero, since other ranks may have one. To change the gradients before the
    step, as clipping and GradScaler.unscale_() do, call optimizer.synchronize() first; step() then
    does not wait again, and may also be left out. The optimizer cannot be copied or pickled.

    Raises ddl_core.errors.InvalidArgument for arguments out of range, and later, from backward(),
    synchronize() and step(), InvalidState when they do not follow each other as said, and what
    `allreduce` raises.
    """
    adapter().check_gradients(op, compression)
    if backward_passes_per_step < 1:
        raise adapter().InvalidArgument(
            f"backward_passes_per_step: {backward_passes_per_step} is below 1"
        )
    if hasattr(optimizer, "synchronize"):
        raise adapter().InvalidArgument("optimizer: is a DistributedOptimizer already")
    group()  # InvalidState before init
    reducer = _Reducer(
        optimizer, op, backward_passes_per_step, _COMPRESSED[compression], bucket_bytes
    )
    optimizer.synchronize = reducer.synchronize  # type: ignore[attr-defined]
    optimizer.__getstate__ = refuse_copy  # type: ignore[method-assign]
    optimizer.register_step_pre_hook(reducer.before_step)
    optimizer.register_step_post_hook(reducer.after_step)
    return optimizer


def refuse_copy() -> NoReturn:
    """Raise TypeError: a copy of an optimizer has no hooks, so it would step on own gradients."""
    raise TypeError(
        "a DistributedOptimizer cannot be copied or pickled, since the copy would not reduce"
        " gradients: copy its state_dict(), and make another for the parameters of the copy"
    )


def call_with_gradients(parameter: Tensor, function: Callable[[Tensor], None]) -> None:
    """Call the function after each gradient of the parameter, in place of the function of an
    earlier optimizer, which would reduce the gradient as well."""
    if parameter in _hooks:
        _hooks[parameter].remove()
    _hooks[parameter] = parameter.register_post_accumulate_grad_hook(function)


def gradient(parameter: Tensor, sparse: dict[Tensor, int]) -> Tensor:
    """Return the gradient of a parameter. If there is none, make it zero, since other ranks may
    have one: sparse if it was so before on this rank.

    sparse  the number of sparse dimensions of the gradients that were sparse
    """
    if parameter.grad is None:
        zeros = torch.zeros_like(parameter)
        parameter.grad = zeros.to_sparse(sparse[parameter]) if parameter in sparse else zeros
    if parameter.grad.is_sparse:
        sparse[parameter] = parameter.grad.sparse_dim()
    return parameter.grad


class _Bucket:
    """Parameters whose gradients are reduced together."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self.passes = dict.fromkeys(parameters, 0)
        self.works: list[Work[Any]] = []
        self.compressed: list[tuple[Tensor, Tensor]] = []  # gradients, and what is sent for them

    def ready(self, passes: int) -> bool:
        return min(self.passes.values()) >= passes


class _Reducer:
    """Reduces gradients while backward() computes them. Buckets start in the same order on all
    ranks: each when it is complete and those before it have started."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        op: str,
        passes: int,
        compressed: torch.dtype | None,
        bucket_bytes: int,
    ) -> None:
        self._op = op
        self._passes = passes
        self._compressed = compressed
        self._bucket_bytes = bucket_bytes
        self._optimizer = weakref.ref(optimizer)
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[Tensor, _Bucket] = {}
        self._sparse: dict[Tensor, int] = {}
        self._started = 0  # buckets
        self._synchronized = False
        self._add_parameters()

    def _add_parameters(self) -> None:
        """Make buckets for the parameters that the optimizer did not have, or did not train."""
        new = [p for p in trained(self._optimizer()) if p not in self._bucket_of]
        for bucket in _buckets(new[::-1], self._bucket_bytes):  # backward() begins with the last
            self._buckets.append(bucket)
            for parameter in bucket.parameters:
                self._bucket_of[parameter] = bucket
                call_with_gradients(parameter, self._accumulated)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced."""
        self._add_parameters()
        while self._started < len(self._buckets):  # those with unused parameters
            self._start(self._buckets[self._started])
        for bucket in self._buckets:
            for work in bucket.works:
                work.wait()
            for own, sent in bucket.compressed:
                own.copy_(sent)
            bucket.works, bucket.compressed = [], []
            bucket.passes = dict.fromkeys(bucket.parameters, 0)
        self._started = 0
        self._synchronized = True

    def before_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if (len(arguments) > 1 and arguments[1] is not None) or options.get("closure") is not None:
            raise _state("step(closure) computes gradients itself, which would not be reduced")
        if not self._synchronized:
            self.synchronize()

    def after_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        # Not before: the step() of a derived class may call that of its base, with the same hooks.
        self._synchronized = False

    def _accumulated(self, parameter: Tensor) -> None:
        bucket = self._bucket_of[parameter]
        bucket.passes[parameter] += 1
        self._synchronized = False  # also if the step was left out
        if bucket.passes[parameter] > self._passes:
            raise _state(
                "backward() came before the step() for the gradients there are; to call it several"
                f" times, set backward_passes_per_step, which is {self._passes}"
            )
        while self._started < len(self._buckets):
            if not self._buckets[self._started].ready(self._passes):
                break
            self._start(self._buckets[self._started])

    def _start(self, bucket: _Bucket) -> None:
        self._started += 1
        dense: list[Tensor] = []
        for parameter in bucket.parameters:
            own = gradient(parameter, self._sparse)
            if own.is_sparse:
                work = dist.all_reduce(own, _sparse_op(self._op), group(), async_op=True)
                bucket.works.append(Work(work, own))
            elif self._compressed is None or own.dtype not in (torch.float32, torch.float64):
                dense.append(own.detach())  # after create_graph it requires grad itself
            else:
                sent = own.to(self._compressed)
                bucket.compressed.append((own, sent))
                dense.append(sent)
        if len(dense) == 1:
            bucket.works.append(allreduce_async(dense[0], self._op, out=dense[0]))
        elif dense:
            bucket.works.append(grouped_allreduce_async(dense, self._op, out=dense))


def trained(optimizer: Any) -> list[Tensor]:
    """Return the parameters that the optimizer trains now."""
    return [p for part in optimizer.param_groups for p in part["params"] if p.requires_grad]


def _buckets(parameters: list[Tensor], limit: int) -> Iterator[_Bucket]:
    part: list[Tensor] = []
    held = 0
    for parameter in parameters:
        part.append(parameter)
        held += parameter.numel() * parameter.element_size()
        if held >= limit:
            yield _Bucket(part)
            part, held = [], 0
    if part:
        yield _Bucket(part)


def _sparse_op(op: str) -> Any:
    return dist.ReduceOp.AVG if op == "average" else dist.ReduceOp.SUM


def _state(message: str) -> Exception:
    return adapter().InvalidState(message)
