# SPDX-License-Identifier: Apache-2.0
"""One rank of one library. It runs the scheduler's commands, and sleeps in between.

    python worker.py KIND SOCKET

KIND is the module of this folder that calls the library: ddl, mpi or pytorch. SOCKET is the path
of the scheduler's Unix socket. BENCH_PIN=1 pins the rank to a core. `Worker` has the commands.
"""

import importlib
import os
import sys
import time
from typing import Any

from command_loop import run_commands
from data import Data

COMPUTING = 0.0005  # seconds before a burst
LATE = 0.2  # seconds by which rank 0 is early
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def pin() -> None:
    rank = next((int(os.environ[v]) for v in _RANK_VARIABLES if v in os.environ), 0)
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})


class Worker:
    """The commands. Each has one answer.

    prepare  operation, dtype, bytes: allocate the buffers
    run      way, iterations, batch: time the calls; the answer has the seconds of each iteration,
             per call
    release  free the buffers
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        self.data: Data | None = None

    def prepare(self, operation: str, dtype: str, bytes: int) -> dict[str, Any]:
        self.data = Data(operation, dtype, bytes, self.library.rank, self.library.size)
        self.library.use(self.data)
        return {}

    def release(self) -> dict[str, Any]:
        self.library.use(None)
        self.data = None
        return {}

    def run(self, way: str, iterations: int, batch: int) -> dict[str, Any]:
        data, barrier, clock = self.data, self.library.barrier, time.perf_counter
        timed = self._timed(way, batch)
        seconds = []
        begin = clock()
        for _ in range(iterations):
            data.rewrite()
            barrier()
            if way == "late" and self.library.rank:
                time.sleep(LATE)
            elif way == "burst":
                end = clock() + COMPUTING
                while clock() < end:
                    pass
            seconds.append(timed() / batch)
            # A rank that checks early would delay another rank on the same core.
            barrier()
            data.check()
        return {"seconds": seconds, "wall": clock() - begin}

    def _timed(self, way: str, batch: int) -> Any:
        """Return a function that makes `batch` calls and returns their seconds.

        Repeated in-place sums would make the numbers grow, so all calls of a batch but the first
        use the maximum, which leaves them unchanged.
        """
        if way in ("c", "burst", "late"):
            return self.library.loop(batch)
        first, again = self.library.calls(way)
        clock, others = time.perf_counter, range(batch - 1)

        def timed() -> float:
            start = clock()
            first()
            for _ in others:
                again()
            return clock() - start

        return timed


def main(kind: str, path: str) -> None:
    if os.environ["BENCH_PIN"] == "1":
        pin()
    os.environ["OMP_NUM_THREADS"] = "1"
    library = importlib.import_module(kind).join()
    worker = Worker(library)
    host = os.readlink("/proc/self/ns/net")
    run_commands(
        worker,
        path,
        {"rank": library.rank, "size": library.size, "version": library.version, "host": host},
    )
    library.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
