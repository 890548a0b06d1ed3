# SPDX-License-Identifier: Apache-2.0
"""Measure the memory of a rank of a sharded job, or a step beside FSDP2 over Gloo.

    python tests/elastic/sharded_costs.py memory | time [RANKS] | hosts [RANKS [RATE]]

memory: for several numbers of ranks, without and with blocks, the peak of the process's memory
above its memory before the model was made, and the peak by the formula in
docs/elastic/sharded.md. Fails if they differ by more than 10 %.

time: jobs with and without shards, and FSDP2, in turns. Prints the fastest and the median step.

hosts: the same with each rank on a host of a lab, whose links have a rate such as 1gbit; as root.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from math import log2
from pathlib import Path
from typing import Any

import torch
from torch import nn

# Searched after the installed packages.
sys.path.append(str(Path(__file__).resolve().parents[2]))

import ddl_core
import ddl_torch.elastic as elastic
from bench.lab import Lab
from bench.lab import run as run_on

LAYERS, WIDTH, LOGICAL, BATCH, STEPS, TURNS = 12, 1024, 8, 64, 12, 3
LIMIT = 300.0  # seconds of a run on hosts
DDLRUN = [sys.executable, "-m", "ddl_launch"]


def expect(values: int, ranks: int, copies: int, has_blocks: bool) -> float:
    """Return the bytes that a rank needs, for Adam; see docs/elastic/sharded.md."""
    held = min(1.0, (copies + 1) / ranks)
    parameters = held + (1 - held) / LAYERS if has_blocks else 1
    return 4 * values * (parameters + 2 * held + held + max(0.0, log2(LOGICAL / ranks)) + 2)


def memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def make_model(layers: int = LAYERS, width: int = WIDTH) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


def train(
    model: nn.Module,
    comm: Any,
    shard: bool,
    logical: int,
    copies: int = 1,
    has_blocks: bool = False,
) -> Iterator[None]:
    width = next(model.parameters()).shape[1]
    data = torch.utils.data.TensorDataset(torch.randn(BATCH, width))
    optimizer = torch.optim.Adam(model.parameters())
    options: dict[str, Any] = {"comm": comm, "shard": shard, "copies": copies}
    options["blocks"] = model if has_blocks else ()
    job = elastic.Job(model, optimizer, batch=BATCH, logical=logical, **options)
    for step in job.steps(data, steps=STEPS):
        for (x,) in step:
            step.backward(model(x).square().mean())
        optimizer.step()
        yield


def train_fsdp(model: nn.Module, ranks: int) -> Iterator[None]:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(BATCH // ranks, WIDTH)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        yield


def run_rank(kind: str, folder: str, copies: int) -> None:
    torch.set_num_threads(1)
    comm = ddl_core.init()
    if kind in ("memory", "blocks"):
        with ddl_core.Endpoint(secret="") as endpoint:  # load all code
            alone = endpoint.connect([endpoint.address], 0)
            list(train(make_model(1, 8), alone, True, LOGICAL))
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        model = make_model()
        list(train(model, comm, True, LOGICAL, copies, kind == "blocks"))
        print(f"peak {memory('VmHWM') - before}", flush=True)
        return
    if kind == "fsdp":
        rank, size = comm.rank, comm.size
        store = f"file://{folder}/store"
        torch.distributed.init_process_group("gloo", store, rank=rank, world_size=size)
        steps = train_fsdp(make_model(), size)
    else:
        is_sharded = kind in ("sharded", "sharded with blocks")
        has_blocks = kind == "sharded with blocks"
        steps = train(make_model(), comm, is_sharded, comm.size, has_blocks=has_blocks)
    took, began, first = [], time.perf_counter(), comm.rank == 0
    for _ in steps:
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
    if first:
        print(*(f"step {each:.5f}" for each in took[2:]), sep="\n", flush=True)


def run(ranks: int, kind: str, copies: int = 1, lab: Any = None) -> list[float]:
    """Return the numbers that the ranks print, on one host or on the hosts of a lab."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, __file__, "rank", kind, folder, str(copies)]
        if lab:
            out = run_on(lab, [1] * ranks, program, {"DDL_SECRET": "costs"}, LIMIT)
        else:
            command = [*DDLRUN, "-n", str(ranks), *program]
            done = subprocess.run(command, capture_output=True, text=True)
            assert not done.returncode, done.stdout + done.stderr
            out = done.stdout
    return [float(line.split()[-1]) for line in out.splitlines() if line.strip()]


def main(kind: str, ranks: int = 2, rate: str = "") -> None:
    if kind == "memory":
        for size, copies, has_blocks in [*product((1, 2, 4), (1,), (False, True)), (4, 2, False)]:
            peak = max(run(size, "blocks" if has_blocks else kind, copies))
            bytes_ = expect(LAYERS * (WIDTH * WIDTH + WIDTH), size, copies, has_blocks)
            print(
                f"{size} ranks, copies={copies}{', blocks' * has_blocks}: {peak / 2**20:.0f} MiB,"
                f" {peak / bytes_:.3f} of the formula's {bytes_ / 2**20:.0f} MiB"
            )
            assert abs(peak / bytes_ - 1) < 0.1
        return
    kinds = "sharded", "sharded with blocks", "replicated", "fsdp"
    times: dict[str, list[float]] = {each: [] for each in kinds}
    with Lab(ranks, rate or None) if kind == "hosts" else nullcontext() as lab:
        for _ in range(TURNS):
            for each in times:
                times[each] += run(ranks, each, lab=lab)
    for each, found in times.items():
        print(
            f"{each}: fastest {1000 * min(found):.1f} ms, median"
            f" {1000 * statistics.median(found):.1f} ms, {len(found)} steps"
        )


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        run_rank(*sys.argv[2:4], int(sys.argv[4]))
    else:
        main(sys.argv[1], *map(int, sys.argv[2:3]), *sys.argv[3:])
