# SPDX-License-Identifier: Apache-2.0
"""Groups of operations that are submitted as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from ddl_core import options
from ddl_core.base import fork_guard
from ddl_core.base._lib import check, ffi, lib
from ddl_core.calls import arguments
from ddl_core.calls.arguments import Call
from ddl_core.errors import InvalidArgument, InvalidState
from ddl_core.handles.comm_handle import CommHandle, GroupHandle
from ddl_core.handles.work import Work
from ddl_core.operations import Operations

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddl_core.options import MessageOptions, Options

Result = TypeVar("Result")


class Received:
    """A receive in a group. `source` is the sender's rank, or None until it is known."""

    __slots__ = ("_sender",)

    def __init__(self, sender: Any) -> None:
        self._sender = sender

    @property
    def source(self) -> int | None:
        """The sender's rank; None while the group is not complete."""
        return None if self._sender[0] < 0 else int(self._sender[0])

    def __repr__(self) -> str:
        return f"<ddl_core.Received, source {self.source}>"


class Group(Operations):
    """Operations of one comm that are submitted as one, in the order of the calls.

    Small all-reduces of equal dtype and op are sent together. Created by `Comm.group`; a context
    manager.

        with comm.group() as g:
            g.allreduce(a)
            g.allreduce(b)
        # here both are complete

    The end of the block submits the operations that are not yet submitted, and waits. After an
    exception it does not. All members collect the same operations in the same order. The methods
    are the same as in Comm, with the same errors for wrong arguments, but they only collect: the
    arrays that they return have the results after the submission. They accept the options prescale,
    postscale and wire; timeout, name and stream are options of `submit`. All arrays are in host
    memory, or all on one GPU.

    A complete group may be submitted again, with the present contents of its arrays, or get further
    operations. An active group raises InvalidState. Arrays stay alive as long as the group. A group
    must not be used by several threads at once.
    """

    def __init__(self, comm: CommHandle) -> None:
        self._comm = comm
        self._group = GroupHandle(comm)
        self._work: Work[None] | None = None
        self._open = False  # whether operations are collected and not yet submitted
        self.rank, self.size = comm.rank, comm.size

    def recv(
        self,
        array: Any,
        source: SupportsIndex | None = None,
        *,
        tag: SupportsIndex = 0,
        **options: Unpack[MessageOptions],
    ) -> Received:
        """Collect a receive. The returned object has the source after the submission."""
        call = arguments.recv(array, source, tag, self.size)
        self._run(call, options)
        return Received(call.sender)

    def submit(self, **options: Unpack[Options]) -> None:
        """Run the collected operations, and return when all of them are complete.

        timeout   for all operations together
        name      only for groups without messages
        stream    for arrays on a GPU: the stream of the submission, which reads the arrays'
                  contents at that time

        Raises the operations' errors.
        """
        self.submit_async(**options).wait()

    def submit_async(self, **options: Unpack[Options]) -> Work[None]:
        """Start `submit`."""
        own = self._idle()

        def submit(_comm: Any, native: Any, slot: Any) -> int:
            status: int = lib.ddl_group_submit(own.handle, native, slot)
            return status

        buffers = [buffer for call in own.calls for buffer in call.buffers]
        self._work = self._comm._start(Call(submit, (), None, buffers, keep=own), options)
        own.submitted(self._work)
        self._open = False
        return self._work

    def close(self) -> None:
        """Release the arrays. Raises InvalidState while the group is active. A second call does
        nothing."""
        if self._group.handle is not None:
            self._idle().destroy()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        if kind is None and self._open:
            self.submit()

    __reduce__ = fork_guard.refuse_copy

    def __repr__(self) -> str:
        return f"<ddl_core.Group of {self._comm!r}, {len(self._group.calls)} operations>"

    def _run(self, call: Call[Result], given: MessageOptions) -> Result:
        wrong = {k for k, v in given.items() if v is not None} - {"prescale", "postscale", "wire"}
        if wrong:
            raise InvalidArgument(
                f"{min(wrong)} cannot be set for an operation of a group; pass it to submit()"
            )
        own = self._idle()
        native = options.native(given, call.buffers, own.handle)
        with self._comm._held() as comm:
            check(call.function(comm, *call.arguments, native.pointer, ffi.NULL))
        own.calls.append(call)
        self._open = True
        return call.result

    def _idle(self) -> GroupHandle:
        if self._work is not None and not self._work.done():
            raise InvalidState("the group is active: wait for its work first")
        if self._comm._handle is None:
            raise InvalidState("the comm is closed")
        if self._group.handle is None:
            raise InvalidState("the group is closed")
        return self._group
