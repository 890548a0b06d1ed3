# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_collectives on two or more ranks: messages between two ranks."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("ddl", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
after, before = (rank + 1) % size, (rank - 1) % size
TYPES = [torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.complex64, torch.float8_e5m2]

# ---- around the ring, all sizes ----

for dtype in TYPES:
    for count in (0, 1, 1000, 300_000):
        sent = (torch.arange(count) % 5 + rank).to(torch.float32).to(dtype)
        got = torch.zeros(count, dtype=dtype)
        work = dist.isend(sent, after)
        assert dist.recv(got, before) == before
        work.wait()
        wanted = (torch.arange(count) % 5 + before).to(torch.float32).to(dtype)
        assert torch.equal(
            got.float() if dtype == torch.float8_e5m2 else got,
            wanted.float() if dtype == torch.float8_e5m2 else wanted,
        ), (dtype, count)

# ---- all ranks send first, and none blocks ----

large = torch.full((1_000_000,), float(rank))
works = [dist.isend(large, to, tag=7) for to in range(size) if to != rank]
for of in range(size):
    if of != rank:
        got = torch.empty(1_000_000)
        assert dist.recv(got, of, tag=7) == of
        assert got[0] == got[-1] == of
for work in works:
    work.wait()
    assert work.is_completed()

# ---- messages are matched by tag, and in order within a tag ----

for tag in (3, 1, 2):
    for number in range(3):
        dist.isend(torch.tensor([tag, number]), after, tag=tag)
for tag in (1, 2, 3):
    for number in range(3):
        got = torch.zeros(2, dtype=torch.int64)
        dist.recv(got, before, tag=tag)
        assert got.tolist() == [tag, number]

# ---- the source of a message ----

if rank == 0:
    sources = []
    for _ in range(size - 1):
        got = torch.zeros(1)
        sources.append(dist.recv(got))
        assert got.item() == sources[-1]
    assert sorted(sources) == list(range(1, size))
    got = torch.zeros(2, 3).t()  # not contiguous
    work = dist.irecv(got, tag=5)
    work.wait()
    assert work._source_rank() == size - 1 and got.tolist() == [[0, 1], [2, 3], [4, 5]]
else:
    dist.send(torch.tensor([float(rank)]), 0)
if size > 1 and rank == size - 1:
    dist.send(torch.arange(6.0).view(3, 2), 0, tag=5)

# ---- several at once, in any order ----

sent, got = torch.full((5000,), float(rank)), [torch.zeros(5000) for _ in range(2)]
operations = [
    dist.P2POp(dist.irecv, got[0], before, tag=1),
    dist.P2POp(dist.isend, sent, after, tag=2),
    dist.P2POp(dist.isend, sent + 0.5, before, tag=1),
    dist.P2POp(dist.irecv, got[1], after, tag=1),
    dist.P2POp(dist.isend, sent, after, tag=1),
]
works = dist.batch_isend_irecv(operations)
assert len(works) == len(operations)  # as with Gloo: a program may wait for one without the others
works[3].wait()
third = torch.zeros(5000)
dist.recv(third, before, tag=2)
for work in works:
    work.wait()
assert third[0] == before
if size > 2:  # otherwise both come from the only other rank
    assert got[0][0] == before and got[1][0] == after + 0.5

# With a device they are combined into one work.
cpu = torch.device("cpu")
with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
    for to in range(size):
        if to != rank:
            dist.isend(torch.full((9,), float(rank)), to)
    every = [torch.full((9,), float(rank)) for _ in range(size)]
    for of in range(size):
        if of != rank:
            dist.irecv(every[of], of)
manager.wait()
assert [each.tolist() for each in every] == [[float(of)] * 9 for of in range(size)]

# ---- objects, futures, groups ----

objects = [None, None]
if rank == 0:
    dist.send_object_list([{"from": 0}, list(range(1000))], 1)
elif rank == 1:
    dist.recv_object_list(objects, 0)
    assert objects == [{"from": 0}, list(range(1000))]
got = torch.zeros(3)
future = dist.irecv(got, before).get_future()
dist.send(torch.full((3,), rank + 1.0), after)
assert future.wait()[0].tolist() == [before + 1.0] * 3
pair = dist.new_group([0, 1], backend="ddl")
if rank < 2:
    work = dist.isend(torch.tensor([rank]), 1 - rank, group=pair)
    got = torch.tensor([-1])
    assert dist.recv(got, 1 - rank, group=pair) == 1 - rank
    assert got.item() == 1 - rank
    work.wait()

# ---- together with collectives ----

tensor = torch.ones(100_000)
got = torch.zeros(1)
receiving = dist.irecv(got, before)
reducing = [dist.all_reduce(tensor, async_op=True) for _ in range(5)]
for work in reducing:
    work.wait()
assert not receiving.is_completed()
dist.barrier()
dist.send(torch.tensor([float(rank)]), after)
receiving.wait()
assert got.item() == before and tensor[0] == size**5

dist.barrier()
dist.destroy_process_group()
print("done")
