# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_failures on three ranks: wrong arguments, on all ranks or on one.

    python torch_refusals.py

What is wrong on all ranks is refused on all of them, whatever their rank, and the group lives on.
What is wrong on one rank alone the others cannot see. That rank may call again, rightly; if it
calls something else, all are told, by that operation at the latest.
"""

import time
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

dist.init_process_group("ddl")
warnings.filterwarnings("ignore")  # PyTorch's warnings about deprecated names
rank, size = dist.get_rank(), dist.get_world_size()
gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
Refused = (ValueError, TypeError, NotImplementedError)
Dead = dist.DistBackendError
INT = torch.int32


def some(elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(elements, dtype=dtype)


def each(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [some(elements, dtype) for elements in sizes]


def expect_alive(group: dist.ProcessGroup | None = None) -> None:
    tensor = some(5)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size] * 5, tensor


two, three = [2] * size, [3] * size
first = [3, *two[1:]]  # wrong for rank 0, which all ranks can detect

# ---- wrong on all ranks ----

WRONG_EVERYWHERE: dict[str, Callable[[], object]] = {
    "gathered lists: one tensor's size": lambda: dist.all_gather_coalesced(
        [each([elements]) for elements in first], [some(2)]
    ),
    "gathered lists: a later tensor's size": lambda: dist.all_gather_coalesced(
        [each([2, elements]) for elements in first], each([2, 2])
    ),
    "gathered lists: no elements": lambda: dist.all_gather_coalesced(
        [each([0]), *(each([1]) for _ in two[1:])], [some(1)]
    ),
    "gathered lists: a type": lambda: dist.all_gather_coalesced(
        [each([2], INT), *(each([2]) for _ in two[1:])], [some(2)]
    ),
    "gathered lists: too many": lambda: dist.all_gather_coalesced(
        [each([2]) for _ in [*two, 2]], [some(2)]
    ),
    "gathered lists: too short": lambda: dist.all_gather_coalesced(
        [[], *(each([2]) for _ in two[1:])], [some(2)]
    ),
    "gathered: all sizes": lambda: dist.all_gather(each(three), some(2)),
    "gathered: too few": lambda: dist.all_gather(each(two[1:]), some(2)),
    "gathered: a type": lambda: dist.all_gather(each(two, INT), some(2)),
    "gathered: the whole": lambda: gather(some(2 * size + 1), some(2)),
    "gathered: the whole's type": lambda: gather(some(2 * size, INT), some(2)),
    "scattered: all sizes": lambda: dist.reduce_scatter(some(2), each(three)),
    "scattered: too few": lambda: dist.reduce_scatter(some(2), each(two[1:])),
    "scattered: the whole": lambda: scatter(some(2), some(2 * size + 1)),
    "scattered: the whole's type": lambda: scatter(some(2), some(2 * size, INT)),
    "exchanged: all sizes": lambda: dist.all_to_all(each(two), each(three)),
    "exchanged: too few": lambda: dist.all_to_all(each(two), each(two[1:])),
    "exchanged: rows": lambda: dist.all_to_all_single(some(size + 1), some(size + 1)),
    "exchanged: splits": lambda: dist.all_to_all_single(some(size), some(size), None, two),
    "exchanged: one split": lambda: dist.all_to_all_single(some(2), some(2), [2], [2]),
    "exchanged: a negative split": lambda: dist.all_to_all_single(
        some(size), some(size), [-1, *[1] * (size - 2), 2], None
    ),
    "exchanged: no dimension": lambda: dist.all_to_all_single(some(1)[0], some(1)[0]),
    "reduced: an op": lambda: dist.all_reduce(some(2), dist.ReduceOp.BAND),
    "reduced: a type": lambda: dist.all_reduce(some(2).to(torch.float8_e4m3fnuz)),
    "reduced: sparse": lambda: dist.all_reduce(some(2).to_sparse(), dist.ReduceOp.MAX),
    "reduced: sparse rows": lambda: dist.all_reduce(torch.ones(2, 2).to_sparse_csr()),
    "broadcast: sparse": lambda: dist.broadcast(some(2).to_sparse(), 0),
    "broadcast: no rank": lambda: dist.broadcast(some(2), size),
}
for name, call in WRONG_EVERYWHERE.items():
    try:
        call()
    except Refused:
        expect_alive()
    else:
        raise AssertionError(f"{name}: was not refused on rank {rank}")

# ---- wrong on one rank, whose number the calls receive ----

WRONG_ON_ONE: dict[str, Callable[[bool, dist.ProcessGroup], object]] = {
    "gathered lists": lambda wrong, group: dist.all_gather_coalesced(
        [each([3 if wrong else 2]) for _ in two], [some(2)], group
    ),
    "gathered": lambda wrong, group: dist.all_gather(
        each(two[1:] if wrong else two), some(2), group
    ),
    "gathered by the root": lambda wrong, group: dist.gather(
        some(2), each(three if wrong else two) if rank == 1 else None, 1, group
    ),
    "scattered by the root": lambda wrong, group: dist.scatter(
        some(2), each(three if wrong else two) if rank == 1 else None, 1, group
    ),
    "reduced": lambda wrong, group: dist.reduce(
        some(2).to(torch.float8_e4m3fnuz) if wrong else some(2), 0, group=group
    ),
    "broadcast": lambda wrong, group: dist.broadcast(
        some(2).to_sparse() if wrong else some(2), 0, group
    ),
    "exchanged": lambda wrong, group: dist.all_to_all_single(
        some(size), some(size), None, two if wrong else None, group
    ),
}
for name, call in WRONG_ON_ONE.items():
    if rank == 1:
        try:
            call(True, dist.group.WORLD)
        except Refused:
            pass
        else:
            raise AssertionError(f"{name}: was not refused")
    call(False, dist.group.WORLD)
    expect_alive()

for name, call in WRONG_ON_ONE.items():
    group = dist.new_group(backend="ddl")
    begun, told = time.monotonic(), []
    for step in (lambda: call(rank == 1, group), lambda: expect_alive(group)):  # noqa: B023
        try:
            step()
        except (*Refused, Dead) as error:
            told.append(error)
    assert told and isinstance(told[-1], Dead), f"{name}: rank {rank} heard {told}"
    assert time.monotonic() - begun < 20, name
    expect_alive()  # the other ranks do

dist.destroy_process_group()
print(f"refused {len(WRONG_EVERYWHERE) + len(WRONG_ON_ONE)}", flush=True)
