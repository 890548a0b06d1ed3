# SPDX-License-Identifier: Apache-2.0
"""jax's own collectives over libddl, on real processes. The programs are in programs/. This file
also tests unsupported operations, failures, and programs that do not know libddl."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Mpi, Run

if importlib.util.find_spec("jax") is None:
    pytest.skip("there is no jax", allow_module_level=True)

PROGRAMS = Path(__file__).parent / "programs"

PLAIN = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("d",))
step = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "d"), mesh=mesh, in_specs=P("d"),
                             out_specs=P()))
def ranks():
    sharding = jax.NamedSharding(mesh, P("d"))
    return jax.make_array_from_process_local_data(sharding, np.full(1, jax.process_index() + 1.0))
total = float(step(ranks()).addressable_data(0)[0])
"""


@pytest.fixture(autouse=True)
def built(jax_native: list[Path]) -> None:
    """Build the native parts before the time limits of the ranks begin."""


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_stock_collectives(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAMS / "jax_stock.py", limit=300).expect_success()
    numbers = [int(number) for number in re.findall(r"checked (\d+)", ended.out)]
    assert len(numbers) == size and min(numbers) > 25


def test_program_that_knows_nothing(ddlrun: Run, tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    own = "import jax\njax.distributed.initialize('127.0.0.1:1', 2, 0)\n"  # ignored
    program.write_text(own + PLAIN + "import sys\nprint('total', total, sys.argv[1:])\n")
    launcher = f"import runpy, sys\nsys.argv[1:] = ['run', {str(program)!r}, 'x', '-y']\n"
    ended = ddlrun(2, launcher + "runpy.run_module('ddl_jax', run_name='__main__')\n", limit=120)
    assert ended.expect_success().out.count("total 3.0 ['x', '-y']") == 2


def test_dead_rank(ddlrun: Run) -> None:
    text = f"""
import ddl_jax
ddl_jax.initialize(timeout=30)
{PLAIN}
import os, signal, sys
if jax.process_index() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    step(ranks()).block_until_ready()
except Exception as error:
    assert "rank 1" in str(error), error
    print("told", flush=True)
os._exit(0)
"""
    ended = ddlrun(2, text, limit=120)
    assert ended.lines(0) == ["told"], ended.out + ended.err


def test_rank_that_raises(unwatched: Run) -> None:
    text = f"""
import ddl_jax
ddl_jax.initialize(timeout=60)
{PLAIN}
if jax.process_index() == 1:
    raise ValueError("of rank 1")
try:
    step(ranks()).block_until_ready()
except Exception as error:
    assert "rank 1" in str(error) and "left" in str(error), error
    print("told", flush=True)
"""
    other, raised = unwatched(2, text, limit=40)
    assert other.expect_success().out == "told\n"
    assert raised.code == 1 and "ValueError: of rank 1" in raised.err


@pytest.mark.slow
def test_end_with_collectives_under_way(unwatched: Run) -> None:
    """Programs whose results one rank has dropped still run for the other rank, which starts
    later."""
    text = f"""
import ddl_jax
ddl_jax.initialize(timeout=60)
{PLAIN}
import time
large = jax.make_array_from_process_local_data(
    jax.NamedSharding(mesh, P("d")), np.ones((1, 1 << 20), np.float32))
step(large).block_until_ready()
if jax.process_index() == 1:
    for _ in range(5):
        step(large)
else:
    time.sleep(4)  # longer than shutdown waits for other threads
    results = [step(large) for _ in range(5)]
    print(*(int(each.addressable_data(0)[0, 7]) for each in results))
"""
    waits, drops = unwatched(2, text, limit=60)
    assert waits.expect_success().out == "2 2 2 2 2\n", waits.err
    assert drops.expect_success().err.count("Traceback") == 0, drops.err


@pytest.mark.slow
def test_under_mpirun(run_here: Run, mpi: Mpi, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import ddl_jax\nddl_jax.initialize(timeout=60)\n{PLAIN}print(total)\n")
    command, env = mpi.command(2, program), mpi.environment
    ended = run_here(command, env=env, limit=120).expect_success()
    assert "".join(ended.out.split()) == "3.03.0"  # two lines, whose ends may be printed together


@pytest.mark.slow
def test_shutdown_with_a_collective_under_way(ddlrun: Run) -> None:
    text = f"""
import ddl_jax
ddl_jax.initialize(timeout=60)
{PLAIN}
import os, threading, time
if jax.process_index() == 1:
    while not os.path.exists("done"):
        time.sleep(0.05)
    os._exit(0)
def call():
    try:
        step(ranks()).block_until_ready()
    except Exception as error:
        print(str(error).splitlines()[0], flush=True)
thread = threading.Thread(target=call)
thread.start()
time.sleep(0.5)
start = time.monotonic()
ddl_jax.shutdown()
took = time.monotonic() - start
thread.join(10)
call()
print("in time" if 1.5 < took < 5 else took, flush=True)
open("done", "w").close()
os._exit(0)
"""
    aborted, refused, took = ddlrun(2, text, limit=60).lines(0)
    assert "shut down with operations under way" in aborted
    assert "not initialized, or shut down" in refused
    assert took == "in time"


@pytest.mark.parametrize(
    ("local", "master", "host"),
    [(2, "node1", "127.0.0.1"), (1, "node1", "node1"), (1, "fe80::1", "[fe80::1]")],
)
def test_coordinator(local: int, master: str, host: str) -> None:
    from ddl_jax.distributed import _coordinator

    comm = SimpleNamespace(rank=0, size=2, local_size=local, broadcast=lambda text: None)
    name, port = _coordinator(comm, master).rsplit(":", 1)
    assert name == host and 0 < int(port) < 65536


def test_refused_at_the_start(run_here: Run, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    for text, env, said in (
        ("import jax, ddl_jax\nddl_jax.initialize()", {}, "jax is already imported"),
        (
            "import ddl_jax\nddl_jax.initialize()",
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            "this process has 2 devices",
        ),
    ):
        program.write_text(text)
        ended = run_here([sys.executable, program], env=env, limit=120)
        assert ended.code == 1 and said in ended.err, ended.err


def test_calls_that_are_not_mapped(jax_native: list[Path]) -> None:
    """Each function reports its name, and there is one for each name that jaxlib looks up."""
    (library,) = (path for path in jax_native if "mpi" in path.name)
    text = f"""
import ctypes
library = ctypes.CDLL({str(library)!r})
text, length = ctypes.create_string_buffer(256), ctypes.c_int()
for name in ("Bcast", "Alltoall", "Comm_dup", "Win_create"):
    assert library["MPIABI_" + name]() != 0
    library.MPIABI_Error_string(15, text, ctypes.byref(length))
    said = f"libddl: jaxlib called MPI_{{name}}, which ddl_jax does not have"
    assert text.value.decode() == said and length.value == len(said), text.value
"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("libddl: jaxlib called MPI_") == 4

    found = importlib.util.find_spec("jaxlib")
    assert found and found.submodule_search_locations
    (common,) = Path(found.submodule_search_locations[0]).rglob("libjax_common.so")
    wanted = set(re.findall(rb"\0(MPIX?ABI_[A-Za-z0-9_]+)(?=\0)", common.read_bytes()))
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, check=True).stdout
    missing = wanted - set(re.findall(rb" [BDT] (\w+)", symbols))
    assert len(wanted) > 600 and not missing, missing
