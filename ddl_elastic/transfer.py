"""The state on its way to newcomers: each rank that has it sends an equal part.

The state is one sequence of bytes, its tensors in the order of their names, cut into pieces.
Piece c for the j-th newcomer comes from survivor (c + j) mod D, with its SHA-256. A header comes
first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core import Comm
from ddl_elastic.checkpoint import as_bytes
from ddl_elastic.framework import State, Tensor
from ddl_elastic.reform import Standing

PIECE = 4 << 20  # bytes
_HASH = hashlib.sha256().digest_size
_HEADER, _PIECES = 1, 2  # tags

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
        tensors = [
            [name, t.dtype, list(t.shape), t.data.nbytes] for name, t in sorted(state.items())
        ]
        header = json.dumps({"position": position, "tensors": tensors}).encode()
        for rank in lacking:
            comm.send(np.array([len(header)]), rank, tag=_HEADER)
            comm.send(np.frombuffer(header, np.uint8), rank, tag=_HEADER)
    for number, piece in enumerate(pieces(state)):
        for newcomer, rank in enumerate(lacking):
            if (number + newcomer) % len(whole) == own:
                send_piece(comm, rank, piece)


def send_piece(comm: Comm, rank: int, piece: list[Bytes]) -> None:
    found = np.concatenate(piece)
    digest = np.frombuffer(hashlib.sha256(found.data).digest(), np.uint8)
    comm.send(np.concatenate([digest, found]), rank, tag=_PIECES)


def receive(comm: Comm, ranks: Sequence[Standing]) -> tuple[State, dict[str, int]]:
    """The state and where the job is. Raises RuntimeError for a piece that is not what was sent."""
    whole, lacking = ends(ranks)
    length = np.empty(1, np.int64)
    comm.recv(length, whole[0], tag=_HEADER)
    text = np.empty(int(length[0]), np.uint8)
    comm.recv(text, whole[0], tag=_HEADER)
    header = json.loads(text.tobytes())
    flat = np.empty(sum(size for _, _, _, size in header["tensors"]), np.uint8)
    for number, begin in enumerate(range(0, len(flat), PIECE)):
        source = whole[(number + lacking.index(comm.rank)) % len(whole)]
        part = flat[begin : begin + PIECE]
        receive_piece(comm, source, part, number)
    return dict(_tensors(header["tensors"], flat)), header["position"]


def receive_piece(comm: Comm, source: int, part: Bytes, number: int) -> None:
    found = np.empty(_HASH + len(part), np.uint8)
    comm.recv(found, source, tag=_PIECES)
    part[:] = found[_HASH:]
    if hashlib.sha256(part.data).digest() != found[:_HASH].tobytes():
        raise RuntimeError(f"piece {number} of the state, from rank {source}, is not what was sent")


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
