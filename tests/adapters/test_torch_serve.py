# SPDX-License-Identifier: Apache-2.0
"""ddl in place of Gloo: programs that request "gloo" get groups of ddl."""

import sys

import pytest
from conftest import Run

pytestmark = pytest.mark.usefixtures("torch_native")

LINE = "the 2 ranks requested the backend gloo; ddl serves it instead"

# A program that does not know ddl; `serving` is the backend that it gets.
UNCHANGED = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

serving = sys.argv[1]

def train():
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(5, 3, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = torch.full((4, 5), dist.get_rank() + step, dtype=torch.float64)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_())
    return loss.item()

def check(group=None):
    assert dist.get_backend(group) == "gloo"
    assert dist.get_backend_config(group).startswith(f"cpu:{serving}"), dist.get_backend_config()
    own = group or dist.group.WORLD
    assert own._get_backend(torch.device("cpu")).name() == serving
    total = torch.ones(3) * (dist.get_rank(group) + 1)
    dist.all_reduce(total, group=group)
    size = dist.get_world_size(group)
    assert total.tolist() == [size * (size + 1) / 2] * 3

dist.init_process_group("gloo")
rank = dist.get_rank()
check()
check(dist.new_group())
check(dist.new_group(backend="gloo", timeout=timedelta(days=10_000)))
single = dist.new_group([1], backend="GLOO")
if rank == 1:
    check(single)
else:
    assert single is dist.GroupMember.NON_GROUP_MEMBER
dist.monitored_barrier()
parts = [None, None]
dist.all_gather_object(parts, {"rank": rank})
assert parts == [{"rank": 0}, {"rank": 1}]
mixed = dist.new_group(backend="cpu:gloo,cuda:gloo")
assert dist.get_backend_config(mixed) == f"cpu:{serving},cuda:gloo"
assert mixed._get_backend(torch.device("cpu")).name() == serving
assert mixed._get_backend(torch.device("cuda")).name() == "gloo"
print("loss", train().hex())
dist.destroy_process_group()
"""

CALLS = """
import os
import torch
import torch.distributed as dist
import ddl_torch
from ddl_core.errors import InvalidArgument, InvalidState

# One store for all groups. By MASTER_ADDR alone each has one of its own at the same port, and a
# fast rank may reach the one that rank 0 is about to close.
rank, master = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
stores = dist.TCPStore(*master, 2, rank == 0)

def init(backend, number):
    store = dist.PrefixStore(f"group {number}", stores)
    dist.init_process_group(backend, store=store, rank=rank, world_size=2)

def name(group=None):
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu")).name()

def refused(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} raised nothing")

for wrong in ("nccl", "", 3):
    assert f'{wrong!r}; must be "gloo"' in refused(lambda: ddl_torch.serve(wrong), InvalidArgument)
init("gloo", 1)
assert name() == "gloo"
said = refused(lambda: ddl_torch.serve("gloo"), InvalidState)
assert "process groups of Gloo already exist" in said and "before init_process_group" in said
assert name(dist.new_group()) == "gloo"
dist.destroy_process_group()

ddl_torch.serve("gloo")
init(None, 2)  # for the CPU, Gloo is the default
assert (name(), dist.get_backend_config()) == ("ddl", "cpu:ddl")
ddl_torch.serve("gloo")  # there is no group of Gloo
ddl_torch.init()  # uses the group that serves
assert (ddl_torch.rank(), ddl_torch.size()) == (dist.get_rank(), 2)
dist.destroy_process_group()

ddl_torch.serve(None)
init("gloo", 3)
assert name() == "gloo"
dist.barrier()
print("done")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_unchanged_program(ddlrun: Run) -> None:
    served = ddlrun(2, UNCHANGED, "ddl", env={"DDL_TORCH_SERVE": "gloo"}, limit=180)
    gloo = ddlrun(2, UNCHANGED, "gloo", limit=180)
    losses = {served.expect_success().lines(r)[-1] for r in (0, 1)}
    assert losses == {gloo.expect_success().lines(r)[-1] for r in (0, 1)}
    assert (served.err.count(LINE), gloo.err.count("requests for")) == (1, 0), served.err


def test_calls(ddlrun: Run) -> None:
    ended = ddlrun(2, CALLS, limit=180).expect_success()
    assert ended.out.count("done") == 2
    assert ended.err.count(LINE) == 1, ended.err


IMPORTS = """
import sys
import torch
import torch.distributed as dist
from ddl_torch import _build

def imported_by(backend):
    before = {*sys.modules}
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    return {name for name in {*sys.modules} - before if name.startswith("ddl_core")}

needed = {"ddl_core", "ddl_core.base", "ddl_core.base.paths"}
needed |= {"ddl_core.frameworks", "ddl_core.frameworks.torch_choices"}
joining = {f"ddl_core.joining{name}" for name in ("", ".env_switches", ".variables")}
found = imported_by("gloo")
assert found <= needed, found
_build.module()
found = imported_by("ddl")
assert found <= needed | joining, found
"""


def test_groups_import_little(run_here: Run) -> None:
    """Groups of other backends, which PyTorch creates for programs that do not know ddl, and groups
    of ddl."""
    run_here([sys.executable, "-c", IMPORTS], limit=180).expect_success()
