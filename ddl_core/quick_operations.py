"""The short path: NumPy arrays and no options but a name, as in most calls.

What it cannot do, and what is wrong with a call, the general way of `Operations` finds out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from ddl_core._lib import Gate, to_error
from ddl_core.arguments import OPS
from ddl_core.operations import Operations
from ddl_core.operations_async import AsyncOperations
from ddl_core.work import Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddl_core.options import AsyncReduceOptions, Options, ReduceOptions

Array = TypeVar("Array")


def _only_named(options: Mapping[str, Any]) -> bool:
    return len(options) == 1 and "name" in options


class QuickOperations(Operations, AsyncOperations):
    """Both kinds of operations, with a short path for the most frequent calls."""

    _gate: Gate
    _dropped: list[tuple[int, object]]

    def allreduce(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: str = "sum",
        **options: Unpack[ReduceOptions],
    ) -> Array:
        if type(op) is str and op in OPS and (not options or _only_named(options)):
            status = self._gate.allreduce(send, recv, OPS[op], options.get("name"))
            if status == 0:
                return send if recv is None else recv
            if status is not None:
                raise to_error(status)
        return super().allreduce(send, recv, op=op, **options)

    def allreduce_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: str = "sum",
        **options: Unpack[AsyncReduceOptions],
    ) -> Work[Array]:
        known = type(op) is str and op in OPS and not self._dropped
        if known and (not options or _only_named(options)):
            name = options.get("name")
            work = self._gate.allreduce_async(self, Work, send, recv, OPS[op], name)
            if isinstance(work, Work):
                return work
            if work is not None:
                raise to_error(work)
        return super().allreduce_async(send, recv, op=op, **options)

    def reduce_scatter(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: str = "sum",
        **options: Unpack[ReduceOptions],
    ) -> Array:
        if recv is not None and not options and type(op) is str and op in OPS:
            status = self._gate.reduce_scatter(send, recv, OPS[op])
            if status == 0:
                return recv
            if status is not None:
                raise to_error(status)
        return super().reduce_scatter(send, recv, op=op, **options)

    def broadcast(self, array: Array, root: SupportsIndex = 0, **options: Unpack[Options]) -> Array:
        if not options:
            status = self._gate.broadcast(array, root)
            if status == 0:
                return array
            if status is not None:
                raise to_error(status)
        return super().broadcast(array, root, **options)

    def allgather(
        self, send: Array, recv: Array | None = None, **options: Unpack[Options]
    ) -> Array:
        if recv is not None and not options:
            status = self._gate.allgather(send, recv)
            if status == 0:
                return recv
            if status is not None:
                raise to_error(status)
        return super().allgather(send, recv, **options)

    def barrier(self, **options: Unpack[Options]) -> None:
        status = None if options else self._gate.barrier()
        if status is None:
            super().barrier(**options)
        elif status:
            raise to_error(status)


for _name, _quick in list(vars(QuickOperations).items()):
    if callable(_quick):
        _quick.__doc__ = getattr(super(QuickOperations, QuickOperations), _name).__doc__
