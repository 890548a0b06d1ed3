# SPDX-License-Identifier: Apache-2.0
"""The operations, which a Comm runs and a Group collects.

A Comm has a fast path for its most frequent calls: NumPy arrays, and no options but a name. Other
calls, and wrong ones, use the general path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from ddl_core.calls import arguments, blocks
from ddl_core.calls.arguments import Call
from ddl_core.calls.order import Order
from ddl_core.calls.order import allreduce_ordered as order_call
from ddl_core.calls.order import reduce_scatter_ordered as scatter_call

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddl_core.base.names import Op
    from ddl_core.options import GatherOptions, MessageOptions, Options, ReduceOptions

Array = TypeVar("Array")
Result = TypeVar("Result")
Numbers = Sequence[SupportsIndex]


class Operations:
    """All operations except `recv`, which returns different results in a Comm and a Group.

    send and recv have the same dtype. They must not overlap, with one exception: if one of them has
    the blocks of all ranks, the other may be this rank's own block in it. Without recv an operation
    is in place: the result replaces the input in send, which is returned.
    """

    rank: int
    size: int
    _fast_path: Any = None  # the FastPath of a Comm

    def _run(self, call: Call[Result], options: MessageOptions) -> Result:
        raise NotImplementedError

    # ---- reductions ----

    def allreduce(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: Op = "sum",
        **options: Unpack[ReduceOptions],
    ) -> Array:
        """Set recv[i] = op over all ranks of send[i]. Return recv. Both have the same count.

        op is "sum", "average", "min", "max" or "product"; for bool and integers also "bit_and",
        "bit_or", "bit_xor", "logical_and" or "logical_or". bool does not support average; complex
        numbers support only sum and average. Without recv the result replaces send.
        """
        fast = self._fast_path
        if fast is not None:
            result: Array | None = fast.allreduce(send, recv, op, options)
            if result is not None:
                return result
        return self._run(arguments.allreduce(send, recv, op), options)

    def reduce(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: Op = "sum",
        root: SupportsIndex = 0,
        **options: Unpack[ReduceOptions],
    ) -> Array | None:
        """Set recv[i] = op over all ranks of send[i] on root. Return recv, or None on other ranks.

        op as in `allreduce`. On root both have the same count, and without recv the result replaces
        send. On other ranks send is only read, and recv is ignored.
        """
        call = arguments.reduce(send, recv, op, root, self.rank, self.size)
        return self._run(call, options)

    def reduce_scatter(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: Op = "sum",
        **options: Unpack[ReduceOptions],
    ) -> Array:
        """Set recv[i] = op over all ranks of send[rank * count + i], for i < count. Return recv.

        op as in `allreduce`. send has size * count elements, recv has count. Without recv the
        result is at rank * count of send, whose other blocks do not change.
        """
        fast = self._fast_path
        if fast and recv is not None and not options and fast.reduce_scatter(send, recv, op):
            return recv
        return self._run(arguments.reduce_scatter(send, recv, op, self.size), options)

    def reduce_scatterv(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        counts: Numbers,
        op: Op = "sum",
        **options: Unpack[ReduceOptions],
    ) -> Array:
        """Do the same as `reduce_scatter`, with counts[r] elements for rank r. Return recv.

        counts is equal on all ranks. send has the sum of all counts, recv has counts[rank].
        """
        call = blocks.reduce_scatterv(send, recv, counts, op, self.rank, self.size)
        return self._run(call, options)

    def allreduce_ordered(
        self,
        order: Order,
        parts: Sequence[Any],
        recv: Array,
        *,
        op: Op = "sum",
        **options: Unpack[Options],
    ) -> Array:
        """Set recv[i] = the sum over all logical workers of `order`. op "average" divides it by
        their number. Return recv. Its bits depend neither on the number of ranks nor on the
        distribution of the workers.

        parts[k] is this rank's part order.parts(rank)[k], created by `add`. It is only read. Parts
        and recv have the same count and dtype: integers, float32, float64 or complex. A recv of
        float16 or bfloat16 needs parts of float32, and is rounded once. All members pass equal
        orders; a difference raises Mismatch.
        """
        return self._run(order_call(order, parts, recv, op, self.rank, self.size), options)

    def reduce_scatter_ordered(
        self,
        order: Order,
        parts: Sequence[Any],
        recv: Array,
        *,
        counts: Numbers | None = None,
        op: Op = "sum",
        **options: Unpack[Options],
    ) -> Array:
        """Do the same as `allreduce_ordered`, but set recv only to this rank's block of the sum.
        Return recv.

        Without counts, each part has size * count elements, and recv has count. With counts, which
        is equal on all ranks, each part has the sum of all counts, and recv has counts[rank].
        """
        call = scatter_call(order, parts, recv, counts, op, self.rank, self.size)
        return self._run(call, options)

    # ---- moves ----

    def broadcast(self, array: Array, root: SupportsIndex = 0, **options: Unpack[Options]) -> Array:
        """Set array[i] on every rank to root's array[i]. Return array."""
        if self._fast_path and not options and self._fast_path.broadcast(array, root):
            return array
        return self._run(arguments.broadcast(array, root, self.size), options)

    def allgather(
        self, send: Array, recv: Array | None = None, **options: Unpack[GatherOptions]
    ) -> Array:
        """Set recv[r * count + i] = rank r's send[i], for i < count. Return recv.

        send has count elements, recv has size * count. Without recv, send has size * count
        elements, with this rank's own at rank * count, and is filled.
        """
        fast = self._fast_path
        if fast and recv is not None and not options and fast.allgather(send, recv):
            return recv
        return self._run(arguments.allgather(send, recv, self.size), options)

    def allgatherv(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        counts: Numbers,
        displs: Numbers | None = None,
        **options: Unpack[GatherOptions],
    ) -> Array:
        """Do the same as `allgather`, with counts[r] elements from rank r, which are stored at
        displs[r] of recv. Return recv.

        counts is equal on all ranks; displs need not be. Without displs the blocks follow each
        other. send has counts[rank] elements, or all blocks without recv.
        """
        call = blocks.allgatherv(send, recv, counts, displs, self.rank, self.size)
        return self._run(call, options)

    def gather(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        root: SupportsIndex = 0,
        **options: Unpack[Options],
    ) -> Array | None:
        """Set recv[r * count + i] = rank r's send[i] on root, for i < count. Return recv, or None
        on other ranks.

        send has count elements, recv has size * count. Without recv, root's send has size * count
        elements, with its own at rank * count, and is filled. On other ranks recv is ignored.
        """
        return self._run(arguments.gather(send, recv, root, self.rank, self.size), options)

    def gatherv(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        counts: Numbers | None = None,
        displs: Numbers | None = None,
        root: SupportsIndex = 0,
        **options: Unpack[Options],
    ) -> Array | None:
        """Do the same as `gather`, with counts[r] elements from rank r, which are stored at
        displs[r] of root's recv.

        Root needs counts. Without displs the blocks follow each other. On other ranks recv, counts
        and displs are ignored, and send has this rank's block.
        """
        call = blocks.gatherv(send, recv, counts, displs, root, self.rank, self.size)
        return self._run(call, options)

    def scatter(
        self,
        send: Array | None,
        recv: Array | None = None,
        *,
        root: SupportsIndex = 0,
        **options: Unpack[Options],
    ) -> Array:
        """Set recv[i] = root's send[rank * count + i], for i < count. Return recv.

        recv has count elements, root's send has size * count. On other ranks send is ignored. On
        root, without recv, its own block stays where it is, and send is returned.
        """
        return self._run(arguments.scatter(send, recv, root, self.rank, self.size), options)

    def scatterv(
        self,
        send: Array | None,
        recv: Array | None = None,
        *,
        counts: Numbers | None = None,
        displs: Numbers | None = None,
        root: SupportsIndex = 0,
        **options: Unpack[Options],
    ) -> Array:
        """Do the same as `scatter`, with counts[r] elements for rank r, which are at displs[r] of
        root's send.

        Root needs counts. Without displs the blocks follow each other. On other ranks send, counts
        and displs are ignored, and recv has this rank's block.
        """
        call = blocks.scatterv(send, recv, counts, displs, root, self.rank, self.size)
        return self._run(call, options)

    def alltoall(self, send: Array, recv: Array | None = None, **options: Unpack[Options]) -> Array:
        """Set recv[r * count + i] = rank r's send[rank * count + i], for i < count. Return recv.

        Both have size * count elements. Without recv, the result replaces send.
        """
        return self._run(arguments.alltoall(send, recv, self.size), options)

    def alltoallv(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        send_counts: Numbers,
        recv_counts: Numbers | None = None,
        send_displs: Numbers | None = None,
        recv_displs: Numbers | None = None,
        **options: Unpack[Options],
    ) -> Array:
        """Do the same as `alltoall`, with send_counts[r] elements at send_displs[r] for rank r, and
        recv_counts[r] elements from rank r, stored at recv_displs[r]. Return recv.

        The number of elements that r sends to q is the number that q receives from r. Without
        displacements the blocks follow each other. Without recv, each received block replaces the
        sent block of equal size at the same position, and recv_counts and recv_displs may be
        omitted.
        """
        counts, displs = (send_counts, recv_counts), (send_displs, recv_displs)
        return self._run(blocks.alltoallv(send, recv, counts, displs, self.size), options)

    def barrier(self, **options: Unpack[Options]) -> None:
        """Wait until all ranks have called this."""
        if self._fast_path and not options and self._fast_path.barrier():
            return None
        return self._run(arguments.barrier(), options)

    # ---- messages ----

    def send(
        self,
        array: Any,
        dest: SupportsIndex,
        *,
        tag: SupportsIndex = 0,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Send array to rank dest, which receives it with the same tag, count and dtype. Tags are 0
        or more. Returns when array may be used again, which may be before the message is received.
        """
        return self._run(arguments.send(array, dest, tag, self.size), options)

    def sendrecv(
        self,
        send: Any,
        recv: Array,
        *,
        dest: SupportsIndex,
        source: SupportsIndex | None,
        send_tag: SupportsIndex = 0,
        recv_tag: SupportsIndex = 0,
        **options: Unpack[MessageOptions],
    ) -> Array:
        """Send the array `send` to rank dest, and at the same time receive into `recv` from rank
        source (None: from any rank). Return recv. Their counts may differ."""
        tags = send_tag, recv_tag
        return self._run(arguments.sendrecv(send, recv, dest, source, tags, self.size), options)
