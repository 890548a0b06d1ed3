# SPDX-License-Identifier: Apache-2.0
"""Training in JAX: the example through both interfaces, the documents' programs, and the
helpers."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from conftest import Run

if importlib.util.find_spec("jax") is None:
    pytest.skip("there is no jax", allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent.parent
SHOWN = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "jax.md").read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def built(jax_native: list[Path]) -> None:
    """Build the native parts before the time limits of the ranks begin."""


@pytest.mark.parametrize("style", [[], pytest.param(["--stock"], marks=pytest.mark.slow)])
def test_digits(ddlrun: Run, style: list[str]) -> None:
    ended = ddlrun(2, ROOT / "examples" / "jax_digits.py", *style, limit=240).expect_success()
    (accuracy,) = re.findall(r"accuracy ([\d.]+) %  .* 2 process\(es\), batch 64", ended.out)
    assert float(accuracy) >= 97
    assert "differ" not in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("text", SHOWN)
def test_documents(ddlrun: Run, text: str) -> None:
    if "jax_cuda_visible_devices" in text:
        pytest.skip("needs a GPU for each rank")
    for name in re.findall(r"^(?:import|from) (\w+)", text, re.M):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"there is no {name}")
    ddlrun(2, text, limit=120).expect_success()


def test_all_is_shown() -> None:
    assert len(SHOWN) == 8


def test_packed_gradients_train_like_f32(ddlrun: Run) -> None:
    """Ranks that are joined by TCP count as hosts."""
    if importlib.util.find_spec("optax") is None:
        pytest.skip("there is no optax")
    program = Path(__file__).parent / "programs" / "jax_packing.py"
    ended = ddlrun(2, program, limit=240, env={"DDL_LINKS": "tcp"}).expect_success()
    assert ended.out.count("done") == 2


def test_helpers(ddlrun: Run) -> None:
    text = """
import jax, jax.numpy as jnp, numpy as np
import ddl_jax as ddl
from ddl_core.errors import InvalidArgument
ddl.init()
rank, size = ddl.rank(), ddl.size()
mean = (size + 1) / 2

def loss(w, x):
    return (w["a"] * x).sum() + w["b"], "own" * (rank + 1)

w, x = {"a": jnp.ones(3), "b": jnp.float32(0)}, jnp.full(3, rank + 1.0)
(value, aux), gradients = ddl.value_and_grad(loss, has_aux=True)(w, x)
assert value == 3 * mean and aux == "own" * (rank + 1)
assert gradients["a"].tolist() == [mean] * 3 and gradients["b"] == 1
total, parts = jax.jit(ddl.value_and_grad(lambda w, x: (w * x).sum(), (0, 1), op="sum"))(x, x)
assert total == sum(3.0 * (r + 1) ** 2 for r in range(size))
assert parts[0].tolist() == parts[1].tolist() == [size * mean] * 3
small = ddl.value_and_grad(lambda w: (w * x).sum(), compression="bf16")(jnp.ones(3))
assert small[1].dtype == jnp.float32 and small[1].tolist() == [mean] * 3
text = jax.jit(lambda g: ddl.allreduce_gradients(g, compression="f16")).lower(x).as_text()
assert "xf16>" in text
try:
    ddl.allreduce_gradients(w, compression="f8")
except InvalidArgument as error:
    assert "compression is 'f8'; must be None, f16 or bf16" in str(error)
else:
    raise AssertionError
keys = ddl.allgather(jax.random.key_data(ddl.rank_key(jax.random.key(0)))[None])
assert len({tuple(key) for key in keys.tolist()}) == size
tree = {"key": jax.random.key(rank), "n": np.int32(rank), "name": f"r{rank}", "none": None}
tree = ddl.broadcast_parameters(tree, size - 1)
assert tree["n"] == size - 1 and tree["name"] == f"r{rank}" and tree["none"] is None
assert (jax.random.key_data(tree["key"]) == jax.random.key_data(jax.random.key(size - 1))).all()

wide = {
    "step": np.int64(2**40 + rank), "clock": np.full((2, 3), 1 / 3 + rank).T,
    "phase": np.full(2, rank + 1e-200j), "none": np.zeros((0, 2)),
}
got = ddl.broadcast_parameters(wide, size - 1)
assert got["step"] == 2**40 + size - 1 and got["step"].dtype == np.int64
assert got["clock"].dtype == np.float64 and (got["clock"] == 1 / 3 + (size - 1)).all()
assert got["phase"].dtype == np.complex128 and (got["phase"] == size - 1 + 1e-200j).all()
assert got["none"].dtype == np.float64 and got["none"].shape == (0, 2)
try:
    jax.jit(lambda: ddl.broadcast_parameters(wide))()
except InvalidArgument as error:
    assert "call broadcast_parameters outside of jax.jit" in str(error)
else:
    raise AssertionError

state = {"epoch": 7 + rank, "seed": 2**70 + rank, "rate": 0.1 * (rank + 1), "done": rank > 0}
got = ddl.broadcast_parameters(state, size - 1)
last = size - 1
assert got == {"epoch": 7 + last, "seed": 2**70 + last, "rate": 0.1 * size, "done": last > 0}
assert [type(each) for each in got.values()] == [bool, int, float, int]
assert ddl.broadcast_object({"names": ["a"] * rank}, last) == {"names": ["a"] * last}
try:
    jax.jit(lambda: ddl.broadcast_parameters({"epoch": 1}))()
except InvalidArgument as error:
    assert "pass numbers as arrays" in str(error)
else:
    raise AssertionError
try:
    ddl.broadcast_object((each for each in ()), last)
except TypeError as error:
    assert f"the object of rank {last} cannot be pickled" in str(error)
else:
    raise AssertionError

def counted(tree):
    return (tree["w"] * tree["n"]).sum() * (rank + 1)

tree = {"w": jnp.ones(2), "n": jnp.arange(2)}
for options in ({}, {"compression": "bf16"}):
    local = jax.grad(counted, allow_int=True)(tree)
    got = ddl.allreduce_gradients(local, **options)
    assert got["n"].dtype == jax.dtypes.float0 and got["w"].tolist() == [0, mean]
    step = ddl.value_and_grad(counted, allow_int=True, **options)
    assert jax.jit(lambda tree: step(tree)[1]["w"])(tree).tolist() == [0, mean]
print("done", flush=True)
"""
    assert ddlrun(2, text, limit=120).expect_success().out.count("done") == 2


def test_build_without_a_compiler(run_here: Run, tmp_path: Path) -> None:
    env = {"DDL_CACHE": str(tmp_path / "cache"), "CXX": "nothing++"}
    command = [sys.executable, "-m", "ddl_jax", "build"]
    ended = run_here(command, env=env)
    assert ended.code == 1 and "CXX is 'nothing++', not found" in ended.err
    assert "Traceback" not in ended.err


def test_info(run_here: Run, jax_native: list[Path]) -> None:
    ended = run_here([sys.executable, "-m", "ddl_jax", "info"]).expect_success()
    for part in jax_native:
        assert f"{part}  built" in ended.out
