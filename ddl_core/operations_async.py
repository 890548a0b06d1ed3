"""The asynchronous forms of the operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from ddl_core import arguments, blocks
from ddl_core.arguments import OPS, Call
from ddl_core.operations import only_named
from ddl_core.work import Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddl_core._lib import FastPath
    from ddl_core.options import AsyncMessageOptions, AsyncOptions, AsyncReduceOptions

Array = TypeVar("Array")
Result = TypeVar("Result")
Numbers = Sequence[SupportsIndex]


class AsyncOperations:
    """Each starts the operation of its name and returns a Work, whose `wait` returns the array that
    the operation returns. Arrays must not be touched before the work is complete."""

    rank: int
    size: int
    _fast_path: FastPath

    def _start(self, call: Call[Result], options: AsyncMessageOptions) -> Work[Result]:
        raise NotImplementedError

    def allreduce_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: str = "sum",
        **options: Unpack[AsyncReduceOptions],
    ) -> Work[Array]:
        """Start `allreduce`."""
        if type(op) is str and op in OPS and (not options or only_named(options)):
            name = options.get("name")
            work: Work[Array] | None
            work = self._fast_path.allreduce_async(self, Work, send, recv, OPS[op], name)
            if work is not None:
                return work
        return self._start(arguments.allreduce(send, recv, op), options)

    def reduce_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: str = "sum",
        root: SupportsIndex = 0,
        **options: Unpack[AsyncReduceOptions],
    ) -> Work[Array | None]:
        """Start `reduce`."""
        call = arguments.reduce(send, recv, op, root, self.rank, self.size)
        return self._start(call, options)

    def reduce_scatter_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: str = "sum",
        **options: Unpack[AsyncReduceOptions],
    ) -> Work[Array]:
        """Start `reduce_scatter`."""
        return self._start(arguments.reduce_scatter(send, recv, op, self.size), options)

    def reduce_scatterv_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        counts: Numbers,
        op: str = "sum",
        **options: Unpack[AsyncReduceOptions],
    ) -> Work[Array]:
        """Start `reduce_scatterv`."""
        call = blocks.reduce_scatterv(send, recv, counts, op, self.rank, self.size)
        return self._start(call, options)

    def broadcast_async(
        self, array: Array, root: SupportsIndex = 0, **options: Unpack[AsyncOptions]
    ) -> Work[Array]:
        """Start `broadcast`."""
        return self._start(arguments.broadcast(array, root, self.size), options)

    def allgather_async(
        self, send: Array, recv: Array | None = None, **options: Unpack[AsyncOptions]
    ) -> Work[Array]:
        """Start `allgather`."""
        return self._start(arguments.allgather(send, recv, self.size), options)

    def allgatherv_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        counts: Numbers,
        displs: Numbers | None = None,
        **options: Unpack[AsyncOptions],
    ) -> Work[Array]:
        """Start `allgatherv`."""
        call = blocks.allgatherv(send, recv, counts, displs, self.rank, self.size)
        return self._start(call, options)

    def gather_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        root: SupportsIndex = 0,
        **options: Unpack[AsyncOptions],
    ) -> Work[Array | None]:
        """Start `gather`."""
        return self._start(arguments.gather(send, recv, root, self.rank, self.size), options)

    def gatherv_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        counts: Numbers | None = None,
        displs: Numbers | None = None,
        root: SupportsIndex = 0,
        **options: Unpack[AsyncOptions],
    ) -> Work[Array | None]:
        """Start `gatherv`."""
        call = blocks.gatherv(send, recv, counts, displs, root, self.rank, self.size)
        return self._start(call, options)

    def scatter_async(
        self,
        send: Array | None,
        recv: Array | None = None,
        *,
        root: SupportsIndex = 0,
        **options: Unpack[AsyncOptions],
    ) -> Work[Array]:
        """Start `scatter`."""
        return self._start(arguments.scatter(send, recv, root, self.rank, self.size), options)

    def scatterv_async(
        self,
        send: Array | None,
        recv: Array | None = None,
        *,
        counts: Numbers | None = None,
        displs: Numbers | None = None,
        root: SupportsIndex = 0,
        **options: Unpack[AsyncOptions],
    ) -> Work[Array]:
        """Start `scatterv`."""
        call = blocks.scatterv(send, recv, counts, displs, root, self.rank, self.size)
        return self._start(call, options)

    def alltoall_async(
        self, send: Array, recv: Array | None = None, **options: Unpack[AsyncOptions]
    ) -> Work[Array]:
        """Start `alltoall`."""
        return self._start(arguments.alltoall(send, recv, self.size), options)

    def alltoallv_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        send_counts: Numbers,
        recv_counts: Numbers | None = None,
        send_displs: Numbers | None = None,
        recv_displs: Numbers | None = None,
        **options: Unpack[AsyncOptions],
    ) -> Work[Array]:
        """Start `alltoallv`."""
        counts, displs = (send_counts, recv_counts), (send_displs, recv_displs)
        return self._start(blocks.alltoallv(send, recv, counts, displs, self.size), options)

    def barrier_async(self, **options: Unpack[AsyncOptions]) -> Work[None]:
        """Start `barrier`."""
        return self._start(arguments.barrier(), options)

    def send_async(
        self,
        array: Any,
        dest: SupportsIndex,
        *,
        tag: SupportsIndex = 0,
        **options: Unpack[AsyncMessageOptions],
    ) -> Work[None]:
        """Start `send`."""
        return self._start(arguments.send(array, dest, tag, self.size), options)

    def recv_async(
        self,
        array: Array,
        source: SupportsIndex | None = None,
        *,
        tag: SupportsIndex = 0,
        **options: Unpack[AsyncMessageOptions],
    ) -> Work[Array]:
        """Start `recv`. `wait` returns array, and `Work.source` is the rank that it came from."""
        return self._start(arguments.recv(array, source, tag, self.size), options)

    def sendrecv_async(
        self,
        send: Any,
        recv: Array,
        *,
        dest: SupportsIndex,
        source: SupportsIndex | None,
        send_tag: SupportsIndex = 0,
        recv_tag: SupportsIndex = 0,
        **options: Unpack[AsyncMessageOptions],
    ) -> Work[Array]:
        """Start `sendrecv`."""
        tags = send_tag, recv_tag
        return self._start(arguments.sendrecv(send, recv, dest, source, tags, self.size), options)
