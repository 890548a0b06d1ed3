# SPDX-License-Identifier: Apache-2.0
"""The asynchronous forms of the operations."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, SupportsIndex, TypeVar, cast

from ddl_core.calls import arguments
from ddl_core.calls.arguments import Call
from ddl_core.handles.work import Work
from ddl_core.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

    from ddl_core.base._lib import FastPath
    from ddl_core.base.names import Op
    from ddl_core.options import MessageOptions, ReduceOptions

Array = TypeVar("Array")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class _Starting(Operations):
    """Variants of a comm's operations that start the operation and return a Work."""

    def __init__(self, comm: AsyncOperations) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size

    def _run(self, call: Call[Result], options: MessageOptions) -> Result:
        return cast("Result", self._comm._start(call, options))


def _starting(
    operation: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Work[Result]]:
    """Return the asynchronous form of an operation."""

    def start(
        comm: AsyncOperations, /, *arguments: Parameters.args, **options: Parameters.kwargs
    ) -> Work[Result]:
        return cast("Work[Result]", operation(_Starting(comm), *arguments, **options))

    signature = inspect.signature(operation)
    start.__name__ = f"{operation.__name__}_async"
    start.__qualname__ = f"AsyncOperations.{start.__name__}"
    start.__doc__ = f"Start `{operation.__name__}`."
    start.__signature__ = signature.replace(  # type: ignore[attr-defined]
        return_annotation=f"Work[{signature.return_annotation}]"
    )
    return start


class AsyncOperations:
    """The asynchronous operations. Each starts the operation of its name and returns a Work, whose
    `wait` returns the operation's array. Arrays must not be used before the work is complete."""

    rank: int
    size: int
    _fast_path: FastPath

    def _start(self, call: Call[Result], options: MessageOptions) -> Work[Result]:
        raise NotImplementedError

    def allreduce_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: Op = "sum",
        **options: Unpack[ReduceOptions],
    ) -> Work[Array]:
        """Start `allreduce`."""
        work: Work[Array] | None
        work = self._fast_path.allreduce_async(self, Work, send, recv, op, options)
        if work is not None:
            return work
        return self._start(arguments.allreduce(send, recv, op), options)

    allreduce_ordered_async = _starting(Operations.allreduce_ordered)
    reduce_scatter_ordered_async = _starting(Operations.reduce_scatter_ordered)
    reduce_async = _starting(Operations.reduce)
    reduce_scatter_async = _starting(Operations.reduce_scatter)
    reduce_scatterv_async = _starting(Operations.reduce_scatterv)
    broadcast_async = _starting(Operations.broadcast)
    allgather_async = _starting(Operations.allgather)
    allgatherv_async = _starting(Operations.allgatherv)
    gather_async = _starting(Operations.gather)
    gatherv_async = _starting(Operations.gatherv)
    scatter_async = _starting(Operations.scatter)
    scatterv_async = _starting(Operations.scatterv)
    alltoall_async = _starting(Operations.alltoall)
    alltoallv_async = _starting(Operations.alltoallv)
    barrier_async = _starting(Operations.barrier)
    send_async = _starting(Operations.send)
    sendrecv_async = _starting(Operations.sendrecv)

    def recv_async(
        self,
        array: Array,
        source: SupportsIndex | None = None,
        *,
        tag: SupportsIndex = 0,
        **options: Unpack[MessageOptions],
    ) -> Work[Array]:
        """Start `recv`. `wait` returns array, and `Work.source` is the sender's rank."""
        return self._start(arguments.recv(array, source, tag, self.size), options)
