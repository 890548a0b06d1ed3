# SPDX-License-Identifier: Apache-2.0
"""Calls of torch.distributed, with the backend $BENCH_BACKEND."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from data import Data


class PyTorch:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        backend = os.environ["BENCH_BACKEND"]
        if backend == "ddl":
            import ddl_torch  # noqa: F401
        elif backend == "ucx":
            import commux

            commux.register()
        dist.init_process_group(backend, init_method="env://")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.version = torch.__version__
        self.barrier = dist.barrier

    def use(self, data: Data | None) -> None:
        self._data = data
        if data is None:
            self._send = self._recv = None
            return
        dtype = getattr(torch, data.dtype)
        self._send = torch.from_numpy(data.send).view(dtype)
        self._recv = torch.from_numpy(data.recv).view(dtype)

    def calls(self, way: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
        send, recv = self._send, self._recv
        again = None
        if self._data.operation == "allreduce":
            call = partial(dist.all_reduce, recv)
            again = partial(dist.all_reduce, recv, op=dist.ReduceOp.MAX)
        elif self._data.operation == "reduce_scatter":
            call = partial(dist.reduce_scatter_tensor, recv, send)
        elif self._data.operation == "allgather":
            call = partial(dist.all_gather_into_tensor, recv, send)
        elif self._data.operation == "broadcast":
            call = partial(dist.broadcast, recv, 0)
        elif self._data.operation == "barrier":
            call = dist.barrier
        else:
            call = partial(dist.all_to_all_single, recv, send)
        again = again or call
        if way == "async":
            return _waiting(call), _waiting(again)
        return call, again

    def leave(self) -> None:
        dist.destroy_process_group()


def _waiting(call: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: call(async_op=True).wait()


join = PyTorch
