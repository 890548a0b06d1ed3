# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/gpu.py."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

# Searched after the installed ddl_core.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import ddl_core
from bench.gpu import GpuJob
from bench.torch_device import backend_of_ddl, synchronize

LEAST, MOST, WARM_UP = 5, 200, 3  # the least and most calls of a turn, and the calls before it
TURNS = 3
OF_ALL = ("ddl", "gloo")  # groups that have all ranks

Way = Callable[[], object]


def main() -> None:
    job = GpuJob(**json.loads(sys.argv[1]))
    device = torch.device(job.device)
    dist.init_process_group(backend_of_ddl(job.device))
    groups = {"ddl": dist.group.WORLD}
    if "gloo" in job.ways:
        groups["gloo"] = dist.new_group(backend="gloo")
    if "nccl" in job.ways and device.type == "cuda":
        groups["nccl"] = dist.new_group([0], backend="nccl")
    comm = ddl_core.init()
    medians: dict[str, dict[str, float]] = {}
    for size in job.sizes:
        ways = ways_of(job, size, device, groups, comm)
        medians[str(size)] = {}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(TURNS):
            names = sorted(ways, key=lambda name: (list(ways).index(name) + turn) % len(ways))
            for name in names:
                found[name] += measure(ways[name], job.seconds / TURNS, comm)
        for name, times in found.items():
            medians[str(size)][name] = statistics.median(times)
        if comm.rank == 0:
            shown = ", ".join(f"{n} {1e6 * t:.1f}" for n, t in medians[str(size)].items())
            print(f"{size} B: {shown} us", file=sys.stderr, flush=True)
    if comm.rank == 0:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "no GPU"
        Path(job.result).write_text(json.dumps({"gpu": name, "medians": medians}))
    dist.destroy_process_group()


def ways_of(
    job: GpuJob,
    size: int,
    device: torch.device,
    groups: dict[str, dist.ProcessGroup | None],
    comm: ddl_core.Comm,
) -> dict[str, Way]:
    """Return the ways to measure, each with its own kind of tensors. All ranks have the same ways
    in the same order; a rank that takes no part in one does nothing."""
    count = max(1, size // 4)
    on_gpu, other = torch.ones(count, device=device), torch.ones(count, device=device)
    pinned = torch.ones(count, pin_memory=device.type == "cuda")
    back = torch.ones(count, pin_memory=device.type == "cuda")
    side = torch.cuda.Stream() if device.type == "cuda" else None

    def reduce(group: str) -> Way:
        return lambda: dist.all_reduce(on_gpu, group=groups[group])

    def by_hand() -> None:
        pinned.copy_(on_gpu)
        comm.allreduce(pinned)
        on_gpu.copy_(pinned, non_blocking=True)

    def copies() -> None:
        pinned.copy_(on_gpu, non_blocking=True)
        if side is None:
            other.copy_(back)
            return
        with torch.cuda.stream(side):
            other.copy_(back, non_blocking=True)

    found: dict[str, Way] = {name: reduce(name) for name in OF_ALL if name in groups}
    found["by hand"], found["copies"] = by_hand, copies
    found["device"] = lambda: other.copy_(on_gpu)
    if "nccl" in groups:
        found["nccl"] = reduce("nccl") if comm.rank == 0 else lambda: None
    return {name: found[name] for name in job.ways if name in found}


def measure(way: Way, seconds: float, comm: ddl_core.Comm) -> list[float]:
    for _ in range(WARM_UP):
        way()
    took = timed(way, comm)
    calls = min(MOST, max(LEAST, int(seconds / took)))
    return [timed(way, comm) for _ in range(calls)]


def timed(way: Way, comm: ddl_core.Comm) -> float:
    """Return the seconds of one call, which all ranks begin together, until its results are
    ready."""
    synchronize()
    comm.barrier()
    started = time.perf_counter()
    way()
    synchronize()
    return float(comm.allreduce(np.array([time.perf_counter() - started]), op="max")[0])


if __name__ == "__main__":
    main()
