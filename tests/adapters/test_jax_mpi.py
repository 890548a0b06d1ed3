# SPDX-License-Identifier: Apache-2.0
"""The library that jaxlib loads as an MPI. Threads call it like XLA's, while other threads end
comms."""

import importlib.util
import sys
from pathlib import Path

import pytest
from conftest import Run

if importlib.util.find_spec("jax") is None:  # an import takes seconds
    pytest.skip("there is no jax", allow_module_level=True)

# Rank 0 uses MPI's calls and receives a message that nobody has sent; rank 1 is a comm of ddl_core.
PROGRAM = """
import ctypes, sys, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from ddl_core import Config, Endpoint
from ddl_core.base._lib import ffi

library = ctypes.CDLL(sys.argv[1])
endpoints = Endpoint(secret="test"), Endpoint(secret="test")
addresses = [each.address for each in endpoints]
pool = ThreadPoolExecutor(2)
config = Config(operation_timeout=30)
a, b = pool.map(lambda rank: endpoints[rank].connect(addresses, rank, config), range(2))
library.ddl_jax_mpi_open(ctypes.c_void_p(int(ffi.cast("uintptr_t", a._handle))))
WORLD, F32 = (ctypes.c_size_t.in_dll(library, f"MPIABI_{n}") for n in ("COMM_WORLD", "FLOAT"))
request, array = ctypes.c_size_t(), np.zeros(100000, np.float32)

def receive(comm):
    pointer = array.ctypes.data_as(ctypes.c_void_p)
    assert library.MPIABI_Irecv(pointer, array.size, F32, 1, 0, comm, ctypes.byref(request)) == 0

def wait():
    code = library.MPIABI_Wait(ctypes.byref(request), None)
    text, length = ctypes.create_string_buffer(256), ctypes.c_int()
    library.MPIABI_Error_string(code, text, ctypes.byref(length))
    return code, text.value.decode()

def waiter():
    begun = threading.Event()
    future = pool.submit(lambda: (begun.set(), wait())[1])
    begun.wait()
    threading.Event().wait(0.2)  # until it is inside
    return future

part = sys.argv[2]
if part == "close while waiting":
    receive(WORLD)
    waiting = waiter()
    assert library.ddl_jax_mpi_close() == 1
    code, text = waiting.result(10)
    assert code and "shut down with operations under way" in text, (code, text)
elif part == "wait after close":
    receive(WORLD)
    assert library.ddl_jax_mpi_close() == 1
    waiting = waiter()
    a.close()
    code, text = waiting.result(10)
    assert code and "ddl_comm_destroy while operations were pending" in text, (code, text)
elif part == "free while waiting":
    half = ctypes.c_size_t()
    other = pool.submit(b.split, 0, 1)
    assert library.MPIABI_Comm_split(WORLD, 0, 0, ctypes.byref(half)) == 0
    receive(half)
    waiting = waiter()
    freed = ctypes.c_size_t(half.value)
    assert library.MPIABI_Comm_free(ctypes.byref(freed)) == 0 and freed.value == 0
    assert library.MPIABI_Comm_rank(half, ctypes.byref(ctypes.c_int())) != 0
    other.result().send(np.ones(array.size, np.float32), 0)
    assert waiting.result(10) == (0, "success") and array.all()
    assert library.ddl_jax_mpi_close() == 1
for each in (a, b, *endpoints):
    each.close()
print("done")
"""


@pytest.mark.parametrize("part", ["close while waiting", "wait after close", "free while waiting"])
def test_wait(run_here: Run, jax_native: list[Path], part: str) -> None:
    library = next(path for path in jax_native if "mpi" in path.name)
    command = [sys.executable, "-c", PROGRAM, library, part]
    assert run_here(command).expect_success().out == "done\n"
