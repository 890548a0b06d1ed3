# SPDX-License-Identifier: Apache-2.0
"""One rank: operations on tensors of the device "cuda" against those on the CPU, bit by bit; the
order of streams; and DistributedDataParallel.

    torch_cuda.py FOLDER PART

FOLDER: see torch_cuda_device.py.
PART is the part of ddl_torch that runs: native; copies, which is the native one where it cannot
take the memory; or python.
"""

import sys
import time
from datetime import timedelta

from torch_cuda_device import install

FOLDER, PART = sys.argv[1:]
device = install(FOLDER)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

if PART == "copies":
    device.hide_handles()

from torch_devices import compare, compare_trainings  # noqa: E402

dist.init_process_group("cpu:ddl,cuda:ddl")
rank, size = dist.get_rank(), dist.get_world_size()
LONG, VERY_LONG = 0.2, 2.0  # seconds
total = size * (size + 1) // 2


def late(value: int, count: int = 300_000, seconds: float = LONG) -> torch.Tensor:
    source = torch.full((count,), value, dtype=torch.int32).to("cuda")
    tensor = torch.zeros(count, dtype=torch.int32).to("cuda")
    device.sleep(int(1e6 * seconds))
    tensor.copy_(source)
    return tensor


def check_streams() -> None:
    """A call starts after the operations in the current stream, and delays neither the host nor
    this stream. The stream that waits for the work sees the result."""
    streams = device.new_stream(), device.new_stream()
    device.use_stream(streams[0])
    tensor = late(rank + 1, seconds=VERY_LONG)
    started = time.monotonic()
    work = dist.all_reduce(tensor, async_op=True)
    assert time.monotonic() - started < VERY_LONG / 2, "the call waits for the stream"
    assert not work.is_completed()
    device.use_stream(streams[1])
    work.wait()
    assert time.monotonic() - started < VERY_LONG / 2, "the wait blocks the host"
    kept = torch.zeros_like(tensor)
    kept.copy_(tensor)
    assert (kept.cpu() == total).all(), kept.cpu()
    device.use_stream(0)


def check_limit() -> None:
    device.use_stream(device.new_stream())
    work = dist.all_reduce(late(1), async_op=True)
    work.wait(timedelta(seconds=20))
    assert work.is_completed()
    device.use_stream(0)


def check_future() -> None:
    device.use_stream(device.new_stream())
    tensor = late(rank + 1)
    seen = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0].cpu())
    assert (seen.wait() == total).all()
    device.use_stream(0)


def check_memory() -> None:
    device.use_stream(device.new_stream())
    tensor = late(rank + 1, 60).view(10, 6).t()  # the input and the results are copied
    work = dist.all_reduce(tensor, async_op=True)
    others = [torch.full((60,), 99, dtype=torch.int32).to("cuda") for _ in range(8)]
    work.wait()
    assert (tensor.cpu() == total).all() and all((o.cpu() == 99).all() for o in others)
    works = []
    for _ in range(20):  # the program holds no reference to the tensors
        works.append(dist.all_reduce(late(rank + 1, 1000), async_op=True))
        torch.full((1000,), 7, dtype=torch.int32).to("cuda")
    for work in works:
        work.wait()
        assert (work.result()[0].cpu() == total).all()
    device.use_stream(0)


def check_copied_back() -> None:
    """Memory into which the group's stream copies results is not used again before the copy, though
    the operation has ended."""
    streams, many = (device.new_stream(), device.new_stream()), 40
    device.use_stream(streams[0])
    inputs = [torch.full((1000,), rank + i).to("cuda") for i in range(many)]
    outputs = [[torch.zeros(1000).long().to("cuda") for _ in inputs] for _ in range(size)]
    work = dist.distributed_c10d._get_default_group().allgather_coalesced(outputs, inputs)
    device.use_stream(streams[1])
    work.wait(timedelta(seconds=20))
    device.use_stream(streams[0])
    others = [torch.full((1000 * size,), 99).to("cuda") for _ in range(many)]
    device.use_stream(streams[1])
    for r in range(size):
        for i in range(many):
            assert (outputs[r][i].cpu() == r + i).all(), (r, i, outputs[r][i].cpu())
    del others
    device.use_stream(0)


def check_coalesced() -> None:
    tensors = [late(rank + i, 1000) for i in range(12)]
    dist.all_reduce_coalesced(tensors)
    for i, tensor in enumerate(tensors):
        assert (tensor.cpu() == total + size * (i - 1)).all()
    with dist._coalescing_manager(device=torch.device("cuda")) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    del manager
    for i, tensor in enumerate(tensors):
        assert (tensor.cpu() == size * (total + size * (i - 1))).all()


def check_copies() -> None:
    """Whichever call completes a work, the result arrives in the stream in which the operation was
    called."""
    stream = device.new_stream()
    for end in (lambda work: work.wait(), lambda work: work.get_future().wait()):
        tensor = torch.full((1000,), rank + 1, dtype=torch.int32).to("cuda")
        device.use_stream(stream)
        work = dist.all_reduce(tensor, async_op=True)
        device.use_stream(0)
        end(work)
        assert device.copied_in() == stream, device.copied_in()
        assert (tensor.cpu() == total).all()


compared = compare("cuda")
if PART == "native":
    dist.all_reduce(late(0))  # the first long one waits for all ranks, and compiles the kernel
    check_streams()
    check_limit()
    check_future()
    check_memory()
    check_copied_back()
    check_coalesced()
if PART == "copies":
    check_copies()
compare_trainings("cuda", 0 if FOLDER else 1e-3)  # a GPU has kernels of its own
print("compared", compared)
dist.destroy_process_group()
