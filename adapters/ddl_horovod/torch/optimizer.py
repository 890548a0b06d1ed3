# SPDX-License-Identifier: Apache-2.0
"""Optimizers that step on the gradients of all ranks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ddl_horovod.common import Adasum, Average, Reduction, Sum
from ddl_horovod.torch.compression import Compression
from ddl_horovod.torch.operations import (
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from ddl_horovod.torch.world import global_process_set
from ddl_horovod.world import ProcessSet


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
    """An optimizer of the same class and parameters, whose step() uses the combined gradients of
    all members.

    Gradients are combined while backward() computes them. synchronize() waits for them, so that
    they can be clipped; `with optimizer.skip_synchronize():` then has step() not wait again.

    named_parameters           model.named_parameters(); all parameters of the optimizer
    compression                Compression.fp16 sends gradients in float16
    backward_passes_per_step   number of backward() calls before each step()
    op                         Average, Sum or Adasum
    gradient_predivide_factor  with Average: gradients are divided by it before they are added, and
                               by the rest of the number of members after
    num_groups, groups         a number of groups, or lists of parameters: gradients that travel
                               together. By default each travels when it is there
    sparse_as_dense            make sparse gradients dense first

    ValueError for names that repeat, parameters without a name, and options that conflict.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor: only Average uses it")
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op: {op} is none of Average, Sum, Adasum")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step: {backward_passes_per_step} is below 1")
    if groups is None and num_groups:
        warnings.warn("num_groups is a former name of groups", DeprecationWarning, stacklevel=2)
        groups = num_groups
    named = _named(optimizer, named_parameters)
    kind = type(optimizer)
    made = type(kind.__name__, (_Distributed, kind), {"__module__": kind.__module__})
    wrapped = made.__new__(made)
    wrapped.__dict__.update(optimizer.__dict__)
    wrapped._ddl = _Reducer(
        *(named, _grouped(named, groups), compression, backward_passes_per_step, op),
        *(gradient_predivide_factor, sparse_as_dense, process_set),
    )
    return wrapped


class _Distributed(torch.optim.Optimizer):
    """What is added to the class of an optimizer."""

    _ddl: _Reducer

    def synchronize(self) -> None:
        """Wait until all gradients are combined."""
        self._ddl.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() does not synchronize."""
        self._ddl.skips = True
        try:
            yield
        finally:
            self._ddl.skips = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward() calls before each step()."""
        self._ddl.passes = passes

    def step(self, closure: Any = None) -> Any:
        """Synchronize, and step."""
        if not self._ddl.skips:
            if self._ddl.synchronized:
                warnings.warn(
                    "step() after synchronize() combines the gradients again; use"
                    " `with optimizer.skip_synchronize():`",
                    stacklevel=2,
                )
            self.synchronize()
        self._ddl.synchronized = False
        return super().step(closure)

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        """As usual. AssertionError between backward() and step() or synchronize()."""
        if self._ddl.works:
            raise AssertionError(
                "zero_grad() came after backward() and before step() or synchronize(), while"
                " gradients are being combined"
            )
        super().zero_grad(*arguments, **options)


class _Reducer:
    """Combines gradients, group by group, as soon as those of a group are complete."""

    def __init__(
        self,
        named: dict[Tensor, str],
        groups: list[list[Tensor]],
        compression: Any,
        passes: int,
        op: Reduction,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.passes, self.skips, self.synchronized = passes, False, False
        self.works: dict[int, Any] = {}  # by the number of the group
        self._named, self._groups, self._compression = named, groups, compression
        self._op, self._predivide = op, predivide
        self._sparse_as_dense, self._process_set = sparse_as_dense, process_set
        self._calls = Counter[Tensor]()
        self._group_of = {p: number for number, group in enumerate(groups) for p in group}
        for parameter in self._group_of:
            parameter.register_post_accumulate_grad_hook(self._accumulated)

    def synchronize(self) -> None:
        for number in range(len(self._groups)):
            if number not in self.works:
                self._start(number)
        for finish in [self.works[number] for number in sorted(self.works)]:
            finish()
        self.works.clear()
        self._calls.clear()
        self.synchronized = True

    def _accumulated(self, parameter: Tensor) -> None:
        number = self._group_of[parameter]
        self._calls[parameter] += 1
        if number in self.works or self._calls[parameter] > self.passes:
            raise AssertionError(
                "backward() came more than backward_passes_per_step times, which is"
                f" {self.passes}, before step()"
            )
        if all(self._calls[each] == self.passes for each in self._groups[number]):
            self._start(number)

    def _start(self, number: int) -> None:
        dense: list[Tensor] = []
        finishes = []
        for parameter in self._groups[number]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad.is_sparse and self._sparse_as_dense:
                parameter.grad = parameter.grad.to_dense()
            if parameter.grad.is_sparse:
                name = f"sparse.{self._named[parameter]}"
                work = sparse_allreduce_async(parameter.grad, name, self._op, self._process_set)
                finishes.append((parameter, work))
            else:
                dense.append(parameter)
        sent, contexts = [], []
        for parameter in dense:
            assert parameter.grad is not None
            compressed, context = self._compression.compress(parameter.grad.detach())
            sent.append(compressed)
            contexts.append(context)
        handle = 0
        if dense:
            before, after = 1.0, 1.0
            if self._op == Average:
                before, after = 1 / self._predivide, self._predivide
            name = f"allreduce.{self._named[dense[0]]}"
            handle = grouped_allreduce_async_(
                sent, None, name, self._op, before, after, self._process_set
            )

        def finish() -> None:
            for parameter, work in finishes:
                parameter.grad = work()
            results = synchronize(handle) if dense else []
            for parameter, result, context in zip(dense, results, contexts, strict=True):
                assert parameter.grad is not None
                parameter.grad.detach().copy_(self._compression.decompress(result, context))

        self.works[number] = finish


def _named(
    optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """The optimizer's parameters, with their names."""
    own = [parameter for part in optimizer.param_groups for parameter in part["params"]]
    if given is None:
        return {parameter: f"noname.{number}" for number, parameter in enumerate(own)}
    pairs = list(given)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError("named_parameters: give pairs, as model.named_parameters() does")
    repeated = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if repeated:
        raise ValueError(f"named_parameters: these names repeat: {', '.join(repeated)}")
    names = {parameter: name for name, parameter in pairs}
    missing = sum(parameter not in names for parameter in own)
    if missing:
        raise ValueError(f"named_parameters: {missing} parameters of the optimizer have no name")
    return {parameter: names[parameter] for parameter in own}


def _grouped(
    named: dict[Tensor, str], groups: int | Sequence[Sequence[Tensor]] | None
) -> list[list[Tensor]]:
    """The parameters whose gradients travel together."""
    trained = [parameter for parameter in named if parameter.requires_grad]
    if not groups:
        return [[parameter] for parameter in trained]
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups: {groups} is negative")
        share = -(-len(trained) // groups)
        return [trained[start : start + share] for start in range(0, len(trained), share)]
    chosen = [[p for p in group if p.requires_grad] for group in groups]
    listed = [parameter for group in chosen for parameter in group]
    if len(set(listed)) != len(listed) or not set(listed) <= set(trained):
        raise ValueError("groups: a parameter is listed twice, or is not the optimizer's")
    return [g for g in chosen if g] + [[p] for p in trained if p not in set(listed)]
