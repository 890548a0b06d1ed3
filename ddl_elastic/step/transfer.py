# SPDX-License-Identifier: Apache-2.0
"""The transfer of the state to joining workers, in parallel with the steps.

The state is one sequence of bytes: its tensors, sorted by name, cut into pieces. Each rank that has
the state sends an equal part: with D such ranks, piece c comes from number c mod D. A header comes
first. Each piece comes with a digest of each tensor part in it.

The threads have a lower priority than the training steps. The digests detect bits that memory or
the network has changed. They do not protect against attackers, so CRC-32 is enough, which takes a
quarter of SHA-256's time.
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
Parts = list[tuple[str, int]]  # the tensors in a piece, each with its number of bytes there
Part = tuple[Bytes, list[int]]  # a piece, and the lengths of the tensor parts in it


class Sender:
    """The sender of a rank's part of the state, which it copies between two steps.

    A thread sends the copy, while threads for later plans may reserve memory. So `reserve` stores
    memory in `_memory` only when it is complete, and a copy removes it from there.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._thread: threading.Thread | None = None

    def reserve(self, state: State, ranks: int) -> None:
        """Allocate memory for one rank's part, because this takes longer than the copy."""
        pieces = -(-sum(len(as_bytes(each)) for each in state.values()) // PIECE)
        # The system would allocate zeroed memory only when it is written.
        self._memory = np.full(-(-pieces // ranks) * PIECE, 1, np.uint8)

    def send(
        self,
        comm: Comm,
        whole: Sequence[int],
        lacking: Sequence[int],
        state: State,
        where: dict[str, Any],
    ) -> None:
        """Copy this rank's part of the state, and start sending it to the ranks `lacking`. Each
        rank of `whole` sends one part. `where` is the job's position."""
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
        """True while a part is being sent."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the current part is sent."""
        if self._thread:
            self._thread.join()
            self._thread = None


def _header(state: State, where: dict[str, Any]) -> Bytes:
    items = sorted(state.items())
    tensors = [[name, t.dtype, list(t.shape), t.data.nbytes] for name, t in items]
    return np.frombuffer(json.dumps({"where": where, "tensors": tensors}).encode(), np.uint8)


def _send(comm: Comm, lacking: Sequence[int], header: Bytes | None, parts: Sequence[Part]) -> None:
    threads.stand_back()
    with suppress(DdlError):  # the comm is dead: its ranks will start again
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
    """Return the digests of the tensor parts in a piece. `lengths` are the lengths of the parts."""
    cuts = [0, *accumulate(lengths)]
    return np.array([zlib.crc32(piece[begin:end].data) for begin, end in pairwise(cuts)], np.uint32)


class Receiver:
    """The receiver of a joining worker. It reuses its memory for the next state."""

    def __init__(self) -> None:
        self._flat = np.empty(0, np.uint8)

    def reserve(self, state: State) -> None:
        """Allocate memory for a state of this size."""
        self._flat = np.full(sum(len(as_bytes(each)) for each in state.values()), 1, np.uint8)

    def receive(self, comm: Comm, whole: Sequence[int]) -> tuple[State, dict[str, Any]]:
        """Return the state, which is valid until the next call, and the job's position. Raises
        RuntimeError if a tensor differs from the one that was sent."""
        length = np.empty(1, np.int64)
        comm.recv(length, whole[0], tag=_HEADER)
        text = np.empty(int(length[0]), np.uint8)
        comm.recv(text, whole[0], tag=_HEADER)
        header = json.loads(text.tobytes())
        size = sum(length for _, _, _, length in header["tensors"])
        if len(self._flat) != size:
            self._flat = np.empty(size, np.uint8)
        # One thread receives a piece while the other one checks the piece before it.
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
                        f"{name} of the state was changed on the way from rank {source}"
                    )


def receive_piece(
    comm: Comm, source: int, piece: Bytes, lengths: Sequence[int], pool: ThreadPoolExecutor
) -> tuple[Future[Digests], Digests]:
    """Receive a piece. Return the digests of the received bytes, and the sender's digests."""
    sent = np.empty(len(lengths), np.uint32)
    comm.recv(piece, source, tag=_PIECES)
    found = pool.submit(digests, piece, lengths)
    comm.recv(sent, source, tag=_DIGESTS)
    return found, sent


def warm_up(comm: Comm, limit: float | None = None) -> None:
    """Run a sum whose result is not used, so that the comm's memory for sums is allocated. Raises
    TimedOut if it takes more than `limit` seconds (None: no limit)."""
    # Use memory from mmap: with malloc, each thread would keep that much.
    comm.allreduce_async(np.frombuffer(mmap.mmap(-1, WARM_UP), np.float32)).wait(limit)


def pieces(state: State) -> Iterator[list[Bytes]]:
    """Yield the state in pieces, each a list of tensor parts. All but the last have PIECE bytes."""
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
    """Yield the tensor names and lengths of each piece."""
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
