# SPDX-License-Identifier: Apache-2.0
"""The shards of a job's state on one rank, and their exchange when the group changes.

Each range of the state has several holders, see cut.py. All of them receive the range's gradients
before the vote, and all update it after the vote. The optimizer works elementwise, so the copies
have equal bits, although none is sent. After the update, the other parameters of a rank are stale
until the next operation gathers them.

If the state is lost, each rank drops it with `forget`, and all load a checkpoint. Another death
during this time may prevent some ranks from noticing the loss, so ranks compare the number of times
that they have lost the state.

The first operation in a new comm moves the ranges to their new holders. A rank keeps the ranges
that it held before until a barrier has shown that all ranks have received theirs. The shards that a
rank holds have a generation. If a rank dies during the move, the survivors continue from the newest
generation that all of them have and in which no range is lost. A rank drops the older generation
only if all ranks have the newer one.

In a job with blocks, a rank has memory for the parameters of a block only while it computes with
this block. It reads them from their holders, see reads.py. If a holder dies meanwhile, the rank
continues in the comm of the survivors, before the ranges move, and reads from another holder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core import Comm, Work
from ddl_core.errors import Aborted, DdlError, InvalidState, PeerLost
from ddl_elastic.frameworks.protocol import (
    Array,
    Digest,
    PartialState,
    State,
    Tensor,
    digest_parts,
)
from ddl_elastic.sharded.cut import (
    Move,
    StateLost,
    TensorPiece,
    cut,
    held,
    held_owners,
    pieces,
    plan_moves,
)
from ddl_elastic.sharded.norms import Sums, count_blocks, sum_squares
from ddl_elastic.sharded.protocol import Sharded, ShardSet
from ddl_elastic.sharded.reads import Reads, Span, find_sources
from ddl_elastic.sharded.tables import Bytes, Table, as_bytes, exchange_tables, sharded_names

Slots = dict[tuple[str, str], Array]  # by tensor and name
# What ranks compare before they settle; see Shards._compare.
_NEWEST, _STALE, _LOSSES, _OLDEST, _JOINING, _LOST = range(6)


@dataclass(frozen=True)
class Holding:
    """The shards that a rank holds.

    members  the members among which the state was cut, or None if each rank holds everything
    """

    members: Sequence[int] | None
    shards: ShardSet


class Shards:
    """The shards of the state that this rank holds, and the operations that move, gather and update
    them. Each range has an owner and `copies` other holders. Raises ValueError if copies < 1."""

    def __init__(self, framework: Sharded, copies: int = 1) -> None:
        if copies < 1:
            raise ValueError(f"copies is {copies}; must be at least 1")
        self._framework, self.copies = framework, copies
        self._holdings: dict[int, Holding] = {}  # by generation
        self._comm: Comm | None = None  # the comm between whose ranks the state is cut
        self._results: list[Array] = []  # by array: the result for the intervals that are held
        self._bounds: list[list[int]] = []  # by array
        self._lengths: Sequence[Sequence[int]] = []
        self._blocks: list[list[int]] = []  # by array: the number of blocks in each rank's range
        self._squares: list[Sums] = []  # by array, if gradients are clipped
        self._is_new = False  # True while this rank joins a running job
        self._arrived: tuple[State, dict[str, Any]] = {}, {}  # what this rank has received
        self.where: Callable[[], dict[str, Any]] = dict  # returns the job's position
        # Returns True while a joining rank's program executes code that it has missed.
        self.is_behind: Callable[[], bool] = bool
        # The members that keep the state in the next switch. None if there is no such switch.
        self.keepers: Sequence[int] | None = None
        self._handed: Comm | None = None  # the comm in which the keepers have received the state
        self._losses = 0  # the number of times that the state was lost
        self.is_lost = False  # True from `forget` to `reset`
        self.is_stale = False  # True if the parameters that this rank does not hold are old
        self._exports = self._digests = False  # True to gather the slots in the next operation
        self._table: Table = {}  # of all tensors, if `_slots` is not None
        self._slots: Slots | None = None  # the gathered slots
        self._digest: Digest | None = None  # of the whole state
        self.reads = Reads(framework.values)
        # Returns the comm and the members with which this rank continues to compute after a comm
        # has died, or None if its next operation raises an error. Raises the given error of the
        # comm if this rank does not compute.
        self.follow: Callable[[Comm, DdlError], tuple[Comm, list[int]] | None] = _raise
        self.group: Callable[[], tuple[Comm, Sequence[int]]]  # returns the comm and its members
        self._member = -1  # of this rank
        self._needs_all = False  # True to gather all parameters in the next operation

    def reset(self, shards: ShardSet) -> None:
        """Start from shards that contain the whole state, on all ranks."""
        self._holdings, self._comm, self.is_lost = {0: Holding(None, shards)}, None, False
        self._lengths = self._framework.lengths()
        self.is_stale = False

    def forget(self) -> None:
        """Drop the state after StateLost. Until `reset`, operations gather nothing, and the
        parameters count as up to date, so that the program continues to the end of its step."""
        self._holdings, self._comm, self.is_stale, self._needs_all = {}, None, False, False
        if self._framework.blocks:
            self._framework.blocks.gathered()
        self._losses, self.is_lost = self._losses + 1, True
        self.reads.stop()
        self._framework.abandon()

    def abandon(self) -> None:
        """Discard the gradients, so that the program's next update has no effect."""
        self._framework.abandon()

    @property
    def is_hidden(self) -> bool:
        """True if the program must not use the parameters, because some of them are stale."""
        return self.is_stale and not self.is_behind()

    @property
    def _is_whole(self) -> bool:
        """True if this rank has all current parameters."""
        blocks = self._framework.blocks
        return not self.is_stale and (blocks is None or blocks.are_whole)

    @property
    def _gathers_all(self) -> bool:
        """True if the next operation gathers all parameters that this rank lacks."""
        return self._framework.blocks is None or self._needs_all or self._exports

    @property
    def is_partial(self) -> bool:
        """True if the program must not read all parameters, because this rank lacks some."""
        return not (self._is_whole or self.is_behind())

    @property
    def has_begun(self) -> bool:
        """True once the job has begun its first step."""
        return bool(self._holdings)

    def is_settled(self, comm: Comm) -> bool:
        """Return True if the state is sharded across the ranks of this comm."""
        return self._comm is comm

    def prepare(self, comm: Comm, members: Sequence[int], trains: bool = False) -> None:
        """Move the ranges to their holders if the comm is new, and gather the parameters, in a job
        with blocks only those outside of the blocks. All ranks call it before they compute. Raises
        StateLost on all ranks.

        trains  True in a training step: free the blocks, and let the other ranks read them
        """
        if not (self.has_begun or self.is_lost or self._is_new):
            return
        if self.keepers is not None:
            if self._handed is not comm:
                self._settle(comm, members)
                self._comm, self._handed = None, comm
            return
        blocks, is_settled = self._framework.blocks, self._comm is comm
        if blocks and comm.size > self.copies + 1 and (trains or self.is_stale):
            begins = not self.reads.is_serving
            # Serve first: if a rank dies in the barrier, other ranks may read although this one has
            # not seen the barrier's end.
            self.reads.serve(comm)
            if begins and is_settled:
                comm.barrier()  # the ranks have updated their ranges
        if not is_settled:
            self._settle(comm, members)
        if self.is_lost:
            return
        if self._gathers_all:
            if not self._is_whole:
                self._gather(comm)
        elif self.is_stale:
            self.read(blocks.rest if blocks else ())
            self.is_stale = False
        if blocks and trains:
            blocks.drop()
        if self._exports and self._slots is None:
            self._export(comm)
        if self._digests and self._digest is None:
            self._table = exchange_tables(comm, self.shards.table())
            gather = partial(self._gather_slot, comm)
            self._digest = digest_parts(self._framework.stream(self._table, gather))

    # ---- a step ----

    @property
    def arrays(self) -> int:
        """The number of arrays that are sharded."""
        return len(self._lengths)

    def target(self, number: int) -> tuple[Array, list[int]]:
        """Return the memory for the sum of this rank's range of an array, and the lengths of all
        ranks' ranges."""
        assert self._comm
        bounds = self._bounds[number]
        return self._sum_of(number, self._comm.rank), [
            end - begin for begin, end in pairwise(bounds)
        ]

    def _sum_of(self, number: int, owner: int) -> Array:
        """Return the memory for the sum of the owner's range of an array. This rank holds it."""
        assert self._comm
        bounds, comm = self._bounds[number], self._comm
        lower = (each for each in held_owners(comm.rank, comm.size, self.copies) if each < owner)
        begin = sum(bounds[each + 1] - bounds[each] for each in lower)
        return self._results[number][begin:][: bounds[owner + 1] - bounds[owner]]

    def spread(self) -> list[Work[Any]]:
        """Start to send the sums of this rank's ranges to their other holders."""
        comm, works = self._comm, list[Work[Any]]()
        assert comm
        for number in range(self.arrays):
            own = self._sum_of(number, comm.rank)
            for distance in range(1, min(self.copies, comm.size - 1) + 1):
                source = (comm.rank - distance) % comm.size
                copy = self._sum_of(number, source)
                if copy.size:
                    works.append(comm.recv_async(copy, source))
                if own.size:
                    works.append(comm.send_async(own, (comm.rank + distance) % comm.size))
        return works

    def gather_squares(self) -> None:
        """Gather the sums of the squares of all gradients if the job clips them. Ranks do this
        before the vote, so that a death after it cannot prevent the update."""
        comm = self._comm
        assert comm
        if self._framework.clipping.limit is None:
            return
        self._squares = []
        for number, counts in enumerate(self._blocks):
            squares, own = np.empty(sum(counts)), self._sum_of(number, comm.rank)
            begin = sum(counts[: comm.rank])
            for piece in (each for each in self.owned() if each.array == number):
                sums = sum_squares(own[: piece.end - piece.begin])
                squares[begin : begin + sums.size] = sums
                begin, own = begin + sums.size, own[piece.end - piece.begin :]
            comm.allgatherv(squares, counts=counts)
            self._squares.append(squares)

    def squares(self) -> list[Sums]:
        """Return the sums of squares of each tensor's gradients, in the order of the arrays."""
        return [
            sums
            for lengths, squares in zip(self._lengths, self._squares, strict=True)
            for sums in np.split(squares, [*accumulate(map(count_blocks, lengths))][:-1])
        ]

    def result(self, number: int) -> Array:
        """Return the result of an array for the intervals that this rank holds, ascending."""
        return self._results[number]

    def updated(self) -> None:
        """Record that the ranks update the parameters that they hold, or have updated them."""
        self._slots = None
        self.is_stale = self._comm is not None and self._comm.size > self.copies + 1

    def _gather(self, comm: Comm) -> None:
        for values, bounds in zip(self._framework.values(), self._bounds, strict=True):
            counts = [end - begin for begin, end in pairwise(bounds)]
            comm.allgatherv(values, counts=counts)
        self.is_stale = self._needs_all = False
        if self._framework.blocks:
            self._framework.blocks.gathered()

    def gather(self, finish: Callable[[], object]) -> None:
        """Gather all parameters. `finish` runs an operation of all ranks."""
        self._needs_all = True
        try:
            finish()
        finally:
            self._needs_all = False

    # ---- blocks ----

    def read(self, spans: Sequence[Span]) -> None:
        """Read the parts of these spans that this rank does not hold from ranks that hold them.

        If all holders of a part have died, or this rank cannot continue with the survivors, the
        part stays NaN. The share that is computed from it is not used then, because this
        rank's next operation raises the error.
        """
        holders, (comm, members) = self._newest.members, self.group()
        assert holders
        while True:
            try:
                held_by = holders, members, self._member, self.copies
                parts = find_sources(spans, self._bounds, *held_by)
                self.reads.read(comm, parts)
                return
            except (PeerLost, Aborted, InvalidState) as error:
                dead = error  # InvalidState: the watch has closed the comm
            following = self.follow(comm, dead)
            if following is None:
                return
            comm, members = following

    # ---- a new group ----

    def _settle(self, comm: Comm, members: Sequence[int]) -> None:
        self._slots = self._digest = None
        found = self._compare(comm)
        if self.is_lost:
            self._comm = comm
            return
        is_old = found[:, _JOINING] == 0
        if not is_old.any():
            raise StateLost("no member that has the state is left")
        first, source = int(is_old.argmax()), 0
        before: Sequence[int] | None = None
        if not self._is_new:
            source = self._choose(found, members)
            before = self._holdings[source].members
        if not is_old.all():
            source, before = self._send_replicated(comm, first, source, before, found, members)
        lacking = _lacking(found, members, source)
        self._holdings = {
            g: each
            for g, each in self._holdings.items()
            if g <= source and members[comm.rank] not in lacking
        }
        own = self._holdings[source].shards if self._holdings else self._framework.make([], {})
        keepers = [each for each in members if each in (self.keepers or members)] or members
        moves = plan_moves(self._lengths, before, members, keepers, lacking, self.copies)
        table = own.table()
        if before is not None:
            table = exchange_tables(comm, table)
        member = members[comm.rank]
        found_pieces = self._held(keepers.index(member), len(keepers)) if member in keepers else []
        shards = self._framework.make(found_pieces, table)
        self._move(comm, moves, table, own, shards)
        self._holdings[source + 1] = Holding([*keepers], shards)
        comm.barrier()  # all ranks have received their ranges
        self.is_stale, self._is_new = bool(found[:, _STALE].any()), False
        # A joining rank needs copies of all parameters, see `arrived`.
        self._needs_all = bool((found[:, _STALE] == 2).any() or not is_old.all())
        self._member = member
        if self.keepers is not None:
            return  # keep the older ranges, too: the keepers may die before the switch
        self._holdings = {source + 1: self._holdings[source + 1]}
        self._framework.install(shards)
        self._bounds = [cut(each, comm.size) for each in self._lengths]
        self._blocks = [
            [
                sum(count_blocks(piece.end - piece.begin) for piece in pieces(0, lengths, interval))
                for interval in pairwise(bounds)
            ]
            for lengths, bounds in zip(self._lengths, self._bounds, strict=True)
        ]
        self._results = [
            np.empty(
                sum(end - begin for begin, end in held(bounds, comm.rank, self.copies)),
                values.dtype,
            )
            for bounds, values in zip(self._bounds, self._framework.values(), strict=True)
        ]
        self._comm = comm

    def _send_replicated(
        self,
        comm: Comm,
        first: int,
        source: int,
        before: Sequence[int] | None,
        found: npt.NDArray[np.int64],
        members: Sequence[int],
    ) -> tuple[int, Sequence[int]]:
        """Broadcast from rank `first` the source generation, the members among which the state was
        cut and, if joining ranks lack this generation, the unsharded state and the job's position.
        Return the generation and the members. A joining rank that has the generation from an
        earlier attempt keeps what it received then, because the other ranks may have continued."""
        text, data = np.empty(0, np.uint8), np.empty(0, np.uint8)
        if comm.rank == first:
            lacking = _lacking(found, members, source)
            state = sorted(self._framework.replicated().items()) if lacking else []
            tensors = [[n, each.dtype, [*each.shape], each.data.nbytes] for n, each in state]
            before = [members[first]] if before is None else before
            header = {"source": source, "before": before, "where": self.where(), "tensors": tensors}
            text = np.frombuffer(json.dumps(header).encode(), np.uint8).copy()
            data = np.concatenate([np.empty(0, np.uint8), *(as_bytes(e.data) for _, e in state)])
        lengths = np.array([text.size, data.size], np.int64)
        comm.broadcast(lengths, first)
        if comm.rank != first:
            text, data = (np.empty(int(each), np.uint8) for each in lengths)
        comm.broadcast(text, first)
        comm.broadcast(data, first)
        header = json.loads(text.tobytes())
        if members[comm.rank] in _lacking(found, members, header["source"]):
            arrived, begin = State(), 0
            for name, dtype, shape, size in header["tensors"]:
                arrived[name] = Tensor(dtype, tuple(shape), data[begin : begin + size])
                begin += size
            self._arrived = arrived, header["where"]
        return header["source"], header["before"]

    # ---- a joining rank ----

    def join(self) -> None:
        """Drop the initial state: this rank joins a running job, and receives its ranges from the
        other ranks in the next `prepare`."""
        self._holdings, self._comm, self._is_new, self.is_stale = {}, None, True, True

    def arrived(self) -> tuple[PartialState, dict[str, Any]]:
        """Return what this rank has received in addition to its ranges: the unsharded state,
        together with copies of all parameters, and the job's position."""
        state, where = self._arrived
        return PartialState({**state, **self._framework.parameters()}), where

    def needs_hand_over(self, members: Sequence[int]) -> bool:
        """Return True if some range would have too few holders among these members."""
        return self.has_begun and not {*(self._newest.members or ())} <= {*members}

    # ---- in any group ----

    def _choose(self, found: npt.NDArray[np.int64], members: Sequence[int]) -> int:
        """Return the newest generation that all ranks except joining ones have, and in which no
        range is lost. If there is none, return the newest generation that all of them have."""
        old = found[found[:, _JOINING] == 0]
        newest, oldest = int(old[:, _NEWEST].min()), int(old[:, _OLDEST].max())
        for generation in range(newest, oldest - 1, -1):
            holding = self._holdings.get(generation)
            lacking = _lacking(found, members, generation)
            if holding and not self._is_lost_in(holding, [m for m in members if m not in lacking]):
                return generation
        return newest

    def _is_lost_in(self, holding: Holding, members: Sequence[int]) -> bool:
        if holding.members is None:
            return False
        try:
            keeper, copies = [members[0]], self.copies
            plan_moves(self._lengths, holding.members, members, keeper, copies=copies)
        except StateLost:
            return True
        return False

    def _compare(self, comm: Comm) -> npt.NDArray[np.int64]:
        """Return a table with a row for each rank and the columns below.

        _NEWEST   its newest generation
        _STALE    1 if its parameters are stale, 2 if it must also gather those of blocks
        _LOSSES   the number of times that it has lost the state
        _OLDEST   its oldest generation
        _JOINING  1 if it is joining
        _LOST     1 if it has no state after a loss

        If the state is lost, raises StateLost on the ranks that have not dropped it yet, and on
        joining ranks. The other ranks wait until all have dropped it.
        """
        newest = max(self._holdings, default=-1 if self._is_new else 0)
        oldest, stale = min(self._holdings, default=0), int(self.is_stale)
        if self._gathers_all and not self._is_whole:
            stale = 2
        own = np.array([newest, stale, self._losses, oldest, self._is_new, self.is_lost], np.int64)
        found = np.empty((comm.size, own.size), np.int64)
        while True:
            comm.allgather(own, found.reshape(-1))
            losses = found[found[:, _JOINING] == 0, _LOSSES]
            if self._is_new and found[:, _LOST].any():
                raise StateLost("the other members have lost the state")
            if self._is_new and losses.size:
                self._losses = int(losses.max())
            if losses.size and losses.max() > self._losses:
                raise StateLost("other members have lost the state")
            if not losses.size or losses.min() == losses.max():
                return found

    def _held(self, rank: int, ranks: int) -> list[TensorPiece]:
        return [
            piece
            for array, lengths in enumerate(self._lengths)
            for interval in held(cut(lengths, ranks), rank, self.copies)
            for piece in pieces(array, lengths, interval)
        ]

    def _move(
        self, comm: Comm, moves: Sequence[Move], table: Table, before: ShardSet, after: ShardSet
    ) -> None:
        sent: list[list[Bytes]] = [[] for _ in range(comm.size)]
        received: list[list[Array]] = [[] for _ in range(comm.size)]
        for source, target, piece in moves:
            if comm.rank not in (source, target):
                continue
            names = sharded_names(table, piece)
            if source == target:
                for name in names:
                    after.slot(piece, name)[:] = before.slot(piece, name)
            elif source == comm.rank:
                sent[target] += map(as_bytes, self._arrays(before, piece, names))
            else:
                received[source] += self._arrays(after, piece, names)
        send = np.concatenate([np.empty(0, np.uint8), *(each for part in sent for each in part)])
        counts = [sum(each.nbytes for each in part) for part in received]
        recv = np.empty(sum(counts), np.uint8)
        comm.alltoallv(
            send,
            recv,
            send_counts=[sum(each.nbytes for each in part) for part in sent],
            recv_counts=counts,
        )
        begin = 0
        for each in (each for part in received for each in part):
            as_bytes(each)[:] = recv[begin : begin + each.nbytes]
            begin += each.nbytes

    def _arrays(self, shards: ShardSet, piece: TensorPiece, names: Sequence[str]) -> list[Array]:
        """Return the parameters and the slots of a piece."""
        begin = sum(self._lengths[piece.array][: piece.tensor])
        values = self._framework.values()[piece.array][begin:][piece.begin : piece.end]
        return [values, *(shards.slot(piece, name) for name in names)]

    # ---- the whole state ----

    def owned(self) -> list[TensorPiece]:
        """Return the pieces of this rank's own ranges."""
        if self._comm is None:
            return self._held(0, 1)
        return [
            piece
            for array, (lengths, bounds) in enumerate(zip(self._lengths, self._bounds, strict=True))
            for piece in pieces(
                array, lengths, (bounds[self._comm.rank], bounds[self._comm.rank + 1])
            )
        ]

    @property
    def shards(self) -> ShardSet:
        """The shards that this rank holds."""
        return self._newest.shards

    @property
    def _newest(self) -> Holding:
        return self._holdings[max(self._holdings)]

    def own_state(self) -> State:
        """Return the part of the state that this rank writes to a checkpoint."""
        if not self.has_begun:
            return self._framework.state()
        return self._framework.own_state(self.owned(), self._comm is None or self._comm.rank == 0)

    def whole(self) -> tuple[Table, Callable[[str, str], Array]]:
        """Return the table of all tensors, and a function that returns a sharded slot by tensor and
        name. The table is empty after a loss, and in a joining rank whose program is behind. Raises
        RuntimeError if this rank does not have the slots."""
        if self.is_lost or self.is_behind():
            return {}, lambda *key: np.empty(0)
        holding, slots, table = self._newest, self._slots, self._table
        if holding.members is None:
            shards, table = holding.shards, holding.shards.table()
            slots = {
                (f"{piece.array}.{piece.tensor}", name): shards.slot(piece, name)
                for piece in self._held(0, 1)
                for name in sharded_names(table, piece)
            }
        if slots is None:
            raise RuntimeError("the state is sharded: call job.state() on all ranks")
        return table, lambda *key: slots[key]

    def export(self, finish: Callable[[], object]) -> None:
        """Gather all slots on each rank, for `whole`. `finish` runs an operation of all ranks."""
        self._exports = True
        try:
            finish()
        finally:
            self._exports = False

    def find_digest(self, finish: Callable[[], object]) -> Digest:
        """Return the digest of the whole state. `finish` runs an operation of all ranks."""
        self._digests, self._digest = True, None
        try:
            finish()
        finally:
            self._digests = False
        assert self._digest
        return self._digest

    def _export(self, comm: Comm) -> None:
        self._table = exchange_tables(comm, self.shards.table())
        self._slots = {
            (key, name): self._gather_slot(comm, key, name)
            for key, slots in self._table.items()
            for name in slots
            if slots[name].keys() == {"dtype"}
        }

    def _gather_slot(self, comm: Comm, key: str, name: str) -> Array:
        """Return a slot of a whole tensor, or its parameter if `name` is "". All ranks call it."""
        array, tensor = map(int, key.split("."))
        begin, length = sum(self._lengths[array][:tensor]), self._lengths[array][tensor]
        bounds = [min(max(b - begin, 0), length) for b in self._bounds[array]]
        values = self._framework.values()[array][begin:]
        whole = np.empty(length, self._table[key][name]["dtype"] if name else values.dtype)
        first, last = bounds[comm.rank : comm.rank + 2]
        if first < last:
            piece = TensorPiece(array, tensor, first, last)
            whole[first:last] = self.shards.slot(piece, name) if name else values[first:last]
        comm.allgatherv(whole, counts=[last - first for first, last in pairwise(bounds)])
        return whole


def _lacking(found: npt.NDArray[np.int64], members: Sequence[int], generation: int) -> list[int]:
    """Return the joining members that have not received this generation."""
    return [
        m
        for m, row in zip(members, found, strict=True)
        if row[_JOINING] and row[_NEWEST] != generation
    ]


def _raise(_: Comm, error: DdlError) -> None:
    raise error
