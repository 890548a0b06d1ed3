# SPDX-License-Identifier: Apache-2.0
"""One rank of `python -m bench slow`: trains examples/fashion.py with each method in turn."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

# Searched after the installed ddl_core.
sys.path.append(str(Path(__file__).resolve().parent.parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import fashion

import ddl_core
import ddl_torch as ddl
import ddl_torch.elastic as elastic
from bench.slow import ALONE, Job, local_steps, wire

Turn = tuple[float, float, float]  # seconds and bytes of a step; its seconds alone, about then
STEPS = 100_000  # more than are measured
WARM_UP = 3  # steps; DistributedDataParallel rebuilds its buckets after the first one


def begin(method: str, job: Job, images: fashion.Images, world: ddl_core.Comm) -> fashion.Progress:
    """Return the steps, or the rounds, of this method. All ranks call this."""
    network = fashion.resnet8(job.width, seed=0)
    optimizer = fashion.make_optimizer(network)
    training = network, optimizer, images, STEPS
    if method in fashion.PARALLEL:
        return fashion.parallel_steps(method, *training, seed=0)
    if method == ALONE:
        groups = [dist.new_group([rank]) for rank in range(world.size)]
        return fashion.parallel_steps("f32", *training, seed=0, group=groups[world.rank])
    loop = elastic.Job(
        network,
        optimizer,
        batch=fashion.BATCH,
        logical=world.size,
        comm=world.duplicate(),
        watchdog=0,  # the other methods take their turns meanwhile
    )
    if method == "elastic":
        return fashion.elastic_steps(loop, *training)
    return fashion.rounds(loop, *training, local_steps=local_steps(method), wire=wire(method))


def sent() -> int:
    """Return the bytes that this host has sent so far."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    counters = dict(line.split(":") for line in lines)
    return sum(int(each.split()[8]) for name, each in counters.items() if name.strip() != "lo")


def timed(progress: fashion.Progress, calls: int, steps: int) -> tuple[float, float]:
    """Return the seconds and the sent bytes of a step, on the rank with the highest figure."""
    dist.barrier()
    before, start = sent(), time.perf_counter()
    for _ in range(calls):
        next(progress)
    seconds = time.perf_counter() - start
    found = torch.tensor([seconds, sent() - before], dtype=torch.float64) / (calls * steps)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found[0].item(), found[1].item()


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    world = ddl_core.init()
    ddl.init()
    images = fashion.Images(Path(job.data), "train")
    progress = {method: begin(method, job, images, world) for method in job.methods}
    for method, each in progress.items():
        timed(each, 1 if local_steps(method) > 1 else WARM_UP, 1)
    turns: dict[str, list[Turn]] = {method: [] for method in progress}
    alone = [timed(progress[ALONE], job.steps, 1)[0]]
    for _ in range(job.turns):
        for method, each in progress.items():
            steps = local_steps(method)
            taken = timed(each, 1 if steps > 1 else job.steps, steps)
            # The cores may become faster or slower within seconds.
            alone.append(timed(progress[ALONE], job.steps, 1)[0])
            turns[method].append((*taken, sum(alone[-2:]) / 2))
    if world.rank == 0:
        Path(job.result).write_text(json.dumps(turns))
    dist.barrier()
    ddl.shutdown()


if __name__ == "__main__":
    main()
