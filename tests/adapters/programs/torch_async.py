# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_async on two or more ranks: works, futures and their callbacks."""

import gc
import sys
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("ddl", timeout=timedelta(seconds=30))
rank, size = dist.get_rank(), dist.get_world_size()
total = size * (size + 1) / 2


def start(count: int = 10) -> tuple[dist.Work, torch.Tensor]:
    tensor = torch.full((count,), rank + 1.0)
    return dist.all_reduce(tensor, async_op=True), tensor


# Many works at once, waited for in any order.
works = [start(100 * number) for number in range(60)]
for work, tensor in works[::-1] + works:
    assert work.wait()
    assert work.is_completed()
    assert torch.equal(tensor, torch.full_like(tensor, total))
for work, tensor in works:
    assert work.get_future().done()  # requested afterwards
    assert work.get_future().value()[0].data_ptr() == tensor.data_ptr()

# Futures that are used before wait() and without it.
for work, tensor in [start(100 * number) for number in range(60)]:
    (result,) = work.get_future().wait()
    assert torch.equal(result, torch.full_like(tensor, total))

# A future that was requested before wait() has its value after it, as with Gloo.
for _ in range(100):
    work, tensor = start()
    future = work.get_future()
    work.wait()
    assert future.value()[0].data_ptr() == tensor.data_ptr()

# Polling alone.
work, tensor = start()
while not work.is_completed():
    pass
assert tensor[0] == total

# A callback's thread does not hold the GIL. Several callbacks run in order.
work, tensor = start()
order: list[str] = []
future = work.get_future().then(lambda f: order.append("first") or f.value()[0] * 2)
future = future.then(lambda f: order.append("second") or f.value() + 1)
work.get_future().add_done_callback(lambda f: order.append("done"))
assert future.wait()[0] == 2 * total + 1
work.wait()


class Dispatched(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


# A thread that holds the GIL requests a work while the completion thread completes it. This thread
# needs the GIL, too, to copy the outputs and to drop the only reference to the input.
if rank == 0 and size > 1:
    watched = dist.irecv(torch.empty(1), 1).get_future()  # starts the completion thread
interval = sys.getswitchinterval()
sys.setswitchinterval(100)
for ask in ("get_future", "is_completed"):
    outputs = [torch.empty(1).as_subclass(Dispatched) for _ in range(size)]
    work = dist.all_gather(outputs, torch.ones(1), async_op=True)
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        pass
    getattr(work, ask)()
    work.wait()
sys.setswitchinterval(interval)
if rank == 1:
    dist.send(torch.ones(1), 0)
elif rank == 0 and size > 1:
    watched.wait()


# A callback that waits for further operations, nested.
def deeper(level: int) -> torch.Tensor:
    work, tensor = start()
    if level == 0:
        work.wait()
        return tensor
    return work.get_future().then(lambda f: f.value()[0] + deeper(level - 1)).wait()


assert deeper(5)[0] == 6 * total

# A callback that adds callbacks to the future of its own result, and to the future of a later
# callback. They start operations with other values, while the main thread runs one, too.
both_known = threading.Event()
results: list[torch.Tensor] = []


def add_to_both(of: torch.futures.Future) -> str:
    assert both_known.wait(20)
    for number, each in enumerate((late_result, own_result)):

        def reduce(of: torch.futures.Future, number: int = number) -> None:
            results.append(torch.full((10,), number + 1.0))
            dist.all_reduce(results[-1])

        if number:
            each.add_done_callback(reduce)
        else:
            each.then(reduce).then(lambda f: order.append("after the late one"))
    return "own"


own_result = start()[0].get_future().then(add_to_both)
late_result = start()[0].get_future().then(lambda f: "late")
both_known.set()
work, tensor = start()
start()[0].get_future().then(lambda f: None).wait()  # the callbacks have run
assert (own_result.wait(), late_result.wait()) == ("own", "late")
work.wait()
assert tensor[0] == total and order[-1] == "after the late one"
assert [each[0] for each in results] == [2 * size, size]

# The future raises the exception of a callback, and later operations work.
work, _ = start()
future = work.get_future().then(lambda f: 1 / 0)
try:
    future.wait()
    raise AssertionError("nothing was raised")
except Exception as error:
    assert "division by zero" in str(error), error

# Dropped works keep their tensors until the end of the operation, but not longer.
for _ in range(20):
    dist.all_reduce(torch.ones(100_000), async_op=True)
    gc.collect()
work, tensor = start(50_000)
alive = weakref.ref(tensor.untyped_storage())
del work, tensor
dist.barrier()
dist.barrier()
gc.collect()
old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9)
if not old or type(dist.group.WORLD) is dist.ProcessGroup:  # else see fallback.py, _KEPT
    assert alive() is None

# Asynchronous, not contiguous.
base = torch.full((4, 6), rank + 1.0)
future = dist.all_reduce(base.t(), async_op=True).get_future()
future.wait()
assert torch.equal(base, torch.full((4, 6), total))
for _ in range(5):
    outs = [torch.zeros(5) for _ in range(size)]
    dist.all_gather(outs, torch.full((5,), float(rank)), async_op=True).get_future().wait()
    assert all(torch.equal(out, torch.full((5,), float(of))) for of, out in enumerate(outs))

# Groups are independent: each thread uses its own.
groups = [dist.new_group(list(range(size)), backend="ddl") for _ in range(3)]
failures: list[BaseException] = []


def use(group: dist.ProcessGroup) -> None:
    try:
        for number in range(100):
            tensor = torch.full((number,), rank + 1.0)
            if number % 2:
                dist.all_reduce(tensor, group=group)
            else:
                tensor = dist.all_reduce(tensor, group=group, async_op=True).get_future().wait()[0]
            assert torch.equal(tensor, torch.full_like(tensor, total))
    except BaseException as error:
        failures.append(error)


threads = [threading.Thread(target=use, args=(group,)) for group in groups]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures

# A wait with a time limit leaves the work pending.
if rank == 0 and size > 1:
    work, tensor = start()
    try:
        work.wait(timedelta(milliseconds=200))
        raise AssertionError("nothing was raised")
    except dist.DistBackendError as error:
        assert "not complete after 200 ms" in str(error), error
    assert not work.is_completed()
    Path("waited").touch()
else:
    while size > 1 and not Path("waited").exists():
        time.sleep(0.01)
    work, tensor = start()
work.wait()
assert tensor[0] == total

dist.destroy_process_group()
assert work.wait()  # the same again, also now
print("done")
