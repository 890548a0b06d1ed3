# SPDX-License-Identifier: Apache-2.0
"""Programs of JAX on NVIDIA GPUs: their calls, and the handler. The GPU and XLA's client for it are
stand-ins."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
from conftest import Run, library_path

FOLDER = Path(__file__).parent
PROGRAM = FOLDER / "programs" / "jax_cuda.py"

LOWERED = """
import jax
import jax.numpy as jnp
import ddl_jax

ddl_jax.init()
def total(x):
    return ddl_jax.broadcast(x, 0).sum() + ddl_jax.allreduce(x).sum()
traced = jax.jit(jax.value_and_grad(total)).trace(jnp.ones(4))
for platform in "cpu", "cuda":
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    for line in text.splitlines():
        if "custom_call @ddl" in line:
            arrays = line.partition("(")[2].partition(")")[0].count("%") - 1
            kind = line.partition('kind = "')[2].partition('"')[0]
            if kind != "allreduce":
                print(platform, kind, arrays, "output_operand_alias" in line)
assert (jax.jit(jax.grad(total))(jnp.ones(4)) == 2).all()
"""


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory, run_program: Run) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler
    folder = tmp_path_factory.mktemp("frames")
    jaxlib = importlib.util.find_spec("jaxlib")
    assert jaxlib is not None and jaxlib.origin is not None
    headers = Path(jaxlib.origin).parent / "include"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-isystem{headers}"]
    command = [compiler, *flags, FOLDER / "xla_frames.c", "-o", folder / "frames.so"]
    run_program(command, cwd=folder, limit=60).expect_success()
    return folder / "frames.so"


@pytest.mark.usefixtures("jax_native")
@pytest.mark.parametrize(
    "size", [3, pytest.param(2, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)]
)
def test_operations(ddlrun: Run, cuda_standin: Path, frames: Path, size: int) -> None:
    env = {**library_path(cuda_standin), "PYTHONPATH": str(FOLDER.parent)}
    ended = ddlrun(size, PROGRAM, str(frames), env=env, limit=180).expect_success()
    for rank in range(size):
        assert ended.lines(rank) == ["compared"]


@pytest.mark.usefixtures("jax_native")
def test_what_a_program_calls(run_here: Run) -> None:
    """On a GPU, a broadcast uses the array's memory for its result, and a reduce gives ranks other
    than the root zeros."""
    ended = run_here([sys.executable, "-c", LOWERED], limit=120).expect_success()
    assert ended.out.splitlines() == [
        "cpu broadcast 1 False",
        "cpu reduce 1 False",
        "cuda broadcast 1 True",
        "cuda reduce 2 True",
    ]
