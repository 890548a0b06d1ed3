# SPDX-License-Identifier: Apache-2.0
"""Averaging of gradients during the backward pass.

Chainer sets the gradients of parameters only after the whole pass. So an identity function is put
in front of each parameter of the graph. Its backward pass runs as soon as the gradient is complete,
and starts the operation.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import chainer
import numpy as np

from ddl_core import Comm
from ddl_core.handles.work import Work

Array = np.ndarray[Any, Any]


class Overlap:
    """The gradients of one backward pass. Operations are matched by the names of parameters, since
    ranks may have different graphs, which complete gradients in different orders."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._started: dict[str, Work[Array]] = {}

    def start(self, name: str, gradient: Array) -> None:
        """Begin to average a gradient over all ranks, without waiting."""
        own = np.asarray(gradient, order="C")
        self._started[name] = self._comm.allreduce_async(
            own, np.empty_like(own), op="average", name=name
        )

    def finish(self, gradients: dict[str, Array]) -> list[Array]:
        """Return the averages of the gradients. Start operations for gradients for which the
        backward pass did not start one. Drop the averages of other gradients."""
        for name, gradient in gradients.items():
            if name not in self._started:
                self.start(name, gradient)
        averages = {name: work.wait() for name, work in self._started.items()}
        return [averages[name] for name in gradients]

    def prepare(self, loss: chainer.Variable, model: chainer.Link) -> None:
        """Make the backward pass from the loss start an operation for each of the model's
        parameters that the graph uses."""
        consumers = _consumers(loss)
        for name, param in sorted(model.namedparams()):
            if id(param.node) in consumers:
                _put_in_front(param, consumers[id(param.node)], functools.partial(self.start, name))


class _Start(chainer.FunctionNode):
    def __init__(self, start: Callable[[Array], None]) -> None:
        super().__init__()
        self._start = start

    def forward(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return inputs

    def backward(self, indexes: Any, gradients: tuple[chainer.Variable, ...]) -> Any:
        self._start(gradients[0].array)
        return gradients


def _consumers(loss: chainer.Variable) -> dict[int, list[chainer.FunctionNode]]:
    """Map the id of each node in the graph to the functions that have it as an input."""
    found: dict[int, list[chainer.FunctionNode]] = defaultdict(list)
    seen, waiting = set(), [loss.creator_node]
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        for node in set(function.inputs):
            found[id(node)].append(function)
            waiting.append(node.creator_node)
    return found


def _put_in_front(
    param: chainer.Parameter,
    consumers: list[chainer.FunctionNode],
    start: Callable[[Array], None],
) -> None:
    function = _Start(start)
    (copy,) = function.apply((param,))
    copy.node.retain_data()
    for each in consumers:
        each.inputs = tuple(copy.node if n is param.node else n for n in each.inputs)
    # Chainer runs the functions of the highest rank first, so this one runs right after all
    # consumers.
    function.rank = min(each.rank for each in consumers) - 0.5
