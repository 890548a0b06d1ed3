# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_threads: ranks of one job that are threads, in one process or in several.

    python torch_threads.py PORT NUMBER THREADS...

NUMBER is this process's, and THREADS the number of threads of each process. The store of the first
process listens at PORT.
"""

import os
import sys
import traceback
from datetime import timedelta
from threading import Thread

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

TIMEOUT = timedelta(seconds=60)
port, number, *threads = map(int, sys.argv[1:])
size, first = sum(threads), sum(threads[:number])


def connect(is_master: bool = False) -> dist.Store:
    return dist.TCPStore(
        "127.0.0.1", port, is_master=is_master, wait_for_workers=False, timeout=TIMEOUT
    )


def use(rank: int, group: dist.ProcessGroup, members: list[int]) -> None:
    """Check operations of each kind in a group that has these ranks."""
    count, own = len(members), members.index(rank)
    before, after = members[own - 1], members[(own + 1) % count]
    tensor = torch.full((100_000,), rank + 1.0)
    dist.all_reduce(tensor, group=group)
    assert tensor.unique().tolist() == [sum(members) + count]
    parts = [torch.zeros(2) for _ in members]
    dist.all_gather(parts, torch.full((2,), float(rank)), group=group)
    assert [int(part[0]) for part in parts] == members
    output = torch.empty(count)
    dist.all_to_all_single(output, torch.full((count,), float(rank)), group=group)
    assert output.tolist() == members
    tensor = torch.full((3,), float(rank))
    dist.broadcast(tensor, members[-1], group=group)
    assert tensor.tolist() == [members[-1]] * 3
    sent = dist.isend(torch.tensor([rank]), after, group=group)
    got = torch.zeros(1, dtype=torch.int64)
    dist.recv(got, before, group=group)
    assert got.item() == before
    sent.wait()
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    assert work.get_future().then(lambda done: done.value()[0][0].item()).wait() == count
    for _ in range(2):
        dist.monitored_barrier(group=group)
    dist.barrier(group=group)


def member(rank: int) -> None:
    everyone, others = list(range(size)), list(range(1, size))
    store = connect()
    for turn in range(2):  # a group can be destroyed and created again
        dist.init_process_group(
            "ddl",
            store=dist.PrefixStore(str(turn), store),
            rank=rank,
            world_size=size,
            timeout=TIMEOUT,
        )
        use(rank, dist.group.WORLD, everyone)
        for ranks in (everyone, others):
            group = dist.new_group(ranks, backend="ddl")
            if rank in ranks:
                use(rank, group, ranks)
                dist.destroy_process_group(group)
        split = dist.group.WORLD.split_group(everyone, TIMEOUT)
        split.allreduce([torch.ones(1)]).wait()
        if turn == 0:  # the second group lives until the process ends
            dist.destroy_process_group()
    print("done", flush=True)


def run(rank: int) -> None:
    try:
        member(rank)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


served = connect(is_master=True) if number == 0 else None
dist.distributed_c10d._world = ThreadLocalWorld()  # a default group for each thread
torch._C._distributed_c10d._set_thread_isolation_mode(True)  # and names of groups
ranks = [Thread(target=run, args=(first + own,)) for own in range(threads[number])]
for each in ranks:
    each.start()
for each in ranks:
    each.join()
