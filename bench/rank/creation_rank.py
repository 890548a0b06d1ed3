"""One rank of bench/creation.py: times init and the creation of groups.

    python creation_rank.py KIND SOCKET

KIND is the backend of the default process group, ddl or gloo. SOCKET is the path of the
scheduler's Unix socket.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from command_loop import run_commands


class CreationWorker:
    """The commands; each has one answer.

    init    port: the seconds of init_process_group in a forked process that has imported torch
    join    port: make the default group, which `create` needs
    create  what: the seconds that the creation of one group of all ranks takes
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._comm: Any = None

    def init(self, port: int) -> dict[str, Any]:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.environ["MASTER_PORT"] = str(port)
            start = time.perf_counter()
            dist.init_process_group(self.kind)
            os.write(writer, repr(time.perf_counter() - start).encode())
            dist.barrier()
            dist.destroy_process_group()
            os._exit(0)
        os.close(writer)
        with open(reader) as stream:
            text = stream.read()
        os.waitpid(child, 0)
        return {"seconds": float(text)}

    def join(self, port: int) -> dict[str, Any]:
        os.environ["MASTER_PORT"] = str(port)  # another port than that of ddl_core's rendezvous
        dist.init_process_group(self.kind)
        if self.kind == "ddl":
            import ddl_core

            self._comm = ddl_core.init()
        return {}

    def create(self, what: str) -> dict[str, Any]:
        dist.barrier()
        start = time.perf_counter()
        if what == "new_group":
            made = dist.new_group()
        elif what == "split":
            made = self._comm.split(0)
        else:
            made = self._comm.duplicate()
        seconds = time.perf_counter() - start
        dist.barrier()
        if what == "new_group":
            dist.destroy_process_group(made)
        else:
            made.close()
        return {"seconds": seconds}


def main(kind: str, path: str) -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    about = {"rank": rank, "size": size, "version": torch.__version__}
    run_commands(CreationWorker(kind), path, {**about, "host": os.readlink("/proc/self/ns/net")})
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
