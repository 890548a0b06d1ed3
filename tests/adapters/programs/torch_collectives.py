# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_collectives on any number of ranks: every operation, op and type, compared with
PyTorch's result for all ranks' inputs."""

import torch
import torch.distributed as dist

dist.init_process_group("ddl")
rank, size = dist.get_rank(), dist.get_world_size()
checked = 0

# Renamed in PyTorch 2.13.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
OTHERS = [torch.bool, torch.int16, torch.complex64, torch.complex128, torch.float8_e4m3fn]
COUNTS = [0, 1, 7, 1000, 70001]


def values(of: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the input of rank `of`: small integers, so that each type can represent all results
    except products."""
    number = (torch.arange(count) * (of + 3) + 5 * of) % 6
    number = number - 2 if dtype not in (torch.uint8, torch.bool) else number
    return number.to(torch.float32).to(dtype) if dtype in FLOATS + OTHERS else number.to(dtype)


def everyones(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [values(of, count, dtype) for of in range(size)]


def reduced(op: dist.ReduceOp, inputs: list[torch.Tensor]) -> torch.Tensor:
    dtype = inputs[0].dtype
    stack = torch.stack(inputs).to(torch.float64 if dtype in FLOATS else torch.int64)
    if op == dist.ReduceOp.SUM:
        result = stack.sum(0)
    elif op == dist.ReduceOp.AVG:
        mode = None if dtype in FLOATS else "trunc"
        total = stack.sum(0)
        if mode:  # of the sum in that type
            total = total.to(dtype).to(torch.int64)
        result = torch.div(total, size, rounding_mode=mode)
    elif op == dist.ReduceOp.MIN:
        result = stack.amin(0)
    elif op == dist.ReduceOp.MAX:
        result = stack.amax(0)
    else:
        result = stack.prod(0)
    return result.to(dtype)


def expect(actual: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    global checked
    checked += 1
    if actual.dtype == torch.float8_e4m3fn:
        actual, wanted = actual.view(torch.uint8), wanted.view(torch.uint8)
    assert actual.shape == wanted.shape, (what, actual.shape, wanted.shape)
    close = torch.equal(actual, wanted)
    if not close and actual.dtype in FLOATS:  # an average is not an integer
        close = torch.allclose(actual.double(), wanted.double(), rtol=1e-2)
    assert close, (what, actual[:9], wanted[:9])


OPS = [getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT")]

# ---- reductions ----

for dtype in FLOATS + INTEGERS:
    for op in OPS:
        for count in COUNTS if op == dist.ReduceOp.SUM else [7, 1000]:
            what = f"{op} {dtype} {count}"
            tensor = values(rank, count, dtype)
            dist.all_reduce(tensor, op)
            expect(tensor, reduced(op, everyones(count, dtype)), f"all_reduce {what}")

            inputs = [
                torch.cat([values(of + to, count, dtype) for to in range(size)])
                for of in range(size)
            ]
            wanted = reduced(op, inputs)[rank * count : (rank + 1) * count]
            out = torch.empty(count, dtype=dtype)
            reduce_scatter(out, inputs[rank].clone(), op)
            expect(out, wanted, f"reduce_scatter of one tensor {what}")
            out = torch.empty(count, dtype=dtype)
            dist.reduce_scatter(
                out,
                list(inputs[rank].clone().split(max(count, 1))) if count else [out.clone()] * size,
                op,
            )
            expect(out, wanted, f"reduce_scatter {what}")

# ---- operations that move data, every type ----

for dtype in FLOATS + INTEGERS + OTHERS:
    for count in COUNTS:
        what = f"{dtype} {count}"
        root = count % size
        tensor = values(rank, count, dtype)
        dist.broadcast(tensor, root)
        expect(tensor, values(root, count, dtype), f"broadcast {what}")

        outs = [torch.empty(count, dtype=dtype) for _ in range(size)]
        dist.all_gather(outs, values(rank, count, dtype))
        for of, out in enumerate(outs):
            expect(out, values(of, count, dtype), f"all_gather {what}")

        whole = torch.empty(size * count, dtype=dtype)
        all_gather(whole, values(rank, count, dtype))
        expect(whole, torch.cat(everyones(count, dtype)), f"all_gather to one tensor {what}")

# ---- memory layouts ----

total = size * (size + 1) // 2
strided = torch.full((6, 8), float(rank + 1))[::2, 1::3]
dist.all_reduce(strided)
expect(strided, torch.full((3, 3), float(total)), "strided")

base = torch.zeros(4, 6)
view = base.t()
view.fill_(rank)
dist.broadcast(view, size - 1)
expect(base, torch.full((4, 6), float(size - 1)), "transposed")

outs = list(torch.zeros(3, 2 * size)[:, ::2].unbind(1))
dist.all_gather(outs, torch.full((6,), float(rank))[::2])
for of, out in enumerate(outs):
    expect(out, torch.full((3,), float(of)), "all_gather into columns")

rows = torch.full((size, 5), -1.0)
rows[rank] = rank
dist.all_gather(list(rows.unbind()), rows[rank])
expect(rows, torch.arange(float(size)).repeat_interleave(5).view(size, 5), "in place")

memory = torch.full((size * 5 + 5,), float(rank))
all_gather(memory[: size * 5], memory[2:7])
expect(memory[: size * 5], torch.arange(float(size)).repeat_interleave(5), "overlapping")
memory.fill_(rank)
reduce_scatter(memory[3:8], memory[: size * 5])
expect(memory[3:8], torch.full((5,), float(total - size)), "overlapping")

memory = torch.full((size * 5,), float(rank))
reduce_scatter(memory[5 * rank : 5 * rank + 5], memory)
wanted = torch.full((size, 5), float(rank))
wanted[rank] = total - size
expect(memory.view(size, 5), wanted, "in place: only the own part is written")

parameter = torch.nn.Parameter(torch.ones(3))
dist.all_reduce(parameter)
expect(parameter.detach(), torch.full((3,), float(size)), "leaf that requires grad")
leaf = torch.nn.Parameter(torch.ones(4, 3))
dist.all_reduce(leaf.t())
expect(leaf.detach(), torch.full((4, 3), float(size)), "view of a leaf")
with torch.inference_mode():
    inferred = torch.ones(3, 3).t()
dist.all_reduce(inferred)
expect(inferred.clone(), torch.full((3, 3), float(size)), "inference tensor")
imaginary = torch.full((3,), 1 + 2j, dtype=torch.complex64)
dist.all_reduce(imaginary)
expect(imaginary, torch.full((3,), size * (1 + 2j), dtype=torch.complex64), "complex sum")

# ---- several operations at once ----

tensors = [
    torch.full((count,), float(rank), dtype=dtype)
    for count, dtype in [(3, torch.float32), (0, torch.float32), (70000, torch.float64)]
]
with dist._coalescing_manager():
    for tensor in tensors:
        dist.all_reduce(tensor)
for tensor in tensors:
    expect(tensor, torch.full_like(tensor, size * (size - 1) / 2), "coalesced")

large = torch.full((1 << 20,), float(rank + 1))
dist.all_reduce(large)
expect(large, torch.full((1 << 20,), float(total)), "large")
dist.barrier()
dist.barrier(async_op=True).wait()

# ---- groups ----

halves = [dist.new_group(list(range(of, size, 2)), backend="ddl") for of in range(min(size, 2))]
again = dist.new_group(list(range(size)), backend="ddl")
mine = halves[rank % len(halves)]
tensor = torch.tensor([rank])
dist.all_reduce(tensor, group=mine)
expect(tensor, torch.tensor([sum(range(rank % 2, size, 2)) if size > 1 else 0]), "new_group")
tensor = torch.tensor([rank])
dist.all_reduce(tensor, group=again)
expect(tensor, torch.tensor([size * (size - 1) // 2]), "second group of all")
tensor = torch.tensor([rank])
dist.broadcast(tensor, rank % 2, group=mine)  # the root is a rank of the world
expect(tensor, torch.tensor([rank % 2]), "broadcast in a group")
dist.destroy_process_group(again)

objects: list[object] = [None] * size
dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
assert objects == [{"rank": of, "text": "x" * of} for of in range(size)], objects

assert dist.get_backend() == "ddl"
dist.destroy_process_group()
print(f"checked {checked}")
