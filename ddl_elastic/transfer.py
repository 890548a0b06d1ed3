"""The state on its way to newcomers: each rank that has it sends an equal part.

The state is one sequence of bytes, its tensors in the order of their names, cut into pieces.
Piece c for the j-th newcomer comes from survivor (c + j) mod D, with its SHA-256. A header comes
first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core import Comm
from ddl_elastic.checkpoint import as_bytes
from ddl_elastic.framework import State, Tensor
from ddl_elastic.reform import Standing

PIECE = 4 << 20  # bytes
WARM_UP = 16 << 20
_HEADER, _PIECES, _DIGESTS, _DONE = 1, 2, 3, 4  # tags

Bytes = npt.NDArray[np.uint8]


def ends(ranks: Sequence[Standing]) -> tuple[list[int], list[int]]:
    """The ranks that have the state, and those that lack it."""
    whole = [rank for rank, each in enumerate(ranks) if each.whole]
    return whole, [rank for rank, each in enumerate(ranks) if not each.whole]


def send(comm: Comm, ranks: Sequence[Standing], state: State, position: dict[str, int]) -> None:
    """This rank's part, to all who lack the state. `position`: where the job is."""
    whole, lacking = ends(ranks)
    own = whole.index(comm.rank)
    if own == 0:
        items = sorted(state.items())
        tensors = [[name, t.dtype, list(t.shape), t.data.nbytes] for name, t in items]
        header = json.dumps({"position": position, "tensors": tensors}).encode()
        for rank in lacking:
            comm.send(np.array([len(header)]), rank, tag=_HEADER)
            comm.send(np.frombuffer(header, np.uint8), rank, tag=_HEADER)
    memory = np.empty(PIECE, np.uint8)
    for number, piece in enumerate(pieces(state)):
        for newcomer, rank in enumerate(lacking):
            if (number + newcomer) % len(whole) == own:
                found = memory[: sum(map(len, piece))]
                send_piece(comm, rank, np.concatenate(piece, out=found))


def send_piece(comm: Comm, rank: int, piece: Bytes) -> None:
    comm.send(piece, rank, tag=_PIECES)
    digest = hashlib.sha256(piece.data).digest()
    comm.send(np.frombuffer(digest, np.uint8), rank, tag=_DIGESTS)


class Receiver:
    """A newcomer's end. Its memory is kept from one state to the next."""

    def __init__(self) -> None:
        self._flat = np.empty(0, np.uint8)

    def receive(self, comm: Comm, ranks: Sequence[Standing]) -> tuple[State, dict[str, int]]:
        """The state, which is valid until the next call, and where the job is. Raises RuntimeError
        for a piece that is not what was sent."""
        whole, lacking = ends(ranks)
        length = np.empty(1, np.int64)
        comm.recv(length, whole[0], tag=_HEADER)
        text = np.empty(int(length[0]), np.uint8)
        comm.recv(text, whole[0], tag=_HEADER)
        header = json.loads(text.tobytes())
        size = sum(length for _, _, _, length in header["tensors"])
        if len(self._flat) != size:
            self._flat = np.empty(size, np.uint8)
        sources = cycle(whole[lacking.index(comm.rank) % len(whole) :] + whole)
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
        return dict(_tensors(header["tensors"], self._flat)), header["position"]


def receive_piece(
    comm: Comm, source: int, piece: Bytes, pool: ThreadPoolExecutor
) -> tuple[Future[bytes], bytes, int]:
    """Into its memory. Returns the digest of what has come, and that of what was sent."""
    digest = np.empty(hashlib.sha256().digest_size, np.uint8)
    comm.recv(piece, source, tag=_PIECES)
    found = pool.submit(lambda: hashlib.sha256(piece.data).digest())
    comm.recv(digest, source, tag=_DIGESTS)
    return found, digest.tobytes(), source


def rehearse(comm: Comm, ranks: Sequence[Standing], state: State) -> None:
    """Send the state as it is now, while it changes, and wait until the newcomers have got it. They
    do not use it, but afterwards all memory is there, which takes longer than the sending."""
    send(comm, ranks, state, {})
    for rank in ends(ranks)[1]:
        comm.recv(np.empty(1, np.uint8), rank, tag=_DONE)


def end_rehearsal(comm: Comm, ranks: Sequence[Standing]) -> None:
    """A newcomer has got it."""
    for rank in ends(ranks)[0]:
        comm.send(np.zeros(1, np.uint8), rank, tag=_DONE)


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
