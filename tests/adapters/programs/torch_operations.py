# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_collectives on any number of ranks: the operations that torch_collectives.py
leaves out, and the types and ops that few use, against what PyTorch computes from all inputs."""

import math
import threading
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

warnings.filterwarnings("ignore", category=FutureWarning)  # names that PyTorch deprecates
warnings.filterwarnings("ignore", message="ComplexHalf")

dist.init_process_group("ddl", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
cpu = torch.device("cpu")
backend = dist.group.WORLD._get_backend(cpu)
native = type(dist.group.WORLD) is dist.ProcessGroup  # otherwise in Python
checked = 0

# Renamed in PyTorch 2.13.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, *FLOAT8]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
EVERY = [*FLOATS, *SIGNED, *UNSIGNED, *COMPLEX, torch.bool, torch.complex32]
COUNTS = [0, 1, 7, 3001]


def values(of: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the input of rank `of`: small integers, which each type can represent."""
    number = (torch.arange(count) * (of + 3) + 5 * of) % 4
    if dtype in COMPLEX:
        return torch.complex(number.double(), -number.double() - 1).to(dtype)
    return number.to(torch.float32).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor.flatten()]).view(torch.uint8) if tensor.numel() else torch.empty(0)


def expect(actual: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    global checked
    checked += 1
    assert actual.shape == wanted.shape, (what, actual.shape, wanted.shape)
    assert actual.dtype == wanted.dtype, (what, actual.dtype, wanted.dtype)
    assert torch.equal(bits(actual), bits(wanted)), (
        what,
        actual.flatten()[:9],
        wanted.flatten()[:9],
    )


def summed(inputs: list[torch.Tensor]) -> torch.Tensor:
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        return torch.stack(inputs).any(0)
    wide = torch.complex128 if dtype in COMPLEX else torch.float64
    return torch.stack([each.to(wide) for each in inputs]).sum(0).to(dtype)


# ---- reduce, for every type that has sums ----

for dtype in [*FLOATS, *SIGNED, *UNSIGNED, *COMPLEX, torch.bool]:
    for count in COUNTS:
        inputs = [values(of, count, dtype) for of in range(size)]
        wanted = summed(inputs)
        what = f"{dtype} {count}"
        tensor = inputs[rank].clone()
        backend.allreduce([tensor]).wait()  # complex numbers stay as they are
        expect(tensor, wanted, f"all_reduce {what}")
        tensor, root = inputs[rank].clone(), count % size
        dist.reduce(tensor, root)
        expect(tensor, wanted if rank == root else inputs[rank], f"reduce {what}")
        tensor = inputs[rank].clone().repeat_interleave(2)[::2]
        dist.reduce(tensor, root)
        expect(tensor, wanted if rank == root else inputs[rank], f"reduce strided {what}")

for dtype in [*SIGNED, *UNSIGNED, torch.bool]:
    for name, function in {
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }.items():
        inputs = [values(of, 100, dtype).to(torch.int64) for of in range(size)]
        wanted = inputs[0]
        for other in inputs[1:]:
            wanted = function(wanted, other)
        tensor = inputs[rank].to(dtype)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        expect(tensor, wanted.to(dtype), f"{name} {dtype}")

premultiplied = getattr(dist, "_make_premul_sum", None) or dist._make_nccl_premul_sum
for factor in [0.5, torch.tensor([4.0]), 0.0]:
    total = size * (size + 1) / 2 * float(factor)
    for dtype in [torch.float32, torch.float64, torch.bfloat16]:
        tensor = torch.full((5,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor, premultiplied(factor))
        expect(tensor, torch.full((5,), total, dtype=dtype), "PREMUL_SUM")
        tensor = torch.full((5,), rank + 1, dtype=dtype)
        dist.reduce(tensor, 0, premultiplied(factor))
        expect(
            tensor, torch.full((5,), total if rank == 0 else rank + 1, dtype=dtype), "PREMUL_SUM"
        )
        out = torch.empty(1, dtype=dtype)
        reduce_scatter(out, torch.full((size,), rank + 1, dtype=dtype), premultiplied(factor))
        expect(out, torch.full((1,), total, dtype=dtype), "PREMUL_SUM")
        given = [torch.full((1,), rank + 1, dtype=dtype) for _ in range(size)]
        dist.reduce_scatter(out, given, premultiplied(factor))
        expect(out, torch.full((1,), total, dtype=dtype), "PREMUL_SUM")
        assert all(part.item() == rank + 1 for part in given)
tensor = torch.tensor([1.0, math.inf, math.nan] * 2)[::2]  # not contiguous
dist.all_reduce(tensor, premultiplied(0.0))
assert tensor.isnan().tolist() == [False, True, True], tensor
tensor = torch.ones(3).to(torch.float8_e5m2)
dist.all_reduce(tensor, premultiplied(0.0))
assert tensor.float().tolist() == [0, 0, 0], tensor
for factor in (0.0, 2.0):
    try:
        dist.all_reduce(torch.ones(3, dtype=torch.int32), premultiplied(factor))
        raise AssertionError("integers were scaled")
    except NotImplementedError as error:
        assert "float" in str(error), error

# ---- from and to one rank, for every type ----

for dtype in EVERY:
    for count in COUNTS:
        what, root = f"{dtype} {count}", (count + 1) % size
        mine = values(rank, count, dtype)
        outs = [torch.empty(count, dtype=dtype) for _ in range(size)]
        dist.gather(mine, outs if rank == root else None, root)
        for of, out in enumerate(outs if rank == root else []):
            expect(out, values(of, count, dtype), f"gather {what}")
        rows = [values(of + 5, count, dtype) for of in range(size)]
        out = torch.empty(count, dtype=dtype)
        dist.scatter(out, rows if rank == root else None, root)
        expect(out, rows[rank], f"scatter {what}")

sizes = [of % 3 * 10 for of in range(size)]
mine = torch.full((sizes[rank],), float(rank))
outs = [torch.empty(each) for each in sizes]
dist.gather(mine, outs if rank == 0 else None, 0)
for of, out in enumerate(outs if rank == 0 else []):
    expect(out, torch.full((sizes[of],), float(of)), "gather of different sizes")
dist.scatter(mine.fill_(-1), [out + 1 for out in outs] if rank == 0 else None, 0)
expect(mine, torch.full((sizes[rank],), rank + 1.0), "scatter of different sizes")

# ---- all-gather and reduce-scatter of different sizes ----

outs = [torch.empty(each, 2) for each in sizes]
dist.all_gather(outs, torch.full((sizes[rank], 2), float(rank)))
for of, out in enumerate(outs):
    expect(out, torch.full((sizes[of], 2), float(of)), "all_gather of different sizes")
out = torch.empty(sizes[rank])
dist.reduce_scatter(out, [torch.full((each,), float(rank)) for each in sizes])
expect(out, torch.full_like(out, size * (size - 1) / 2), "reduce_scatter of different sizes")

# ---- all-to-all ----

for dtype in EVERY:
    for count in COUNTS:
        what = f"{dtype} {count}"
        wanted = [values(10 * of + rank, count, dtype) for of in range(size)]
        given = [values(10 * rank + to, count, dtype) for to in range(size)]
        outs = [torch.empty(count, dtype=dtype) for _ in range(size)]
        dist.all_to_all(outs, given)
        for out, want in zip(outs, wanted, strict=True):
            expect(out, want, f"all_to_all {what}")
        whole = torch.empty(size * count, dtype=dtype)
        dist.all_to_all_single(whole, torch.cat(given))
        expect(whole, torch.cat(wanted), f"all_to_all_single {what}")
    # Rank r sends r + 2 q rows of two elements to rank q.
    given = [values(rank + to, 2 * (rank + 2 * to), dtype).view(-1, 2) for to in range(size)]
    wanted = [values(of + rank, 2 * (of + 2 * rank), dtype).view(-1, 2) for of in range(size)]
    outs = [torch.empty(each.shape, dtype=dtype) for each in wanted]
    dist.all_to_all(outs, given)
    for out, want in zip(outs, wanted, strict=True):
        expect(out, want, f"all_to_all of different sizes {dtype}")
    whole = torch.empty(sum(len(each) for each in wanted), 2, dtype=dtype)
    dist.all_to_all_single(
        whole, torch.cat(given), [len(o) for o in wanted], [len(g) for g in given]
    )
    expect(whole, torch.cat(wanted), f"all_to_all_single of different sizes {dtype}")

inputs = torch.arange(2.0 * size).view(2, size).t()  # not contiguous
whole = torch.empty(2, size).t()
dist.all_to_all_single(whole, inputs)
expect(whole.contiguous(), inputs[rank].repeat(size, 1), "all_to_all_single of columns")

# ---- sparse ----


def sparse(of: int, values_of: torch.Tensor) -> torch.Tensor:
    indices = torch.tensor([[0, of + 1, 2, 2][: 2 + of % 3], [1, of, 0, 0][: 2 + of % 3]])
    return torch.sparse_coo_tensor(indices, values_of[: 2 + of % 3], (size + 3, size + 3, 2))


for dtype in [torch.float32, torch.float64, torch.int64]:
    every = [sparse(of, torch.arange(8).view(4, 2).to(dtype) + of) for of in range(size)]
    wanted = sum(each.to_dense() for each in every)
    tensor = every[rank].clone()
    dist.all_reduce(tensor)
    expect(tensor.to_dense(), wanted, "sparse")
    tensor = every[rank].clone()
    (result,) = dist.all_reduce(tensor, async_op=True).get_future().wait()
    expect(result.to_dense(), wanted, "sparse, asynchronous")
    if dtype.is_floating_point:
        tensor = every[rank].clone()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert torch.allclose(tensor.to_dense(), wanted / size)
empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (4,))
dist.all_reduce(empty)
expect(empty.to_dense(), torch.zeros(4), "sparse, without elements")
embedding = torch.nn.Embedding(10, 3, sparse=True)
torch.nn.init.ones_(embedding.weight)
shared = torch.nn.parallel.DistributedDataParallel(embedding)
shared(torch.tensor([rank, 9])).sum().backward()
wanted = torch.zeros(10, 3)
wanted[:size] += 1 / size
wanted[9] += 1
assert torch.allclose(embedding.weight.grad.to_dense(), wanted)

# ---- several operations at once ----

lists = [[torch.full((3 + i,), -1.0) for i in range(3)] for _ in range(size)]
dist.all_gather_coalesced(lists, [torch.full((3 + i,), 10.0 * rank + i) for i in range(3)])
for of, row in enumerate(lists):
    for i, out in enumerate(row):
        expect(out, torch.full((3 + i,), 10.0 * of + i), "all_gather_coalesced")

for device in [None, cpu]:
    for is_async in [False, True]:
        inputs = [torch.full((count,), rank + 1.0) for count in (3, 0, 5000)]
        outs = [torch.empty(size * len(each)) for each in inputs]
        with dist._coalescing_manager(device=device, async_ops=is_async) as manager:
            for out, each in zip(outs, inputs, strict=True):
                all_gather(out, each)
        if is_async:
            manager.wait()
        for out, each in zip(outs, inputs, strict=True):
            wanted = torch.arange(1.0, size + 1).repeat_interleave(len(each))
            expect(out, wanted, "coalesced all_gather")
        with dist._coalescing_manager(device=device, async_ops=is_async) as manager:
            for out, each in zip(outs, inputs, strict=True):
                reduce_scatter(each, out)
        if is_async:
            manager.wait()
        for each in inputs:
            expect(each, torch.full_like(each, size * (rank + 1.0)), "coalesced reduce_scatter")

tensors = [torch.full((4,), rank + 1.0), torch.full((2, 3), float(rank)).t(), torch.ones(2)]
with dist._coalescing_manager(device=cpu):  # different operations, as the backend supports
    dist.broadcast(tensors[0], size - 1)
    dist.broadcast(tensors[1], size - 1)
    dist.reduce(tensors[2], 0)
    assert backend.allreduce([torch.ones(1)]).wait()
expect(tensors[0], torch.full((4,), float(size)), "coalesced broadcast")
expect(tensors[1].contiguous(), torch.full((3, 2), size - 1.0), "coalesced broadcast, transposed")
expect(tensors[2], torch.full((2,), float(size if rank == 0 else 1)), "coalesced reduce")
with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
    pass
manager.wait()

# ---- the group's own methods, without options ----

world, parts = dist.group.WORLD, [torch.empty(2) for _ in range(size)]
tensor = torch.full((2,), rank + 1.0)
world.allreduce(tensor, dist.ReduceOp.MAX).wait()
expect(tensor, torch.full((2,), float(size)), "allreduce(tensor, op)")
tensor = torch.full((2,), float(rank))
world.allgather(parts, tensor).wait()
expect(torch.cat(parts), torch.arange(size).repeat_interleave(2).float(), "allgather(list, tensor)")
world.reduce(tensor, size - 1, dist.ReduceOp.SUM).wait()
wanted_here = (size - 1) * size / 2 if rank == size - 1 else rank
expect(tensor, torch.full((2,), float(wanted_here)), "reduce(tensor, root, op)")
world.scatter(tensor, parts if rank == 0 else [], 0).wait()
expect(tensor, torch.full((2,), float(rank)), "scatter(tensor, list, root)")
world.gather(parts if rank == 0 else [], tensor + 1, 0).wait()
expect(parts[-1], torch.full((2,), float(size if rank == 0 else size - 1)), "gather(list, ...)")
world.reduce_scatter(tensor, [torch.full((2,), float(i)) for i in range(size)]).wait()
expect(tensor, torch.full((2,), float(size * rank)), "reduce_scatter(tensor, list)")

# ---- groups, and their properties ----

if hasattr(dist.group.WORLD, "split_group"):
    part = dist.group.WORLD.split_group(list(range(size)), timedelta(seconds=20))
    assert (part.rank(), part.size()) == (rank, size)
    tensor = torch.full((2,), float(part.rank()))
    part.broadcast(tensor, 0).wait()
    expect(tensor, torch.zeros(2), "split group")
    part.shutdown()

    # Callbacks of two groups with equal ranks start operations in different orders on the ranks.
    started = [threading.Event(), threading.Event()]
    works = {}

    def start(number):  # type: ignore[no-untyped-def]
        def callback(of):  # type: ignore[no-untyped-def]
            assert number == rank % 2 or started[1 - number].wait(20)
            tensor = torch.full((2,), number + 1.0)
            works[number] = tensor, dist.all_reduce(tensor, async_op=True)
            started[number].set()

        return callback

    limit = timedelta(seconds=20)
    parts = [dist.group.WORLD.split_group(list(range(size)), limit) for _ in range(2)]
    futures = [
        part.allreduce(torch.ones(1)).get_future().then(start(number))
        for number, part in enumerate(parts)
    ]
    for number, future in enumerate(futures):
        future.wait()
        tensor, work = works[number]
        work.wait()
        expect(tensor, torch.full((2,), size * (number + 1.0)), "callbacks of split groups")
    for part in parts:
        part.shutdown()
before = backend._get_sequence_number_for_group()
dist.barrier(device_ids=None)
assert backend._get_sequence_number_for_group() == before + 1
assert not native or backend.supports_splitting

# ---- the profiler ----

with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    dist.all_reduce(torch.ones(3))
    dist.broadcast(torch.ones(3), 0, async_op=True).wait()
    dist.all_to_all_single(torch.empty(size), torch.ones(size))
    works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(5)]
    torch.ones(100_000).cumsum(0)
    for work in reversed(works):
        work.wait()
names = {event.key for event in profile.key_averages()}
assert {"ddl:all_reduce", "ddl:broadcast", "ddl:all_to_all"} <= names, names
events = [(event.thread, event.time_range, event.name) for event in profile.events()]
ours = [event for event in events if event[2].startswith("ddl:")]
assert not native or sum(name == "ddl:all_reduce" for _, _, name in ours) == 6, ours
# One track has the calls that wait, another one has all others.
assert not native or len({thread for thread, _, _ in ours}) == 2, ours
for thread, own, name in ours:  # slices of one thread are nested
    for other_thread, other, other_name in events:
        crossing = own.start < other.start < own.end < other.end
        crossing = crossing or other.start < own.start < other.end < own.end
        assert not (crossing and thread == other_thread), (name, other_name)

dist.destroy_process_group()
print(f"checked {checked}")
