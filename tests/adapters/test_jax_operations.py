# SPDX-License-Identifier: Apache-2.0
"""ddl_jax on real processes: operations under every transformation, failures, the exit of
processes. The programs of the operations are in programs/."""

import importlib.util
import re
import signal
import sys
from pathlib import Path

import pytest
from conftest import Run, program_cases

if importlib.util.find_spec("jax") is None:
    pytest.skip("there is no jax", allow_module_level=True)

PROGRAMS = Path(__file__).parent / "programs"

START = """
import os, signal, sys, time
import jax
import jax.numpy as jnp
import ddl_jax as ddl

def refused(text, function, *arguments):
    started = time.monotonic()
    try:
        jax.block_until_ready(function(*arguments))
    except jax.errors.JaxRuntimeError as raised:
        assert text in str(raised), raised
        return time.monotonic() - started
    raise AssertionError(f"{text!r} was not raised")

ddl.init(timeout=20)
rank, size = ddl.rank(), ddl.size()
"""


@pytest.fixture(autouse=True)
def built(jax_native: list[Path]) -> None:
    """Build the native parts before the time limits of the ranks begin."""


@pytest.fixture
def ranks(unwatched: Run) -> Run:
    return lambda size, text: unwatched(size, START + text)


@pytest.mark.parametrize(
    ("size", "sample"),
    [
        (2, ["sample"]),  # a sample of the transformations
        *(pytest.param(size, [], marks=pytest.mark.slow) for size in (1, 2, 3)),
    ],
)
def test_operations(ddlrun: Run, size: int, sample: list[str]) -> None:
    ended = ddlrun(size, PROGRAMS / "jax_operations.py", *sample, limit=300).expect_success()
    numbers = [int(number) for number in re.findall(r"checked (\d+)", ended.out)]
    assert len(numbers) == size and min(numbers) > 150


@pytest.mark.parametrize(
    ("size", "links"),
    [(3, "tcp"), *(pytest.param(size, "shm", marks=pytest.mark.slow) for size in (2, 4))],
)
def test_invariant_sums(ddlrun: Run, size: int, links: str) -> None:
    program = PROGRAMS / "jax_invariant.py"
    ended = ddlrun(size, program, env={"DDL_LINKS": links}, limit=180).expect_success()
    assert ended.out.count("done") == size


def test_failures_inside_programs(ranks: Run) -> None:
    """A mismatch and a dead rank, in the middle of a compiled program. Then the world is joined
    again, and the same program runs in both worlds. No rank ends another's process."""
    text = """
step = jax.jit(lambda v: jax.lax.fori_loop(0, 3, lambda i, u: ddl.allreduce(u) * 0.5, v))
assert step(jnp.ones(5))[0] == (size / 2) ** 3
said = "called all-reduce(f32, "
refused(said, step, jnp.ones(4 + rank))
refused(said, ddl.jit(ddl.allreduce), jnp.ones(4))
refused(said, ddl.barrier)
ddl.shutdown()
ddl.init(timeout=20)
assert step(jnp.ones(5))[0] == (size / 2) ** 3
ddl.barrier()
if rank == 1:
    while not os.path.exists("passed.0") or not os.path.exists("passed.2"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
open(f"passed.{rank}", "w").close()
assert refused("rank 1", step, jnp.ones(5)) < 10
print("told")
"""
    survivor, victim, other = ranks(3, text)
    assert victim.code == -signal.SIGKILL
    assert survivor.expect_success().out == other.expect_success().out == "told\n"


PROGRAMS_OF_RANKS = {  # by name and number of ranks
    ("operation_that_expires", 2): """
ddl.shutdown()
ddl.init(timeout=2)
if rank == 0:
    assert refused("past its limit", ddl.allreduce, jnp.ones(1)) < 10
    open("told", "w").close()
else:
    while not os.path.exists("told"):
        time.sleep(0.1)
    refused("past its limit", lambda: (ddl.allreduce(jnp.ones(1)), ddl.barrier()))
""",
    ("shutdown_with_operations_under_way", 2): """
import threading
results = {}
def late(name):
    try:
        results[name] = float(step(jnp.float32(1)))
    except Exception as error:
        results[name] = str(error)
step = jax.jit(ddl.allreduce)
step(jnp.float32(1)).block_until_ready()
for name, delay in (("soon", 0.7), ("never", 7)):
    if rank == 0:
        thread = threading.Thread(target=late, args=(name,))
        thread.start()
        time.sleep(0.2)
        start = time.monotonic()
        ddl.shutdown()
        assert time.monotonic() - start < 6
        thread.join()
    else:
        time.sleep(delay)
        if name == "soon":
            assert step(jnp.float32(1)) == 2
        ddl.shutdown()
    ddl.init(timeout=60)
if rank == 0:
    assert results["soon"] == 2, results
    assert "shut down with operations under way" in results["never"], results
""",
    ("too_many_communicators", 1): """
from ddl_core.errors import InvalidState
made = 0
try:
    while made < 1000:
        ddl.subset([0])
        made += 1
except InvalidState as error:
    assert "cannot create another communicator" in str(error)
assert 200 < made < 1000, made
""",
}
QUICK = {"operation_that_expires", "too_many_communicators"}


@pytest.mark.parametrize(("name", "size", "program"), program_cases(PROGRAMS_OF_RANKS, QUICK))
def test_each_rank_ends_well(ranks: Run, name: str, size: int, program: str) -> None:
    for ended in ranks(size, program):
        ended.expect_success()


def test_ends_of_processes(ranks: Run) -> None:
    """Ranks exit with results that were not waited for, without shutdown; with an operation that no
    other rank calls; and after a failed operation. None hangs, and none prints a false error."""
    text = """
results = [ddl.allreduce(jnp.ones(100_000)) for _ in range(5)]
pending = jax.jit(lambda v: ddl.allreduce(jnp.sin(v)))(jnp.ones(100_000))
if rank == 0:
    refused("rank 1", ddl.allreduce, jnp.ones(7))  # it is gone
print("ending")
"""
    for ended in ranks(2, text):
        ended.expect_success()
        assert ended.out == "ending\n"
        assert "Traceback" not in ended.err, ended.err


def test_use_before_init(run_here: Run, tmp_path: Path) -> None:
    text = """
import jax, jax.numpy as jnp
import ddl_jax as ddl
ddl.init()
step = jax.jit(ddl.allreduce)
assert step(jnp.ones(3)).sum() == 3
ddl.shutdown()
try:
    step(jnp.ones(3)).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    assert "not initialized: call ddl_jax.init() first" in str(error), error
else:
    raise AssertionError
ddl.init()
assert step(jnp.ones(3)).sum() == 3
print("done")
"""
    program = tmp_path / "program.py"
    program.write_text(text)
    ended = run_here([sys.executable, program], limit=120).expect_success()
    assert ended.out == "done\n"


def test_several_devices_in_a_process(run_here: Run, tmp_path: Path) -> None:
    text = """
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import ddl_jax as ddl
ddl.init()
assert jax.device_count() == 2
x = jax.device_put(jnp.ones(2), jax.devices()[1])
for jit in (jax.jit, ddl.jit):
    assert jit(ddl.allreduce)(x).sum() == 2
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
mapped = jax.shard_map(ddl.allreduce, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
for jit in (jax.jit, ddl.jit):
    try:
        jit(mapped)(jnp.ones(2))
    except NotImplementedError as error:
        assert "runs on 2 devices of 1 process(es)" in str(error), error
    else:
        raise AssertionError
"""
    program = tmp_path / "program.py"
    program.write_text(text)
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    run_here([sys.executable, program], env=env, limit=120).expect_success()
