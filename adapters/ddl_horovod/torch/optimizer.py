# SPDX-License-Identifier: Apache-2.0
"""PyTorch optimizers that apply the gradients of all ranks."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from ddl_core.errors import InvalidState
from ddl_horovod.common import Adasum, Average, Reduction, Sum, is_packed
from ddl_horovod.torch.compression import Compression
from ddl_horovod.torch.operations import (
    exchange_async,
    grouped_allreduce_async_,
    packed_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from ddl_horovod.torch.world import global_process_set
from ddl_horovod.world import ProcessSet
from ddl_torch.optimizer import (
    FROZEN,
    call_with_gradients,
    check_alike,
    check_unchanged,
    gradient,
    identities,
    refuse_copy,
    save_residuals,
    trained,
)
from ddl_torch.packing import Residuals, require_host


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Reduction = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Make the optimizer apply the combined gradients of all members, and return it.

    Gradients are combined while backward() computes them. To clip them, call synchronize(), which
    waits for them, and then step() within `with optimizer.skip_synchronize():`. A missing gradient
    counts as zero. A rank outside process_set trains alone. The optimizer cannot be copied or
    pickled.

    named_parameters           model.named_parameters(); must name all parameters of the optimizer
    compression                Compression.fp16 sends gradients in float16. Compression.int8 or int4
                               sends float32 gradients in CPU memory between hosts in a quarter or
                               an eighth of the bytes; state_dict() then contains this rank's
                               rounding errors, so save and load it on each rank
    backward_passes_per_step   number of backward() calls before each step()
    op                         Average, Sum or Adasum
    gradient_predivide_factor  f: with Average, divide gradients by f before they are added, and by
                               size / f after
    num_groups, groups         a number of groups, or lists of parameters whose gradients are sent
                               together; by default each gradient is sent alone, once computed
    sparse_as_dense            send sparse gradients as dense ones

    All members call this with the same parameters in the same order. Gradients match by their
    parameters' names; optimizers after a process set's first one append their number. Between
    steps, parameters may be added, frozen (by requires_grad) and unfrozen, if all members do so.
    Raises ValueError for repeated or missing names and for conflicting options. A later step raises
    ddl_core.errors.InvalidState if members train different parameters.
    """
    if isinstance(optimizer, _Distributed):
        raise ValueError("optimizer is already a DistributedOptimizer")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is set, but op is not Average")
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op is {op}; must be one of Average, Sum, Adasum")
    is_packed(compression, op, gradient_predivide_factor)
    if backward_passes_per_step < 1:
        raise ValueError(
            f"backward_passes_per_step is {backward_passes_per_step}; must be at least 1"
        )
    if groups is None and num_groups:
        warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups
    named = _named(optimizer, named_parameters)
    together = _grouped(named, groups)
    kind = type(optimizer)
    # Remove the wrapper of the old class's step() that an existing scheduler has set.
    optimizer.__dict__.pop("step", None)
    optimizer.__class__ = type(kind.__name__, (_Distributed, kind), {"__module__": kind.__module__})
    assert isinstance(optimizer, _Distributed)
    optimizer._parameter_names = named
    optimizer._ddl = _GroupReducer(
        *(optimizer, named, compression, backward_passes_per_step, op),
        *(gradient_predivide_factor, sparse_as_dense, process_set),
    )
    optimizer._ddl.add(together)
    return optimizer


class _Distributed(torch.optim.Optimizer):
    """The methods that `DistributedOptimizer` adds to an optimizer's class."""

    _ddl: _GroupReducer
    _parameter_names: dict[Tensor, str]  # some programs read it

    def __getstate__(self) -> NoReturn:
        refuse_copy()

    def synchronize(self) -> None:
        """Wait until all gradients are combined."""
        self._ddl.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make step() not synchronize within this context."""
        self._ddl.skips = True
        try:
            yield
        finally:
            self._ddl.skips = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward() calls before each step()."""
        self._ddl.passes = passes

    def step(self, closure: Any = None) -> Any:
        """Synchronize, and step. Raises ValueError for a closure outside skip_synchronize()."""
        if not self._ddl.skips:
            if closure is not None:
                raise ValueError(
                    "step(closure) computes gradients itself, which would not be combined:"
                    " call closure() before step()"
                )
            if self._ddl.synchronized:
                warnings.warn(
                    "optimizer.step() was called after synchronize(), so it combines the gradients"
                    " again; call it in `with optimizer.skip_synchronize():`",
                    stacklevel=2,
                )
            self.synchronize()
        elif self._ddl.calls:
            raise AssertionError(
                "step() was called in skip_synchronize(), but before synchronize()"
            )
        self._ddl.synchronized = False
        self._opt_called = True
        return super().step(closure)

    # Keeps schedulers from wrapping step(), and from warning that their wrapper is missing.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        """Reset the gradients. Raises AssertionError while gradients are being combined."""
        if self._ddl.calls:
            raise AssertionError(
                "zero_grad() was called while gradients are being combined: call step() or"
                " synchronize() before it"
            )
        super().zero_grad(*arguments, **options)


class _GroupReducer:
    """A reducer that combines gradients in groups while backward() computes them.

    A group starts when it is complete, and the remaining groups start in synchronize(). Operations
    match by name, because ranks that use different parameters start them in different orders. At
    the first gradient of a step the members start to exchange the set of parameters they train.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: dict[Tensor, str],
        compression: Any,
        passes: int,
        op: Reduction,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.passes, self.skips, self.synchronized = passes, False, False
        self.calls = Counter[Tensor]()  # backward() calls since the last synchronize()
        self._optimizer = weakref.ref(optimizer)
        self._named, self._compression = named, compression
        self._wire: str | None = getattr(compression, "wire", None)
        self._op, self._predivide = op, predivide
        self._sparse_as_dense, self._process_set = sparse_as_dense, process_set
        self._sparse: dict[Tensor, int] = {}
        self._groups: list[list[Tensor]] = []
        self._group_of: dict[Tensor, list[Tensor]] = {}
        self._began: list[int] = []  # `identities` at the beginning of the step
        self._trained: set[int] = set()  # the same, for look-ups
        self._agreement: Callable[[], dict[int, list[int]]] | None = None  # this step's exchange
        self._works: dict[int, Callable[[], None]] = {}  # waits for started groups, by id(group)
        self._suffix = ""
        if process_set.included():
            self._residuals = Residuals(process_set)
            if self._wire:
                save_residuals(optimizer, self._residuals)
            number = process_set.executor().count_optimizer()
            self._suffix = f".{number}" if number else ""

    def add(self, groups: list[list[Tensor]]) -> None:
        """Add groups of parameters whose gradients to combine. Do nothing on a rank outside the
        process set, which trains alone."""
        if self._process_set.included():
            self._groups += groups
            for group in groups:
                for parameter in group:
                    self._group_of[parameter] = group
                    self._named.setdefault(parameter, f"added.{len(self._named)}")
                    call_with_gradients(parameter, self._accumulated)

    def synchronize(self) -> None:
        """Wait until the gradients are combined."""
        self._begin()
        if self._agreement is not None:
            check_alike(self._optimizer(), self._agreement())
            check_unchanged(self._optimizer(), self._began)
        for group in self._groups:
            if id(group) not in self._works:  # it has unused parameters
                self._start(group)
        for finish in self._works.values():
            finish()
        self._works.clear()
        self.calls.clear()
        self._agreement = None
        self.synchronized = True

    def _begin(self) -> None:
        """Begin a step, with the parameters that require gradients now."""
        if self._agreement is not None or not self._process_set.included():
            return
        optimizer: Any = self._optimizer()
        self._began = identities(optimizer)
        self._trained = set(self._began)
        self.add([[each] for each in reversed(trained(optimizer)) if each not in self._group_of])
        frozen = [number for number, each in enumerate(self._began) if not each]
        self._agreement = exchange_async(
            frozen, f"parameters{self._suffix}", process_set=self._process_set
        )

    def _accumulated(self, parameter: Tensor) -> None:
        if self._optimizer() is None:
            return
        self._begin()
        self.synchronized = False  # even if the program skipped a step
        if id(parameter) not in self._trained:
            raise InvalidState(FROZEN)
        self.calls[parameter] += 1
        if self.calls[parameter] > self.passes:
            raise AssertionError(
                "backward() was called again before step(); backward_passes_per_step is"
                f" {self.passes}"
            )
        group = self._group_of[parameter]
        if id(group) not in self._works and all(
            self.calls[each] >= self.passes for each in self._members(group)
        ):
            self._start(group)

    def _members(self, group: list[Tensor]) -> list[Tensor]:
        """Return the parameters of a group that are trained in this step."""
        return [each for each in group if id(each) in self._trained]

    def _start(self, group: list[Tensor]) -> None:
        dense, sparse, sent = [], [], []
        contexts: list[Any] = []
        packed: list[Tensor] = []  # parameters whose gradients are packed
        for parameter in self._members(group):
            own = gradient(parameter, self._sparse).detach()
            name = f"{self._named[parameter]}{self._suffix}"
            if own.is_sparse and not self._sparse_as_dense:
                work = sparse_allreduce_async(own, f"sparse.{name}", self._op, self._process_set)
                sparse.append((parameter, work))
            elif self._wire and own.dtype == torch.float32:
                packed.append(parameter)
            elif self._wire:
                dense.append(parameter)
                sent.append(own.to_dense())
                contexts.append(None)
            else:
                dense.append(parameter)
                compressed, context = self._compression.compress(own.to_dense())
                sent.append(compressed)
                contexts.append(context)
        handle = 0
        if dense:
            before, after = 1.0, 1.0
            if self._op == Average:
                before, after = 1 / self._predivide, self._predivide
            name = f"allreduce.{self._named[dense[0]]}{self._suffix}"
            handle = grouped_allreduce_async_(
                sent, None, name, self._op, before, after, self._process_set
            )

        unpack = self._start_packed(packed) if packed else lambda: None

        def finish() -> None:
            unpack()
            for parameter, work in sparse:
                parameter.grad = work()
            results = synchronize(handle) if dense else []
            for parameter, result, context in zip(dense, results, contexts, strict=True):
                assert parameter.grad is not None
                combined = result if self._wire else self._compression.decompress(result, context)
                if parameter.grad.is_sparse:  # sparse optimizers need it sparse
                    parameter.grad = combined.to_sparse(parameter.grad.sparse_dim())
                else:
                    parameter.grad.detach().copy_(combined)

        self._works[id(group)] = finish

    def _start_packed(self, parameters: list[Tensor]) -> Callable[[], None]:
        """Start to combine gradients in the wire format. Return a function that waits for them."""
        assert self._wire is not None
        require_host(f"Compression.{self._wire}", parameters)
        owns = [gradient(each, self._sparse).detach() for each in parameters]
        flat = torch.cat([own.to_dense().flatten() for own in owns])
        name = f"packed.{self._named[parameters[0]]}{self._suffix}"
        handle = packed_allreduce_async_(
            *(flat, self._residuals.flat(parameters), self._wire, name),
            *(self._op, self._process_set),
        )

        def finish() -> None:
            synchronize(handle)
            for parameter, part in zip(
                parameters, flat.split([own.numel() for own in owns]), strict=True
            ):
                assert parameter.grad is not None
                dense = part.view(parameter.grad.shape)
                if parameter.grad.is_sparse:
                    parameter.grad = dense.to_sparse(parameter.grad.sparse_dim())
                else:
                    parameter.grad.detach().copy_(dense)

        return finish


def _named(
    optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """Return the names of the optimizer's parameters, by parameter."""
    own = [parameter for part in optimizer.param_groups for parameter in part["params"]]
    if given is None:
        return {parameter: f"noname.{number}" for number, parameter in enumerate(own)}
    pairs = list(given)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError(
            "named_parameters must contain pairs of name and parameter, like"
            " model.named_parameters()"
        )
    repeated = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if repeated:
        raise ValueError(f"named_parameters contains names twice: {', '.join(repeated)}")
    names = {parameter: name for name, parameter in pairs}
    missing = sum(parameter not in names for parameter in own)
    if missing:
        raise ValueError(f"named_parameters lacks {missing} parameters of the optimizer")
    return {parameter: names[parameter] for parameter in own}


def _grouped(
    named: dict[Tensor, str], groups: int | Sequence[Sequence[Tensor]] | None
) -> list[list[Tensor]]:
    """Return the groups of parameters whose gradients are sent together, in the order in which
    backward() reaches them: the last parameters first."""
    trained = [parameter for parameter in named if parameter.requires_grad]
    if not groups:
        return [[parameter] for parameter in reversed(trained)]
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups is {groups}; must be at least 0")
        share = -(-len(trained) // groups)
        return [trained[start : start + share] for start in range(0, len(trained), share)][::-1]
    chosen = [[p for p in group if p.requires_grad] for group in groups]
    listed = {parameter for group in chosen for parameter in group}
    if len(listed) != sum(map(len, chosen)) or not listed <= set(trained):
        raise ValueError(
            "groups contains a parameter twice, or one that the optimizer does not have"
        )
    every = [group for group in chosen if group] + [[p] for p in trained if p not in listed]
    position = {parameter: number for number, parameter in enumerate(trained)}
    return sorted(every, key=lambda group: min(position[p] for p in group), reverse=True)
