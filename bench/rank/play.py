"""One rank of one library: does what the scheduler says, and sleeps in between.

    python play.py KIND SOCKET

KIND is the module of this folder that speaks with the library, SOCKET the scheduler's. Lines of
JSON go both ways: see `Worker`.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

from command_loop import run_commands
from data import Data

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def pin() -> None:
    """A core for each rank, as far as there are; before the library starts its threads."""
    rank = next((int(os.environ[v]) for v in _RANK_VARIABLES if v in os.environ), 0)
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})


class Worker:
    """Carries out commands; each has one answer.

    prepare  operation, dtype, bytes: make the buffers
    play     way, iterations, batch: run; answers with the seconds of each iteration, per call
    rest     free the buffers
    """

    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.data: Data | None = None

    def prepare(self, operation: str, dtype: str, bytes: int) -> dict[str, Any]:
        self.data = Data(operation, dtype, bytes, self.peer.rank, self.peer.size)
        self.peer.use(self.data)
        return {}

    def rest(self) -> dict[str, Any]:
        self.peer.use(None)
        self.data = None
        return {}

    def play(self, way: str, iterations: int, batch: int) -> dict[str, Any]:
        data, barrier, clock = self.data, self.peer.barrier, time.perf_counter
        run = self._timed(way, batch)
        seconds = []
        begin = clock()
        for _ in range(iterations):
            data.rewrite()
            barrier()
            seconds.append(run() / batch)
            # Where ranks share a core, one that checks already would keep another from ending.
            barrier()
            data.check()
        return {"seconds": seconds, "wall": clock() - begin}

    def _timed(self, way: str, batch: int) -> Any:
        """A function that makes `batch` calls and returns the seconds they took.

        Reducing in place again and again would make the numbers grow, so there all but the first
        call of a batch take the maximum, which leaves them as they are.
        """
        if way == "c":
            return self.peer.loop(batch)
        first, again = self.peer.calls(way)
        clock, rest = time.perf_counter, range(batch - 1)

        def run() -> float:
            start = clock()
            first()
            for _ in rest:
                again()
            return clock() - start

        return run


def main(kind: str, path: str) -> None:
    """Join the library's ranks, then run the scheduler's commands."""
    if kind != "gloo":  # its thread and the caller's are better off on two cores
        pin()
    os.environ["OMP_NUM_THREADS"] = "1"
    peer = importlib.import_module(kind).join()
    worker = Worker(peer)
    host = os.readlink("/proc/self/ns/net")
    run_commands(
        worker,
        path,
        {"rank": peer.rank, "size": peer.size, "version": peer.version, "host": host},
    )
    peer.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
