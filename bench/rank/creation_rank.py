# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/creation.py: times init and the creation of groups.

    python creation_rank.py KIND SOCKET

KIND is the backend of the default process group, ddl or gloo. SOCKET is the path of the
scheduler's Unix socket.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from command_loop import run_commands


class CreationWorker:
    """The commands. Each has one answer.

    load    load the native part of ddl_torch
    init    port: the seconds of init_process_group
    join    port: create the default group, which `create` needs
    create  what: the seconds, or the processor time, for the creation of one group of all ranks
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._comm: Any = None
        self._data = torch.zeros(1 << 18)

    def load(self) -> dict[str, Any]:
        if self.kind == "ddl":
            from ddl_torch import _build

            _build.module()
        return {}

    def init(self, port: int) -> dict[str, Any]:
        os.environ["MASTER_PORT"] = str(port)
        start = time.perf_counter()
        dist.init_process_group(self.kind)
        seconds = time.perf_counter() - start
        dist.barrier()
        return {"seconds": seconds}

    def join(self, port: int) -> dict[str, Any]:
        os.environ["MASTER_PORT"] = str(port)  # another port than for ddl_core's rendezvous
        dist.init_process_group(self.kind)
        if self.kind == "ddl":
            import ddl_core

            self._comm = ddl_core.init()
        return {}

    def create(self, what: str) -> dict[str, Any]:
        if what == "alone":
            return {"seconds": self._reduce(lambda: False)}
        dist.barrier()
        if what == "beside":
            with ThreadPoolExecutor(1) as background:
                creation = background.submit(self._make, what)
                seconds = self._reduce(creation.done)
                made = creation.result()
        else:
            clock = time.process_time if what == "processor" else time.perf_counter
            start = clock()
            made = self._make(what)
            seconds = clock() - start
        dist.barrier()
        if self._is_native(what):
            made.close()
        else:
            dist.destroy_process_group(made)
        return {"seconds": seconds}

    def _is_native(self, what: str) -> bool:
        return self.kind == "ddl" and what != "new_group"

    def _make(self, what: str) -> Any:
        if not self._is_native(what):
            return dist.new_group()
        return self._comm.split(0) if what == "split" else self._comm.duplicate()

    def _reduce(self, over: Callable[[], bool]) -> float:
        """Return the median of the seconds of an all-reduce. Of 100 all-reduces, only those that
        begin before `over()` returns True count."""
        taken = []
        for _ in range(100):
            start, counts = time.perf_counter(), not (taken and over())
            dist.all_reduce(self._data)
            if counts:
                taken.append(time.perf_counter() - start)
        return statistics.median(taken)


def main(kind: str, path: str) -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    about = {"rank": rank, "size": size, "version": torch.__version__}
    run_commands(CreationWorker(kind), path, {**about, "host": os.readlink("/proc/self/ns/net")})
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
