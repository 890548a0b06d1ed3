# SPDX-License-Identifier: Apache-2.0
"""Errors of the backend "ddl", and the exit of processes."""

import signal
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import Run, program_cases

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.usefixtures("torch_native")

START = """
import os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

def refused(error, text, function, *arguments):
    started = time.monotonic()
    try:
        function(*arguments)
    except error as raised:
        assert text in str(raised), raised
        return time.monotonic() - started
    raise AssertionError(f"{text!r} was not raised")

dist.init_process_group("ddl", timeout=timedelta(seconds=20))
rank, size = dist.get_rank(), dist.get_world_size()
Dead = dist.DistBackendError
"""


@pytest.fixture
def ranks(unwatched: Run) -> Run:
    return lambda size, text: unwatched(size, START + text, 60, torchrun=True)


PROGRAMS_OF_RANKS = {  # by name and number of ranks
    ("arguments_and_mismatch", 2): """
ones, ops = torch.ones(2), dist.ReduceOp
gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
integers = torch.ones(2, dtype=torch.int32)
refused(NotImplementedError, "ddl allreduce: ", dist.all_reduce, ones, ops.BAND)
refused(TypeError, "ddl allreduce: cannot reduce tensors of type Float8_e4m3fnuz", dist.all_reduce,
        torch.ones(2).to(torch.float8_e4m3fnuz))
sparse = ones.to_sparse()
refused(ValueError, "only ReduceOp.SUM and AVG", dist.all_reduce, sparse, ops.MAX)
refused(ValueError, f"the tensor of rank {1 - rank} is [{3 - rank}] of Float with 1 sparse dim",
        dist.all_reduce, torch.ones(2 + rank).to_sparse())
refused(ValueError, "the input has 2 elements, but this rank's output has 3", dist.all_gather,
        [torch.ones(3), torch.ones(3)], ones)
refused(ValueError, "output has 3 elements, which is not 2 times the 2 of input", gather,
        torch.ones(3), ones)
refused(TypeError, "input is of type Int, output of type Float", scatter, torch.ones(1), integers)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
refused(TypeError, "outputs[1] is of type Int, the other side of type Float", backend.allgather,
        [[ones, integers]], [ones])
options = dist.BroadcastOptions()
options.rootRank = 7
refused(ValueError, "the root is rank 7, but the group has 2 ranks", backend.broadcast, [ones],
        options)
refused(ValueError, "ddl send: tensors has layout Sparse", backend.send, [sparse], 1 - rank, 0)
refused(ValueError, "the destination is rank 2, but the group has 2", backend.send, [ones], 2, 0)
refused(ValueError, "the source is rank -1, but", backend.recv, [ones], -1, 0)
for sizes in ([1, 2], [2], [1, 1, 0], [-1, 3], [2**62, 2**62]):
    for output_sizes, input_sizes in ((sizes, [1, 1]), ([1, 1], sizes)):
        refused(ValueError, f"are {sizes}; must be 2 numbers", dist.all_to_all_single, ones, ones,
                output_sizes, input_sizes)
refused(ValueError, "input has 3 rows; must be a multiple of the 2 ranks", dist.all_to_all_single,
        torch.ones(3), torch.ones(3))
refused(ValueError, "input has no dimension", dist.all_to_all_single, ones[0], ones[0])
refused(ValueError, "the member is rank 2, but the group has 2", dist.group.WORLD.split_group,
        [0, 2])
refused(ValueError, "timeout is 0 ms; must be positive", backend.set_timeout, timedelta(0))
refused(TypeError, "output is of type Float, input of type Int", backend.alltoall_base, ones,
        integers, [], [])
refused(ValueError, "inputs has 1 tensors, but there are 2 ranks", backend.alltoall, [ones, ones],
        [ones])
reducing = dist.ReduceOptions()
reducing.reduceOp = ops.BXOR
said = ["outputs has 1 tensors, but there are 2 ranks",
        "outputs has 1 lists, but is only for the root, rank 0"]
refused(ValueError, said[rank], backend.gather, [[ones]], [ones], dist.GatherOptions())
refused(Dead, "coalescing has not been started", backend._end_coalescing)
backend._start_coalescing()
refused(Dead, "coalescing has been started already", backend._start_coalescing)
refused(NotImplementedError, "cannot be coalesced", backend.allreduce, [sparse])
backend._end_coalescing().wait()
backend._start_coalescing()
refused(NotImplementedError, "ddl reduce: ", backend.reduce, [ones], reducing)
refused(Dead, "coalescing has not been started", backend._end_coalescing)
dist.all_reduce(ones)  # nothing of this has hurt the group
assert ones.tolist() == [2, 2]

tensor = torch.ones(2 + rank)
said = "called all-reduce(f32, 3, sum)"
if rank == 0:
    refused(Dead, said, dist.all_reduce, tensor)
else:
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    refused(Dead, "rank 0", future.wait)
    refused(Dead, said, work.wait)
    assert work.is_completed()
    refused(RuntimeError, said, work.get_future().then(lambda f: f.value()).wait)
refused(Dead, said, dist.barrier)
dist.destroy_process_group()
""",
    ("operation_that_expires", 2): """
store = dist.PrefixStore("second", dist.distributed_c10d._get_default_store())
dist.destroy_process_group()
short = timedelta(seconds=2)
dist.init_process_group("ddl", store=store, rank=rank, world_size=size, timeout=short)
if rank == 0:
    assert refused(Dead, "past its limit", dist.all_reduce, torch.ones(1)) < 10
else:
    time.sleep(4)
    refused(Dead, "past its limit", lambda: (dist.all_reduce(torch.ones(1)), dist.barrier()))
""",
    ("abort", 2): """
if rank == 1:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend._start_coalescing()
    collected = backend.allreduce([torch.ones(1)])
    time.sleep(0.3)
    backend.abort()
    refused(Dead, "abort of the process group on rank 1", backend._end_coalescing)
    dist.distributed_c10d._abort_process_group()
    del backend
    del collected  # hung: its calls were destroyed after the comm
else:
    refused(Dead, "abort of the process group on rank 1", dist.all_reduce, torch.ones(1))
    dist.destroy_process_group()
""",
    ("monitored_barrier", 3): """
# It names who is missing, and leaves the group as it was. Late ranks hear of the verdict.
for wait in (False, True):
    dist.monitored_barrier(timeout=timedelta(seconds=10), wait_all_ranks=wait)
if rank == 0:
    said = "[Rank 0]: Rank 0 timed out in monitoredBarrier after 500 ms: Ranks 1, 2 failed to pass"
    refused(Dead, said, dist.monitored_barrier, None, timedelta(seconds=0.5), True)
    said = "Rank 1 failed to pass monitoredBarrier in 100 ms"
    refused(Dead, said, dist.monitored_barrier, None, timedelta(seconds=0.1))
else:
    time.sleep(2)
    said = f"Rank {rank} successfully reached monitoredBarrier, but received errors"
    refused(Dead, said, dist.monitored_barrier)
    refused(Dead, said, dist.monitored_barrier)
dist.monitored_barrier()
half = dist.new_group([0, 1], backend="ddl")
if rank == 0:
    refused(Dead, "Rank 1 failed", dist.monitored_barrier, half, timedelta(seconds=0.1))
dist.barrier()
others = dist.new_group([0, 2], backend="gloo")
dist.monitored_barrier(others)  # as before

# A group made anew over the same store knows nothing of that.
store = dist.PrefixStore("second", dist.distributed_c10d._get_default_store())
dist.destroy_process_group()
for _ in range(2):
    dist.init_process_group("cpu:ddl", store=store, rank=rank, world_size=size)
    dist.monitored_barrier()
    if rank == 0:
        refused(Dead, "Rank 1 failed", dist.monitored_barrier, None, timedelta(seconds=0.1))
    dist.barrier()
    dist.destroy_process_group()
""",
    ("timeout_of_the_group", 2): """
group = dist.new_group([0, 1], backend="ddl", timeout=timedelta(seconds=30))
second = dist.new_group([0, 1], backend="ddl", timeout=timedelta(seconds=30))
group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=1))
assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=1)
assert group._get_backend(torch.device("cpu")).options.global_ranks_in_group == [0, 1]
options = dist.BarrierOptions()
options.timeout = timedelta(seconds=1)
if rank == 0:
    assert 0.9 < refused(Dead, "the timeout passed: ", dist.barrier, group) < 8
    assert 0.9 < refused(Dead, "the timeout passed: ", lambda: second.barrier(options).wait()) < 8
dist.barrier()
""",
    ("groups_of_the_default_group_need_no_store", 3): """
store = dist.distributed_c10d._get_default_store()
dist.barrier()
keys = store.num_keys()
dist.barrier()
for members in [[0, 1, 2], [0, 2], [1], [0, 2], [0, 1, 2]]:
    group = dist.new_group(members)
    if rank in members:
        ones = torch.ones(1)
        dist.all_reduce(ones, group=group)
        assert ones.item() == len(members), members
        assert dist.get_group_rank(group, rank) == members.index(rank)
dist.barrier()
assert store.num_keys() == keys, (store.num_keys(), keys)
""",
    ("ctrl_c", 2): """
import threading
if rank == 0:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    work = dist.all_reduce(torch.ones(1), async_op=True)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert refused(KeyboardInterrupt, "", work.wait) < 5
    assert not work.is_completed()
    dist.barrier()
else:
    time.sleep(3)
    dist.all_reduce(torch.ones(1))
    dist.barrier()
""",
    ("data_loader_workers", 2): """
from torch.utils.data import DataLoader
for _ in range(2):
    for batch in DataLoader(torch.arange(40.0), batch_size=4, num_workers=2):
        dist.all_reduce(batch)
dist.destroy_process_group()
""",
}
QUICK = {"arguments_and_mismatch", "ctrl_c"}


@pytest.mark.parametrize(("name", "size", "program"), program_cases(PROGRAMS_OF_RANKS, QUICK))
def test_each_rank_ends_well(ranks: Run, name: str, size: int, program: str) -> None:
    for ended in ranks(size, program):
        ended.expect_success()


@pytest.mark.slow
def test_gradient_that_some_ranks_do_not_need(ddlrun: Run) -> None:
    """Other ranks call an operation that is not the transpose, so all ranks get an error. No rank
    waits, and no gradient is silently wrong."""
    text = """
import torch, torch.distributed as dist
import ddl_torch as ddl
ddl.init()
x = torch.ones(2, requires_grad=ddl.rank() == 0)
result = ddl.broadcast(x, 0).sum()
try:
    result.backward() if ddl.rank() == 0 else ddl.barrier()
except dist.DistBackendError as error:
    assert "all-reduce(f32, 2, sum)" in str(error) and "barrier" in str(error), error
    print("told")
ddl.shutdown()
"""
    assert ddlrun(2, text).expect_success().out.count("told") == 2


# In make test, the contract of all adapters has a blocking call to a killed rank.
@pytest.mark.parametrize("kind", [pytest.param("sync", marks=pytest.mark.slow), "async"])
def test_killed_peer(ranks: Run, kind: str) -> None:
    text = f"""
dist.barrier()
if rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
tensor = torch.ones(1000)
if {kind == "sync"}:
    seconds = refused(Dead, "rank 1", dist.all_reduce, tensor)
else:
    work = dist.all_reduce(tensor, async_op=True)
    seconds = refused(Dead, "rank 1", work.get_future().wait)
    refused(Dead, "rank 1", work.wait)
assert seconds < 5, seconds
print("told")
"""
    survivor, victim, other = ranks(3, text)
    assert victim.code == -signal.SIGKILL
    assert survivor.expect_success().out == other.expect_success().out == "told\n"


SET_TIMEOUT = """
import time, warnings
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("ddl")
warnings.simplefilter("error")
set_timeout = dist.distributed_c10d._set_pg_timeout
groups = [dist.new_group([0, 1], backend="ddl") for _ in range(2)]
both = dist.new_group([0, 1], backend="cpu:ddl,cuda:gloo")  # the default of each device's own
for group in (*groups, both):
    set_timeout(timedelta(seconds=1), group)
    assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=1)
for wrong, error in ((timedelta(0), ValueError), (1.5, TypeError)):
    try:
        set_timeout(wrong)
        raise AssertionError(f"{wrong} was taken")
    except error as raised:
        assert "timeout" in str(raised), raised
other = dist.new_group([0, 1], backend="gloo")
set_timeout(timedelta(seconds=50), other)  # as before
if dist.get_rank() == 0:
    for group in (*groups[:1], both):
        started = time.monotonic()
        try:
            dist.barrier(group)
            raise AssertionError("the barrier was passed")
        except dist.DistBackendError as error:
            assert 0.9 < time.monotonic() - started < 20, error
set_timeout(timedelta(seconds=50))
dist.barrier()
print("told")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("env", [{}, {"CXX": "nothing++", "DDL_CACHE": "nowhere"}])
def test_set_pg_timeout(ddlrun: Run, env: dict[str, str]) -> None:
    assert ddlrun(2, SET_TIMEOUT, env=env).expect_success().out.count("told") == 2


@pytest.mark.slow
def test_refused_arguments(ddlrun: Run) -> None:
    ended = ddlrun(3, PROGRAMS / "torch_refusals.py", limit=120).expect_success()
    assert ended.out.count("refused 35") == 3


def test_rank_that_does_not_come(run_here: Run, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
from datetime import timedelta
import torch.distributed as dist
store = dist.FileStore("store", 3)
dist.init_process_group("ddl", store=store, rank=1, world_size=3, timeout=timedelta(seconds=1))
""")
    ended = run_here([sys.executable, program])
    assert ended.code == 1
    said = "ddl: rank 1 of 3 could not exchange addresses within 1 s; missing: rank 0, 2"
    assert f"DistBackendError: {said}" in ended.err


@pytest.mark.slow
def test_store_that_is_lost(run_here: Run, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import subprocess, sys
import torch.distributed as dist
serve = '''
import os, signal, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
while not any("exchange1/1" in key for key in store.list_keys()):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
'''
server = subprocess.Popen([sys.executable, "-c", serve], stdout=subprocess.PIPE, text=True)
store = dist.TCPStore("127.0.0.1", int(server.stdout.readline()), 2)
try:
    dist.init_process_group("ddl", store=store, rank=1, world_size=2)
finally:
    server.kill()
    server.wait()
""")
    ended = run_here([sys.executable, program], limit=120)
    assert ended.code == 1
    said = "ddl: rank 1 of 2 lost the store through which the ranks exchange addresses ("
    assert f"DistBackendError: {said}" in ended.err


@pytest.mark.parametrize(
    "ending",
    [
        *(
            pytest.param(ending, marks=pytest.mark.slow)
            for ending in (
                "pass",
                "pid = os.fork(); pid and os.waitpid(pid, 0)",
                "dist.destroy_process_group()",
                "dist.destroy_process_group(); print('ending'); sys.exit(0)",
                "work = dist.all_reduce(torch.ones(9), async_op=True); work.get_future()",
            )
        ),
        "group.shutdown(); group.shutdown(); dist.destroy_process_group(); del group",
        "work = dist.all_reduce(torch.ones(9), async_op=True)\n"
        "work.get_future().then(lambda f: time.sleep(0.5)); del work",
    ],
)
def test_end_of_the_process(ranks: Run, ending: str) -> None:
    text = f"""
group = dist.group.WORLD
for _ in range(5):
    dist.all_reduce(torch.ones(9), async_op=True).get_future().wait()
dist.new_group([0, 1], backend="ddl")
{ending}
print("ending")
"""
    for ended in ranks(2, text):
        ended.expect_success()
        assert "ending" in ended.out
        assert "terminate" not in ended.err and "libddl[" not in ended.err


@pytest.mark.slow
def test_shutdown_with_operations_that_never_end(ranks: Run) -> None:
    text = """
tensor = torch.ones(1)
if rank == 0:
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    started = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - started < 5
    refused(Dead, "shut down with operations pending", work.wait)
    refused(Dead, "shut down with operations pending", future.wait)
    refused(Dead, "the process group has been shut down", group.allreduce, [tensor])
else:
    time.sleep(3)
    refused(Dead, "", dist.barrier)
""".replace("tensor = torch.ones(1)", "tensor, group = torch.ones(1), dist.group.WORLD")
    for ended in ranks(2, text):
        ended.expect_success()


WITHIN = {
    "signal": """
def destroy(*_):
    dist.destroy_process_group()
signal.signal(signal.SIGALRM, destroy)
signal.alarm(2)
refused(Dead, "shut down", dist.all_reduce_coalesced, [ones, ones])
""",
    "finalizer": """
ones.attribute = Finalizer()
dist.all_reduce(ones, async_op=True)
del ones
time.sleep(1)
try:
    dist.all_reduce(torch.ones(1))
except Dead:
    pass
""",
    "completion": """
future = dist.irecv(torch.empty(1), 1).get_future()
ones.attribute = Finalizer()
dist.all_reduce(ones, async_op=True)
del ones
while dist.is_initialized():
    time.sleep(0.01)
""",
}


@pytest.mark.parametrize(
    "way", [way if way == "signal" else pytest.param(way, marks=pytest.mark.slow) for way in WITHIN]
)
def test_shutdown_from_within(ranks: Run, way: str) -> None:
    text = f"""
class Finalizer:
    def __del__(self):
        dist.destroy_process_group()
ones = torch.ones(9)
if rank == 0:
{textwrap.indent(WITHIN[way], "    ")}
else:
    if {way!r} in ("finalizer", "completion"):
        dist.all_reduce(ones)
    time.sleep(6)
    os._exit(0)
print("ended", flush=True)
"""
    ended = ranks(2, text)[0].expect_success()
    assert "ended" in ended.out


def test_forked_child_that_destroyed_its_groups_raises(ranks: Run) -> None:
    text = """
part = dist.new_group([0, 1], backend="ddl")
backends = [group._get_backend(torch.device("cpu")) for group in (dist.group.WORLD, part)]
done = dist.all_reduce(torch.ones(3), group=part, async_op=True)
done.wait()
groups = dist.group.WORLD, part
pending = [dist.irecv(torch.empty(1), 1 - rank, group=group) for group in groups]
futures = [pending[0].get_future()]  # a thread waits for it
if os.fork() == 0:
    signal.alarm(30)
    dist.destroy_process_group()
    done.wait()  # had ended before
    assert done.get_future().wait()[0].tolist() == [2, 2, 2]
    for work in pending:
        refused(Dead, "before the process was forked", work.wait)
    refused(Dead, "before the process was forked", pending[1].get_future().wait)
    for backend in backends:
        refused(Dead, "has been shut down", backend.allreduce, [torch.ones(1)])
        refused(Dead, "has been shut down", backend.barrier, dist.BarrierOptions())
        refused(Dead, "has been shut down", backend._start_coalescing)
        refused(Dead, "has been shut down", backend._end_coalescing)
        backend.abort()
        backend.shutdown()
    print("child", flush=True)
    sys.exit(0)
assert os.wait()[1] == 0
for group, work in zip(groups, pending):
    dist.send(torch.ones(1), 1 - rank, group=group)
    work.wait()
futures[0].wait()
dist.destroy_process_group()
"""
    for ended in ranks(2, text):
        assert "child" in ended.expect_success().out


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False])
def test_requests_of_the_store(run_here: Run, tmp_path: Path, native: bool) -> None:
    """A new group requests all addresses at once: each request is a round trip, which takes long if
    all ranks send requests."""
    program = tmp_path / "program.py"
    program.write_text(f"""
from collections import Counter
from datetime import timedelta
import torch.distributed as dist
from ddl_torch import _build, fallback
class Counting(dist.Store):
    def __init__(self):
        super().__init__()
        self.inner, self.asked = dist.HashStore(), Counter()
    def has_extended_api(self):
        return True
for name in ("set", "get", "add", "wait", "check", "multi_get"):
    def method(self, *arguments, name=name):
        self.asked[name] += 1
        return getattr(self.inner, name)(*arguments)
    setattr(Counting, name, method)
store = Counting()
more = ([], "", False) if {native} else ()  # the default group is of no other group's members
create = _build.module().create if {native} else fallback.ProcessGroup
group = create(store, 0, 1, timedelta(seconds=20), *more)
assert store.asked == dict(add=1, set=1, wait=1, multi_get=1), store.asked
""")
    run_here([sys.executable, program]).expect_success()


@pytest.mark.slow
def test_long_wait_for_a_rank_is_logged(unwatched: Run) -> None:
    text = """
import os, time
import torch.distributed as dist
rank = int(os.environ["RANK"])
time.sleep(25 * rank)
# PyTorch's TCPStore of MASTER_ADDR waits by itself, before it asks libddl.
dist.init_process_group("ddl", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
dist.barrier()
dist.destroy_process_group()
"""
    first, second = (ended.expect_success() for ended in unwatched(2, text, 120, torchrun=True))
    waited = (
        "ddl: rank 0 of 2 has waited for 10 s in init_process_group or new_group; not there yet"
    )
    assert f"{waited}: rank 1\n" in first.err
    assert "has waited for" not in second.err
