# SPDX-License-Identifier: Apache-2.0
"""Optimizers that apply the gradients of all ranks, without DistributedDataParallel."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.utils.weak import WeakTensorKeyDictionary

from ddl_torch.collectives import Work
from ddl_torch.packing import WIRES, Residuals, require_host, start
from ddl_torch.world import adapter, private_group

if TYPE_CHECKING:
    from ddl_core.base.names import AnyCompression, GradientOp

_hooks: Any = WeakTensorKeyDictionary()  # by parameter
_COMPRESSED = {"f16": torch.float16, "bf16": torch.bfloat16}
RESIDUALS = "ddl_residuals"  # in the state_dict of an optimizer with residuals
FROZEN = (
    "backward() gave a gradient to a parameter that was frozen after the forward pass; freeze"
    " parameters before it"
)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    *,
    op: GradientOp = "average",
    backward_passes_per_step: int = 1,
    compression: AnyCompression | None = None,
    bucket_bytes: int = 16 << 20,
) -> torch.optim.Optimizer:
    """Make the optimizer apply the combined gradients of all ranks, and return it.

        optimizer = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        ddl.broadcast_parameters(model)
        ...
        loss.backward()      # starts to reduce the gradients
        optimizer.step()     # waits for them

    op            "average" or "sum" of the ranks' gradients
    backward_passes_per_step  the number of backward() calls before each step(); the gradients add
                  up as usual, and are reduced once, in the last call
    compression   "f16" or "bf16" sends float32 and float64 gradients in this type, which halves or
                  quarters the bytes and costs precision. "int8" or "int4" sends float32 gradients
                  in CPU memory between hosts in a quarter or an eighth of the bytes, see
                  docs/wire.md. state_dict() then contains this rank's rounding errors, which are
                  added to the next gradients: save and load it on each rank
    bucket_bytes  the approximate size of the groups in which gradients are reduced

    All ranks call this with the same parameters in the same order. They wait for each other to
    create the optimizer's own process group. So ranks may compute gradients, and call other
    operations in backward() and before step(), in different orders. Between steps, parameters may
    be added, frozen (by requires_grad) and unfrozen, if all ranks do so. Frozen parameters are
    ignored. If another parameter has no gradient, it counts as zero, because other ranks may have a
    gradient. To change the gradients before the step, for example by clipping or
    GradScaler.unscale_(), call optimizer.synchronize() first. step() then does not wait again, and
    may be skipped. The optimizer cannot be copied or pickled.

    Raises ddl_core.errors.InvalidArgument for arguments out of range, and InvalidState before init
    or if ranks train different parameters. Later, backward(), synchronize() and step() raise
    InvalidState if called in a wrong order, and the errors of `allreduce`.
    """
    adapter().check_gradients(op, compression, WIRES)
    if backward_passes_per_step < 1:
        raise adapter().InvalidArgument(
            f"backward_passes_per_step is {backward_passes_per_step}; must be at least 1"
        )
    if hasattr(optimizer, "synchronize"):
        raise adapter().InvalidArgument("optimizer is already a DistributedOptimizer")
    reducer = _Reducer(optimizer, op, backward_passes_per_step, compression, bucket_bytes)
    optimizer.synchronize = reducer.synchronize
    optimizer.__getstate__ = refuse_copy
    optimizer.register_step_pre_hook(reducer.before_step)
    optimizer.register_step_post_hook(reducer.after_step)
    return optimizer


def refuse_copy() -> NoReturn:
    """Raise TypeError: a copy has no hooks, so it would apply only this rank's gradients."""
    raise TypeError(
        "a DistributedOptimizer cannot be copied or pickled, because the copy would not reduce"
        " gradients: copy its state_dict(), and create another for the copied parameters"
    )


def call_with_gradients(parameter: Tensor, function: Callable[[Tensor], None]) -> None:
    """Call a function after each gradient of a parameter. It replaces the function of an earlier
    optimizer, which would reduce the gradient a second time."""
    if parameter in _hooks:
        _hooks[parameter].remove()
    _hooks[parameter] = parameter.register_post_accumulate_grad_hook(function)


def gradient(parameter: Tensor, sparse: dict[Tensor, int]) -> Tensor:
    """Return the gradient of a parameter. If it is None, set it to zeros, because other ranks may
    have a gradient. The zeros are sparse if an earlier gradient of the parameter was.

    sparse  by parameter, the number of sparse dimensions of its last sparse gradient
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
        self.compressed: list[tuple[Tensor, Tensor]] = []  # gradients and their compressed copies
        self.sparse: list[Tensor] = []  # the sparse gradients

    def ready(self, passes: int) -> bool:
        return min(self.passes.values()) >= passes


class _Reducer:
    """A reducer that combines gradients while backward() computes them.

    Buckets start in the same order on all ranks: each when it is complete and the previous ones
    have started. The time differs between ranks, because a rank may not use all parameters. So the
    optimizer has its own process group, in which no other operations run.

    A rank whose parameters were frozen or unfrozen since the last step starts an all-gather of its
    list of them at the first gradient. It starts no bucket until it knows that all ranks agree. If
    they do not agree, the ranks call different operations, which libddl reports. Each rank first
    stores its list in the store, so that the error can name the parameter.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        op: str,
        passes: int,
        compression: str | None,
        bucket_bytes: int,
    ) -> None:
        self._name = op
        self._op = dist.ReduceOp.AVG if op == "average" else dist.ReduceOp.SUM
        self._passes = passes
        self._compressed = _COMPRESSED.get(compression or "")
        self._wire = compression if compression in WIRES else None
        self._bucket_bytes = bucket_bytes
        self._optimizer = weakref.ref(optimizer)
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[Tensor, _Bucket] = {}
        self._sparse: dict[Tensor, int] = {}
        self._started = 0  # number of buckets that have started
        self._synchronized = False
        self._begun = False  # True while a step is in progress
        self._trained: list[int] = []  # see `identities`
        self._changes = 0  # how often this rank's trained parameters have changed
        self._agreed_frozen: list[int] = []  # the frozen parameters at the ranks' last agreement
        self._agreement: Work[Tensor] | None = None  # pending until all ranks have agreed
        self._group = private_group()
        self._store = distributed_c10d._get_process_group_store(self._group)
        weakref.finalize(optimizer, _destroy, self._group).atexit = False
        self._residuals = Residuals(self._group)
        if self._wire:
            save_residuals(optimizer, self._residuals)
        self._begin()
        self._agree()
        self._begun = False

    def _begin(self) -> None:
        """Begin a step, with the parameters that require gradients now."""
        if self._begun:
            return
        self._begun = True
        now = identities(self._optimizer())
        if now == self._trained:
            return
        self._trained = now
        self._changes += 1
        self._store.set(self._key(self._changes, self._group.rank()), json.dumps(_frozen(now)))
        own = torch.tensor([each == 0 for each in now], dtype=torch.uint8)
        every = own.new_empty(self._group.size(), len(own))
        try:
            work = dist.all_gather(list(every), own, group=self._group, async_op=True)
        except dist.DistBackendError:  # the other ranks have begun the step without a change
            self._explain(self._changes)
            raise
        self._agreement = Work(work, every)
        self._make_buckets()

    def _key(self, change: int, rank: int) -> str:
        return f"frozen/{change}/{rank}"

    def _make_buckets(self) -> None:
        known, self._buckets, self._bucket_of = self._bucket_of, [], {}
        last = trained(self._optimizer())[::-1]  # backward() reaches the last parameters first
        for bucket in _buckets(last, self._bucket_bytes):
            self._buckets.append(bucket)
            for parameter in bucket.parameters:
                self._bucket_of[parameter] = bucket
                if parameter not in known:
                    call_with_gradients(parameter, self._accumulated)

    def _agree(self) -> None:
        """Wait for all ranks' lists of parameters. Raises InvalidState if they differ."""
        if self._agreement is None:
            return
        frozen = [each.nonzero().flatten().tolist() for each in self._agreement.wait()]
        check_alike(self._optimizer(), dict(enumerate(frozen)))
        self._agreed_frozen, self._agreement = _frozen(self._trained), None

    def _explain(self, change: int) -> None:
        """Raise InvalidState if an operation has failed because only some ranks have frozen or
        unfrozen parameters. `change` is the number of the failed change."""
        frozen = dict.fromkeys(range(self._group.size()), self._agreed_frozen)
        with suppress(RuntimeError):  # the process that serves the store has exited
            for rank in frozen:
                if self._store.check([self._key(change, rank)]):
                    frozen[rank] = json.loads(self._store.get(self._key(change, rank)))
        check_alike(self._optimizer(), frozen)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced."""
        try:
            self._synchronize()
        except dist.DistBackendError:
            self._explain(self._changes + (self._agreement is None))
            raise

    def _synchronize(self) -> None:
        self._begin()
        self._agree()
        check_unchanged(self._optimizer(), self._trained)
        while self._started < len(self._buckets):  # buckets with unused parameters
            self._start(self._buckets[self._started])
        for bucket in self._buckets:
            for work in bucket.works:
                work.wait()
            for own, sent in bucket.compressed:
                own.copy_(sent)
            # A sparse all-reduce waits for the other ranks when it starts. In backward() this could
            # deadlock, because the other ranks may wait for this rank in another operation.
            for own in bucket.sparse:
                dist.all_reduce(own, self._op, self._group)
            bucket.works, bucket.compressed, bucket.sparse = [], [], []
            bucket.passes = dict.fromkeys(bucket.parameters, 0)
        self._started = 0
        self._begun = False
        self._synchronized = True

    def before_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if (len(arguments) > 1 and arguments[1] is not None) or options.get("closure") is not None:
            raise _state(
                "step(closure) computes gradients itself, which would not be reduced: call step()"
                " without a closure"
            )
        if not self._synchronized:
            self.synchronize()

    def after_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        # Not in before_step: a derived step() may call its base's step(), with the same hooks.
        self._synchronized = False

    def _accumulated(self, parameter: Tensor) -> None:
        if self._optimizer() is None:
            return
        self._begin()
        self._synchronized = False  # even if the program skipped a step
        bucket = self._bucket_of.get(parameter)
        if bucket is None:
            raise _state(FROZEN)
        bucket.passes[parameter] += 1
        if bucket.passes[parameter] > self._passes:
            raise _state(
                "backward() was called again before step(); to call it several times, set"
                f" backward_passes_per_step, which is {self._passes}"
            )
        try:
            while self._started < len(self._buckets):
                if not self._buckets[self._started].ready(self._passes) or not self._may_start():
                    break
                self._start(self._buckets[self._started])
        except dist.DistBackendError:
            self._explain(self._changes + (self._agreement is None))
            raise

    def _may_start(self) -> bool:
        if self._agreement is not None and self._agreement.done():
            self._agree()
        return self._agreement is None

    def _start(self, bucket: _Bucket) -> None:
        self._started += 1
        dense: list[Tensor] = []
        packed: list[Tensor] = []  # the parameters whose gradients are packed
        for parameter in bucket.parameters:
            own = gradient(parameter, self._sparse)
            if own.is_sparse:
                bucket.sparse.append(own)
            elif self._wire and own.dtype == torch.float32:
                packed.append(parameter)
            elif self._compressed is None or own.dtype not in (torch.float32, torch.float64):
                dense.append(own.detach())  # with create_graph, gradients require grad
            else:
                sent = own.to(self._compressed)
                bucket.compressed.append((own, sent))
                dense.append(sent)
        if dense:
            options = dist.AllreduceCoalescedOptions()
            options.reduceOp = self._op
            bucket.works.append(Work(self._group.allreduce_coalesced(dense, options), dense))
        if packed:
            self._start_packed(bucket, packed)

    def _start_packed(self, bucket: _Bucket, parameters: list[Tensor]) -> None:
        assert self._wire is not None
        require_host(self._wire, parameters)
        owns = [each.grad.detach() for each in parameters if each.grad is not None]
        flat = torch.cat([own.flatten() for own in owns])
        residual = self._residuals.flat(parameters)
        bucket.works.append(Work(start(self._group, flat, residual, self._name, self._wire), flat))
        sent = flat.split([own.numel() for own in owns])
        bucket.compressed += [
            (own, part.view_as(own)) for own, part in zip(owns, sent, strict=True)
        ]


def trained(optimizer: Any) -> list[Tensor]:
    """Return the parameters that the optimizer trains now."""
    return [p for part in optimizer.param_groups for p in part["params"] if p.requires_grad]


def save_residuals(optimizer: torch.optim.Optimizer, residuals: Residuals) -> None:
    """Make the optimizer's state_dict contain the residuals, and load_state_dict restore them."""

    def save(optimizer: Any, state: dict[str, Any]) -> None:
        state[RESIDUALS] = residuals.state_dict(_numbered(optimizer))

    def load(optimizer: Any, state: dict[str, Any]) -> None:
        if RESIDUALS in state:
            residuals.load_state_dict(_numbered(optimizer), state[RESIDUALS])
        else:
            residuals.clear()

    optimizer.register_state_dict_post_hook(save)
    optimizer.register_load_state_dict_pre_hook(load)


def _numbered(optimizer: Any) -> dict[int, Tensor]:
    """Return the optimizer's parameters by their numbers in its state_dict."""
    return dict(enumerate(p for part in optimizer.param_groups for p in part["params"]))


def identities(optimizer: Any) -> list[int]:
    """Return the ids of the optimizer's parameters, with 0 for frozen ones."""
    groups = optimizer.param_groups
    return [id(p) if p.requires_grad else 0 for part in groups for p in part["params"]]


def _frozen(identities: list[int]) -> list[int]:
    return [number for number, each in enumerate(identities) if not each]


def check_alike(optimizer: Any, frozen: Mapping[int, Sequence[int]]) -> None:
    """Raise InvalidState if ranks train different parameters.

    frozen  the numbers of the frozen parameters, by rank
    """
    first = min(frozen)
    for rank, each in frozen.items():
        for number in sorted(set(each) ^ set(frozen[first])):
            trains, freezes = (rank, first) if number in frozen[first] else (first, rank)
            raise _state(
                f"{_describe(optimizer, number)} requires gradients on rank {trains}, but not on"
                f" rank {freezes}; freeze and unfreeze parameters on all ranks alike"
            )


def check_unchanged(optimizer: Any, began: list[int]) -> None:
    """Raise InvalidState if parameters were added or unfrozen while gradients were computed.

    began  the optimizer's `identities` at the first gradient of the step
    """
    now = identities(optimizer)
    if now != began and (added := set(now) - set(began) - {0}):
        number = min(map(now.index, added))
        raise _state(
            f"{_describe(optimizer, number)} was added or unfrozen after backward() had begun; do"
            " that after a step and before the next backward()"
        )


def _describe(optimizer: Any, number: int) -> str:
    groups = optimizer.param_groups
    shape = [tuple(p.shape) for part in groups for p in part["params"]][number]
    names = [name for part in groups for name in part.get("param_names", ())]
    name = f" ({names[number]})" if number < len(names) else ""
    return f"parameter {number}{name} of shape {shape}"


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


def _destroy(own: Any) -> None:
    with suppress(ValueError, AssertionError):  # the program has destroyed all groups already
        dist.destroy_process_group(own)


def _state(message: str) -> Exception:
    return adapter().InvalidState(message)
