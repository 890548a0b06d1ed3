# SPDX-License-Identifier: Apache-2.0
"""Arrays on a GPU, which is the stand-in of libddl/tests/cuda_standin."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from conftest import Run, library_path

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "gpu.py"
KILLS = Path(__file__).parent / "programs" / "gpu_kills.py"

REFUSALS = """
import numpy as np
import pytest
import standin_arrays
from standin_arrays import CudaInterfaceArray, DLPackArray, Stream

import ddl_core
from ddl_core.errors import InvalidArgument, Unsupported
from ddl_core.calls.order import add

comm = ddl_core.init(ddl_core.Config(operation_timeout=30))
standin_arrays.start()
host = np.zeros(4, np.float32)
gpu, other = DLPackArray(host), CudaInterfaceArray(host)


def refused(kind, text, call):
    with pytest.raises(kind, match=text):
        call()


def changed(**changes):
    array = CudaInterfaceArray(host)
    array.changes = changes
    return array


refused(InvalidArgument, "recv: in host memory, but send is on a GPU; copy one of them",
        lambda: comm.allreduce(gpu, host))
refused(InvalidArgument, "recv: on a GPU, but send is in host memory",
        lambda: comm.allreduce(host, gpu))
order = comm.order([0])
refused(InvalidArgument, r"parts\\[0\\]: in host memory, but recv is on a GPU",
        lambda: comm.allreduce_ordered(order, [host], gpu))
refused(InvalidArgument, "dst is on a GPU, but add takes only arrays in host memory",
        lambda: add(gpu, gpu, other))
refused(InvalidArgument, "stream is set, but the arrays are in host memory",
        lambda: comm.allreduce(host, stream=1))
for wrong in ("1", -1, True, 1.5):
    refused(InvalidArgument, "stream is .*, which is not a CUDA stream",
            lambda: comm.allreduce(gpu, stream=wrong))
refused(Unsupported, "which named operations do not support", lambda: comm.allreduce(gpu, name="a"))
refused(Unsupported, "which messages do not support", lambda: comm.send(gpu, 0))
group = comm.group()
group.allreduce(gpu)
refused(InvalidArgument, "DDL_MEMORY_HOST, but the group's operations have DDL_MEMORY_CUDA",
        lambda: group.allreduce(host))
refused(InvalidArgument, "stream cannot be set for an operation of a group; pass it to submit",
        lambda: group.allreduce(gpu, stream=1))
refused(Unsupported, "which named operations do not support", lambda: group.submit(name="a"))
refused(InvalidArgument, "array: .* is read-only",
        lambda: comm.broadcast(changed(data=(other.address.value, True))))
refused(InvalidArgument, r"array: shape \\(4,\\) with strides \\(8,\\) .* is not C-contiguous",
        lambda: comm.broadcast(changed(strides=(8,))))
comm.broadcast(changed(strides=(4,)))
refused(InvalidArgument, "array has dtype >f4 of foreign byte order",
        lambda: comm.broadcast(changed(typestr=">f4")))
refused(InvalidArgument, "array has dtype .*; must be one of",
        lambda: comm.broadcast(changed(typestr="|V3")))
refused(InvalidArgument, "array: .* has a mask", lambda: comm.broadcast(changed(mask=object())))
one, two = Stream(), Stream()
refused(InvalidArgument, "stream is None, but the arrays are used in the streams 0x.* and 0x",
        lambda: comm.allreduce(CudaInterfaceArray(host, one), CudaInterfaceArray(host, two)))
comm.allreduce(CudaInterfaceArray(host, one), CudaInterfaceArray(host, two), stream=one)
print("refused")
"""


@pytest.fixture(scope="module")
def standin_env(cuda_standin: Path) -> dict[str, str]:
    return {**library_path(cuda_standin), "PYTHONPATH": str(ROOT / "tests")}


# Through NCCL if possible, otherwise through host memory.
NCCL, HOST = "1", "0"


@pytest.mark.parametrize(
    "size, direct, gpus",
    [pytest.param(1, HOST, 1, marks=pytest.mark.slow), (3, HOST, 1), (3, NCCL, 3)],
)
def test_operations(
    ddlrun: Run, standin_env: dict[str, str], size: int, direct: str, gpus: int
) -> None:
    env = {
        **standin_env,
        "DDL_LINKS": "shm",
        "DDL_GPU_DIRECT_BYTES": direct,
        "DDL_STANDIN_DEVICES": str(gpus),
        "DDL_LOG": "info",
    }
    ended = ddlrun(size, PROGRAM, env=env).expect_success()
    for rank in range(size):
        assert ended.lines(rank) == [f"compared {results(rank, size)}"]
    assert ("NCCL 22703 runs operations" in ended.err) == (gpus == size == 3)


def results(rank: int, size: int) -> int:
    runs, ordered = 3 * (6 + 5) + 1, 3 * (4 + 4) + 1
    each = 11 + (rank == size - 1) + 2 * (rank == 0)
    return runs * each + ordered


@pytest.mark.parametrize("links", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_kill(ddlrun: Run, standin_env: dict[str, str], links: str, tmp_path: Path) -> None:
    env = {**standin_env, "DDL_LINKS": links}
    ended = ddlrun(4, KILLS, str(tmp_path / "killed"), env=env)
    for rank in range(3):
        assert re.fullmatch(r"told after [\d.]+ s", "".join(ended.lines(rank))), ended.err


def test_the_library_of_a_package_is_found(
    run_here: Run, cuda_standin: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    shutil.copy(cuda_standin / "libnccl.so.2", folder)
    find = "import ctypes, ddl_core.calls.gpu as gpu; {} ctypes.CDLL('libnccl.so.2')"
    env = {"PYTHONPATH": str(tmp_path)}
    for call, code in (("", 1), ("gpu.load_libraries();", 0)):
        ended = run_here([sys.executable, "-c", find.format(call)], env=env)
        assert ended.code == code, ended.err


def test_refusals(ddlrun: Run, standin_env: dict[str, str]) -> None:
    assert ddlrun(1, REFUSALS, env=standin_env).expect_success().lines(0) == ["refused"]
