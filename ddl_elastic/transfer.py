"""The state on its way to newcomers: each rank that has it sends an equal part, beside the steps.

The state is one sequence of bytes, its tensors in the order of their names, cut into pieces.
Piece c comes from survivor c mod D, with its SHA-256. A header comes first.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core import Comm
from ddl_core.errors import DdlError
from ddl_elastic.checkpoint import as_bytes
from ddl_elastic.framework import State, Tensor

PIECE = 4 << 20  # bytes
WARM_UP = 16 << 20
_HEADER, _PIECES, _DIGESTS = 1, 2, 3  # tags

Bytes = npt.NDArray[np.uint8]


class Sender:
    """A rank's part of the state. It is copied between two steps; a thread sends the copy."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._thread: threading.Thread | None = None

    def reserve(self, state: State, ranks: int) -> None:
        """Memory for the part of one of so many ranks, which would take longer than the copy."""
        pieces = -(-sum(len(as_bytes(each)) for each in state.values()) // PIECE)
        self._memory = np.zeros(-(-pieces // ranks) * PIECE, np.uint8)
        self._memory.fill(1)  # zeros would be given only when they are written

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
        self._memory = np.empty(0, np.uint8)  # the parts have it
        self._thread = threading.Thread(
            target=_send, args=(comm, lacking, header, parts), name="ddl state", daemon=True
        )
        self._thread.start()

    def _copy(self, own: Sequence[list[Bytes]]) -> list[Bytes]:
        if len(own) * PIECE > len(self._memory):
            self._memory = np.empty(len(own) * PIECE, np.uint8)
        found = []
        for number, piece in enumerate(own):
            into = self._memory[number * PIECE :][: sum(map(len, piece))]
            found.append(np.concatenate(piece, out=into))
        return found

    def wait(self) -> None:
        """Until nothing is under way."""
        if self._thread:
            self._thread.join()
            self._thread = None


def _header(state: State, where: dict[str, Any]) -> Bytes:
    items = sorted(state.items())
    tensors = [[name, t.dtype, list(t.shape), t.data.nbytes] for name, t in items]
    return np.frombuffer(json.dumps({"where": where, "tensors": tensors}).encode(), np.uint8)


def _send(comm: Comm, lacking: Sequence[int], header: Bytes | None, parts: list[Bytes]) -> None:
    with suppress(DdlError):  # the comm is dead: its ranks will begin anew
        if header is not None:
            for rank in lacking:
                comm.send(np.array([len(header)]), rank, tag=_HEADER)
                comm.send(header, rank, tag=_HEADER)
        for piece in parts:
            digest = hashlib.sha256(piece.data).digest()
            for rank in lacking:
                send_piece(comm, rank, piece, digest)


def send_piece(comm: Comm, rank: int, piece: Bytes, digest: bytes) -> None:
    comm.send(piece, rank, tag=_PIECES)
    comm.send(np.frombuffer(digest, np.uint8), rank, tag=_DIGESTS)


class Receiver:
    """A newcomer's end. Its memory is kept from one state to the next."""

    def __init__(self) -> None:
        self._flat = np.empty(0, np.uint8)

    def reserve(self, state: State) -> None:
        """Memory for one of this size."""
        self._flat = np.zeros(sum(len(as_bytes(each)) for each in state.values()), np.uint8)
        self._flat.fill(1)

    def receive(self, comm: Comm, whole: Sequence[int]) -> tuple[State, dict[str, Any]]:
        """The state, which is valid until the next call, and where the job is. Raises RuntimeError
        for a piece that is not what was sent."""
        length = np.empty(1, np.int64)
        comm.recv(length, whole[0], tag=_HEADER)
        text = np.empty(int(length[0]), np.uint8)
        comm.recv(text, whole[0], tag=_HEADER)
        header = json.loads(text.tobytes())
        size = sum(length for _, _, _, length in header["tensors"])
        if len(self._flat) != size:
            self._flat = np.empty(size, np.uint8)
        sources = cycle(whole)
        with ThreadPoolExecutor(1) as pool:  # hashes one piece while the next one comes
            digests = [
                receive_piece(comm, next(sources), self._flat[begin : begin + PIECE], pool)
                for begin in range(0, size, PIECE)
            ]
        for number, (found, sent, source) in enumerate(digests):
            if found.result() != sent:
                raise RuntimeError(
                    f"piece {number} of the state, from rank {source}, is not what was sent"
                )
        return dict(_tensors(header["tensors"], self._flat)), header["where"]


def receive_piece(
    comm: Comm, source: int, piece: Bytes, pool: ThreadPoolExecutor
) -> tuple[Future[bytes], bytes, int]:
    """Into its memory. Returns the digest of what has come, and that of what was sent."""
    digest = np.empty(hashlib.sha256().digest_size, np.uint8)
    comm.recv(piece, source, tag=_PIECES)
    found = pool.submit(lambda: hashlib.sha256(piece.data).digest())
    comm.recv(digest, source, tag=_DIGESTS)
    return found, digest.tobytes(), source


def warm_up(comm: Comm) -> None:
    """A sum that nobody needs: the memory that a comm's sums go through is there afterwards."""
    comm.allreduce(np.zeros(WARM_UP // 4, np.float32))


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


def _tensors(listed: Sequence[Any], flat: Bytes) -> Iterator[tuple[str, Tensor]]:
    begin = 0
    for name, dtype, shape, size in listed:
        yield name, Tensor(dtype, tuple(shape), flat[begin : begin + size])
        begin += size
