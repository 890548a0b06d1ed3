# SPDX-License-Identifier: Apache-2.0
"""The state on its way to newcomers: each rank that has it sends an equal part, beside the steps.

The state is one sequence of bytes, its tensors in the order of their names, cut into pieces.
Piece c comes from survivor c mod D, with a digest of each tensor's part in it. A header comes
first.

What goes on beside the steps stands back behind them, where they need all cores. A digest finds
what memory or a network has changed; it is no protection against anybody, so CRC-32 will do, which
takes a fourth of SHA-256's time.
"""

from __future__ import annotations

import json
import mmap
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate, cycle, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core import Comm
from ddl_core.errors import DdlError
from ddl_elastic.frameworks import threads
from ddl_elastic.frameworks.protocol import State, Tensor
from ddl_elastic.storage.checkpoint import as_bytes

PIECE = 4 << 20  # bytes
WARM_UP = 16 << 20
_HEADER, _PIECES, _DIGESTS = 1, 2, 3  # tags

Bytes = npt.NDArray[np.uint8]
Digests = npt.NDArray[np.uint32]
Parts = list[tuple[str, int]]  # the tensors in a piece, and how many bytes of them are
Part = tuple[Bytes, list[int]]  # a piece, and how long the parts of tensors in it are


class Sender:
    """A rank's part of the state. It is copied between two steps; a thread sends the copy.

    Threads that prepare later plans reserve memory meanwhile. So memory is complete when it is put
    into `_memory`, and a copy takes it out.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._thread: threading.Thread | None = None

    def reserve(self, state: State, ranks: int) -> None:
        """Memory for the part of one of so many ranks, which would take longer than the copy."""
        pieces = -(-sum(len(as_bytes(each)) for each in state.values()) // PIECE)
        # Zeros would be given only when they are written.
        self._memory = np.full(-(-pieces // ranks) * PIECE, 1, np.uint8)

    def send(
        self,
        comm: Comm,
        whole: Sequence[int],
        lacking: Sequence[int],
        state: State,
        where: dict[str, Any],
    ) -> None:
        """Copy this rank's part, and send it to those who lack the state. Those of the ranks
        `whole` send. `where`: the job is then."""
        self.wait()
        own = whole.index(comm.rank)
        header = _header(state, where) if own == 0 else None
        count = len(whole)
        parts = self._copy([each for c, each in enumerate(pieces(state)) if c % count == own])
        self._thread = threading.Thread(
            target=_send, args=(comm, lacking, header, parts), name="ddl state", daemon=True
        )
        self._thread.start()

    def _copy(self, own: Sequence[list[Bytes]]) -> list[Part]:
        memory, self._memory = self._memory, np.empty(0, np.uint8)
        if len(own) * PIECE > len(memory):
            memory = np.empty(len(own) * PIECE, np.uint8)
        found = []
        for number, piece in enumerate(own):
            lengths = [len(part) for part in piece]
            into = memory[number * PIECE :][: sum(lengths)]
            found.append((np.concatenate(piece, out=into), lengths))
        return found

    @property
    def is_sending(self) -> bool:
        """Whether something is under way."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Until nothing is under way."""
        if self._thread:
            self._thread.join()
            self._thread = None


def _header(state: State, where: dict[str, Any]) -> Bytes:
    items = sorted(state.items())
    tensors = [[name, t.dtype, list(t.shape), t.data.nbytes] for name, t in items]
    return np.frombuffer(json.dumps({"where": where, "tensors": tensors}).encode(), np.uint8)


def _send(comm: Comm, lacking: Sequence[int], header: Bytes | None, parts: Sequence[Part]) -> None:
    threads.stand_back()
    with suppress(DdlError):  # the comm is dead: its ranks will begin anew
        if header is not None:
            for rank in lacking:
                comm.send(np.array([len(header)]), rank, tag=_HEADER)
                comm.send(header, rank, tag=_HEADER)
        for piece, lengths in parts:
            found = digests(piece, lengths)
            for rank in lacking:
                send_piece(comm, rank, piece, found)


def send_piece(comm: Comm, rank: int, piece: Bytes, found: Digests) -> None:
    comm.send(piece, rank, tag=_PIECES)
    comm.send(found, rank, tag=_DIGESTS)


def digests(piece: Bytes, lengths: Iterable[int]) -> Digests:
    """Of the parts of tensors in a piece, which are so long."""
    cuts = [0, *accumulate(lengths)]
    return np.array([zlib.crc32(piece[begin:end].data) for begin, end in pairwise(cuts)], np.uint32)


class Receiver:
    """A newcomer's end. Its memory is kept from one state to the next."""

    def __init__(self) -> None:
        self._flat = np.empty(0, np.uint8)

    def reserve(self, state: State) -> None:
        """Memory for one of this size."""
        self._flat = np.full(sum(len(as_bytes(each)) for each in state.values()), 1, np.uint8)

    def receive(self, comm: Comm, whole: Sequence[int]) -> tuple[State, dict[str, Any]]:
        """The state, which is valid until the next call, and where the job is. Raises RuntimeError
        for a tensor that is not what was sent."""
        length = np.empty(1, np.int64)
        comm.recv(length, whole[0], tag=_HEADER)
        text = np.empty(int(length[0]), np.uint8)
        comm.recv(text, whole[0], tag=_HEADER)
        header = json.loads(text.tobytes())
        size = sum(length for _, _, _, length in header["tensors"])
        if len(self._flat) != size:
            self._flat = np.empty(size, np.uint8)
        # One thread receives, the other one compares what has come before.
        with ThreadPoolExecutor(2, initializer=threads.stand_back) as pool:
            pool.submit(self._receive_pieces, comm, whole, header["tensors"], pool).result()
        return dict(_tensors(header["tensors"], self._flat)), header["where"]

    def _receive_pieces(
        self, comm: Comm, whole: Sequence[int], tensors: Sequence[Any], pool: ThreadPoolExecutor
    ) -> None:
        waiting, begin = list[tuple[Future[Digests], Digests, Parts, int]](), 0
        for source, parts in zip(cycle(whole), _parts(tensors), strict=False):
            lengths = [length for _, length in parts]
            piece = self._flat[begin : begin + sum(lengths)]
            begin += len(piece)
            waiting.append((*receive_piece(comm, source, piece, lengths, pool), parts, source))
        for found, sent, parts, source in waiting:
            for (name, _), own, other in zip(parts, found.result(), sent, strict=True):
                if own != other:
                    raise RuntimeError(
                        f"{name} of the state, from rank {source}, is not what was sent"
                    )


def receive_piece(
    comm: Comm, source: int, piece: Bytes, lengths: Sequence[int], pool: ThreadPoolExecutor
) -> tuple[Future[Digests], Digests]:
    """Into its memory. Returns the digests of what has come, and those of what was sent."""
    sent = np.empty(len(lengths), np.uint32)
    comm.recv(piece, source, tag=_PIECES)
    found = pool.submit(digests, piece, lengths)
    comm.recv(sent, source, tag=_DIGESTS)
    return found, sent


def warm_up(comm: Comm) -> None:
    """A sum that nobody needs: the memory that a comm's sums go through is there afterwards."""
    # Of the system: with malloc, each thread that did this would keep as much.
    comm.allreduce(np.frombuffer(mmap.mmap(-1, WARM_UP), np.float32))


def pieces(state: State) -> Iterator[list[Bytes]]:
    """Of PIECE bytes each, but for the last: the parts of tensors that a piece consists of."""
    piece: list[Bytes] = []
    room = PIECE
    for _, tensor in sorted(state.items()):
        rest = as_bytes(tensor)
        while len(rest):
            piece.append(rest[:room])
            room -= len(piece[-1])
            rest = rest[len(piece[-1]) :]
            if not room:
                yield piece
                piece, room = [], PIECE
    if piece:
        yield piece


def _parts(listed: Sequence[Any]) -> Iterator[Parts]:
    """Of each piece."""
    parts, room = Parts(), PIECE
    for name, _, _, size in listed:
        while size:
            parts.append((name, min(size, room)))
            size -= parts[-1][1]
            room -= parts[-1][1]
            if not room:
                yield parts
                parts, room = [], PIECE
    if parts:
        yield parts


def _tensors(listed: Sequence[Any], flat: Bytes) -> Iterator[tuple[str, Tensor]]:
    begin = 0
    for name, dtype, shape, size in listed:
        yield name, Tensor(dtype, tuple(shape), flat[begin : begin + size])
        begin += size
