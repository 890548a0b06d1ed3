# SPDX-License-Identifier: Apache-2.0
"""Calls of any MPI, through mpi4py."""

from collections.abc import Callable
from functools import partial
from typing import Any

from data import Data
from loop import c_loop
from mpi4py import MPI


class Mpi:
    def __init__(self) -> None:
        self._comm = MPI.COMM_WORLD
        self.rank, self.size = self._comm.rank, self._comm.size
        self.version = MPI.Get_library_version().split("\n")[0].strip("\0 ")
        self.barrier = self._comm.Barrier

    def use(self, data: Data | None) -> None:
        self._data = data
        if data is not None:
            if data.dtype in ("bfloat16", "float16"):
                raise TypeError(f"MPI does not support {data.dtype}")
            self._send = data.send.view(data.dtype)
            self._recv = data.recv.view(data.dtype)

    def calls(self, way: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
        comm, send, recv = self._comm, self._send, self._recv
        waiting = way == "async"
        again = None
        if self._data.operation == "allreduce":
            function = comm.Iallreduce if waiting else comm.Allreduce
            call = partial(function, MPI.IN_PLACE, recv, MPI.SUM)
            again = partial(function, MPI.IN_PLACE, recv, MPI.MAX)
        elif self._data.operation == "reduce_scatter":
            function = comm.Ireduce_scatter_block if waiting else comm.Reduce_scatter_block
            call = partial(function, send, recv, MPI.SUM)
        elif self._data.operation == "allgather":
            call = partial(comm.Iallgather if waiting else comm.Allgather, send, recv)
        elif self._data.operation == "broadcast":
            call = partial(comm.Ibcast if waiting else comm.Bcast, recv, 0)
        elif self._data.operation == "barrier":
            call = comm.Ibarrier if waiting else comm.Barrier
        else:
            call = partial(comm.Ialltoall if waiting else comm.Alltoall, send, recv)
        again = again or call
        if waiting:
            return lambda: call().Wait(), lambda: again().Wait()
        return call, again

    def loop(self, batch: int) -> Callable[[], float]:
        """Return a function that makes `batch` all-reduces in C and returns their seconds
        (loop.h)."""
        return c_loop(MPI._addressof(self._comm), self._recv, batch)

    def leave(self) -> None:
        MPI.Finalize()


join = Mpi
