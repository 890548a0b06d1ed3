# SPDX-License-Identifier: Apache-2.0
"""Functions that perform each operation after the members have exchanged their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

from ddl_core import Comm
from ddl_core.adapter_arrays import allreduce_together
from ddl_horovod.common import parts
from ddl_horovod.executor import MemberCall, Perform

if TYPE_CHECKING:
    from ddl_core.base.names import Op, Wire

Array = np.ndarray[Any, Any]


def dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy or ml_dtypes type of this name."""
    return np.dtype(getattr(ml_dtypes, name, name))


def _lower(op: str) -> Op:
    return cast("Op", op.lower())


def allreduce(arrays: list[Array], op: str, prescale: float, postscale: float) -> Perform:
    def perform(comm: Comm, calls: list[MemberCall]) -> list[Array]:
        sent = [_scaled(array, prescale) for array in arrays]
        if op == "Adasum":
            results = [_adasum(array, comm) for array in sent]
        else:
            results = allreduce_together(comm, sent, _lower(op))
        return [_scaled(result, postscale) for result in results]

    return perform


def allreduce_packed(arrays: list[Array], op: str, wire: Wire) -> Perform:
    """Reduce a flat array of float32 in this wire format. `arrays` are it and its residual; the
    results are their new values."""

    def perform(comm: Comm, calls: list[MemberCall]) -> list[Array]:
        flat, residual = (each.copy() for each in arrays)
        comm.allreduce(flat, op=_lower(op), residual=residual, wire=wire)
        return [flat, residual]

    return perform


def allgather(arrays: list[Array]) -> Perform:
    """Concatenate the members' arrays, whose numbers of rows may differ. A joined member has no
    rows."""

    def perform(comm: Comm, calls: list[MemberCall]) -> list[Array]:
        results = []
        for number, array in enumerate(arrays):
            rows = [call.shapes[number][0] if call.shapes else 0 for call in calls]
            result = np.empty((sum(rows), *array.shape[1:]), array.dtype)
            comm.allgatherv(array, result, counts=_counts(rows, array))
            results.append(result)
        return results

    return perform


def broadcast(array: Array, root: int) -> Perform:
    """Broadcast the array of the member `root`, a rank within the set."""

    def perform(comm: Comm, calls: list[MemberCall]) -> list[Array]:
        return [comm.broadcast(array.copy(), root)]

    return perform


def alltoall(array: Array, rank: int) -> Perform:
    def perform(comm: Comm, calls: list[MemberCall]) -> list[Array]:
        received = [call.splits[rank] for call in calls]
        result = np.empty((sum(received), *array.shape[1:]), array.dtype)
        comm.alltoallv(
            array[: sum(calls[rank].splits)],
            result,
            send_counts=_counts(calls[rank].splits, array),
            recv_counts=_counts(received, array),
        )
        return [result, np.array(received, np.int32)]

    return perform


def reducescatter(arrays: list[Array], op: str, prescale: float, postscale: float) -> Perform:
    """Reduce and scatter the rows. The first members get one row more if the rows cannot be divided
    equally."""

    def perform(comm: Comm, calls: list[MemberCall]) -> list[Array]:
        results = []
        for array in arrays:
            rows = parts(len(array), comm.size)
            result = np.empty((rows[comm.rank], *array.shape[1:]), array.dtype)
            counts = _counts(rows, array)
            comm.reduce_scatterv(_scaled(array, prescale), result, counts=counts, op=_lower(op))
            results.append(_scaled(result, postscale))
        return results

    return perform


def barrier(comm: Comm, calls: list[MemberCall]) -> None:
    comm.barrier()


def _counts(rows: list[int], array: Array) -> list[int]:
    elements = int(np.prod(array.shape[1:], dtype=np.int64))
    return [each * elements for each in rows]


def _scaled(array: Array, factor: float) -> Array:
    """Multiply an array by a factor that may be outside the range of the array's type."""
    if factor == 1:
        return array
    small = array.dtype.itemsize < 4 and array.dtype.kind not in "iub"
    wide = array.astype(np.float32) if small else array
    return np.asarray(wide * factor).astype(array.dtype)


def _adasum(array: Array, comm: Comm) -> Array:
    """Combine gradients in pairs: orthogonal gradients are added, parallel ones are averaged. The
    number of members must be a power of two."""
    everyone = np.empty((comm.size, *array.shape), array.dtype)
    comm.allgather(array, everyone)
    vectors = [each.astype(np.float64) for each in everyone]
    while len(vectors) > 1:
        vectors = [_adasum_pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0].astype(array.dtype)


def _adasum_pair(a: Array, b: Array) -> Array:
    product, norm_a, norm_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
    share_a = 1 - product / (2 * norm_a) if norm_a > 0 else 1.0
    share_b = 1 - product / (2 * norm_b) if norm_b > 0 else 1.0
    return np.asarray(share_a * a + share_b * b)
