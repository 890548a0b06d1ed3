# SPDX-License-Identifier: Apache-2.0
"""ddl_keras on each backend of Keras, and the examples for Keras and TensorFlow."""

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Mpi, Run

if importlib.util.find_spec("keras") is None:  # an import takes seconds
    pytest.skip("there is no keras", allow_module_level=True)

PROGRAM = Path(__file__).parent / "programs" / "keras_training.py"
COMMUNICATORS = PROGRAM.with_name("keras_communicators.py")
EQUAL = PROGRAM.with_name("keras_equal.py")
EQUAL_PARTS = (
    *("unbuilt", "root_checkpoint", "delegating", "copies", "layer_copies", "scaled", "masks"),
    *("threads", "metrics"),
)
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
# A separate process, which must not find libddl.
WITHOUT_DDL = """
import sys
for name in ("ddl_core", "ddl_keras", "ddl_tensorflow", "ddl_jax", "ddl_torch"):
    sys.modules[name] = None
import keras
for file in sys.argv[1:]:
    model = keras.models.load_model(file)
    optimizer = type(getattr(model, "optimizer", None)).__name__
    print(optimizer, [type(layer).__name__ for layer in model.layers])
"""


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "jax")]


@pytest.fixture(params=["tensorflow", *SLOW])
def backend(request: pytest.FixtureRequest, native_part: Callable[[str], list[Path]]) -> str:
    """The name of an installed backend of Keras whose adapter's native part is built."""
    name: str = request.param
    for needed in (name, f"ddl_{name}"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"there is no {needed}")
    native_part(f"ddl_{name}")
    return name


@pytest.mark.slow
def test_training(ddlrun: Run, run_program: Run, tmp_path: Path, backend: str) -> None:
    trains_as_one(ddlrun, run_program, tmp_path, {**QUIET, "KERAS_BACKEND": backend})


@pytest.mark.slow
def test_training_without_compiler(ddlrun: Run, run_program: Run, tmp_path: Path) -> None:
    without = {"CXX": "no-such-compiler", "DDL_CACHE": str(tmp_path / "empty")}
    env = {**QUIET, **without, "KERAS_BACKEND": "tensorflow"}
    trains_as_one(ddlrun, run_program, tmp_path, env, "interpreted")


def trains_as_one(
    ddlrun: Run, run_program: Run, tmp_path: Path, env: dict[str, str], *more: str
) -> None:
    """Two processes with halves of the batches have the losses of one process with whole
    batches."""
    ended = ddlrun(2, PROGRAM, str(tmp_path), *more, env=env, limit=240).expect_success()
    together = json.loads(ended.lines(0)[0])
    files = [tmp_path / "model.keras", tmp_path / "normalized.keras"]
    command = [sys.executable, "-c", WITHOUT_DDL, *files]
    alone_env = {**env, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # PyTorch finds ddl by itself
    loaded = run_program(command, cwd=tmp_path, env=alone_env, limit=90).expect_success()
    assert loaded.out.splitlines() == [
        "SGD ['Dense', 'Dense']",
        "NoneType ['Dense', 'BatchNormalization', 'Dense']",
    ]
    for file in files:
        file.unlink()
    # Return the losses of the same program in one process.
    command = [sys.executable, PROGRAM, tmp_path, *more, "losses"]
    ended = run_program(command, cwd=tmp_path, env=env, limit=240).expect_success()
    alone = json.loads(ended.out)
    ways = {"graph", "clipped", "normalized", "accumulated", "scaled and accumulated"}
    assert together.keys() == alone.keys() >= ways
    for way, losses in alone.items():
        assert together[way] == pytest.approx(losses, rel=1e-5, abs=0), way


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_unequal_at_start_end_equal(
    ddlrun: Run, tmp_path: Path, backend: str, size: int
) -> None:
    env = {**QUIET, "KERAS_BACKEND": backend}
    ended = ddlrun(size, EQUAL, str(tmp_path), env=env, limit=240).expect_success()
    for rank in range(size):
        assert ended.lines(rank) == [f"done {part}" for part in EQUAL_PARTS]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_communicators(ddlrun: Run, backend: str, size: int) -> None:
    env = {**QUIET, "KERAS_BACKEND": backend}
    ended = ddlrun(size, COMMUNICATORS, env=env, limit=240)
    if backend == "torch":
        assert "ddl_keras on PyTorch supports only operations of all ranks" in ended.err
    else:
        assert ended.expect_success().out.count("done ") == 6 * size, ended.out


def test_packed_gradients_train_like_f32(ddlrun: Run, backend: str) -> None:
    """Ranks that are joined by TCP count as hosts. ddl_tensorflow's program runs in the processes
    that have imported TensorFlow for Keras."""
    env = {**QUIET, "KERAS_BACKEND": backend, "DDL_LINKS": "tcp"}
    programs = ["keras_packing", *["tensorflow_packing"] * (backend == "tensorflow")]
    file = PROGRAM.with_name("several.py")
    ended = ddlrun(2, file, " ".join(programs), env=env, limit=300).expect_success()
    assert ended.out.count("done") == 2 * len(programs)


@pytest.mark.usefixtures("tensorflow_native")
@pytest.mark.parametrize(
    "program",
    [
        ["keras_digits.py", "--epochs", "5"],
        pytest.param(["tf_custom_loop.py"], marks=pytest.mark.slow),
    ],
    ids=lambda program: program[0],
)
def test_examples(ddlrun: Run, program: list[str]) -> None:
    env = {**QUIET, "KERAS_BACKEND": "tensorflow"}
    ended = ddlrun(2, EXAMPLES / program[0], *program[1:], env=env, limit=180).expect_success()
    (line,) = ended.lines(0)
    found = re.match(r"accuracy ([\d.]+) %  loss [\d.]+  2 processes, batch 32", line)
    assert found and float(found[1]) >= 97, line
    assert ended.lines(1) == []


@pytest.mark.slow
@pytest.mark.usefixtures("tensorflow_native")
@pytest.mark.parametrize(
    ("program", "more"),
    [("keras_digits.py", ["--jit", "--save", "model.keras"]), ("tf_custom_loop.py", [])],
)
def test_example_under_mpirun(
    mpi: Mpi, run_here: Run, tmp_path: Path, program: str, more: list[str]
) -> None:
    command = mpi.command(2, EXAMPLES / program, "--epochs", "1", *more)
    env = {**mpi.environment, **QUIET, "KERAS_BACKEND": "tensorflow"}
    ended = run_here(command, env=env, limit=180).expect_success()
    assert re.search(r"accuracy .* 2 processes", ended.out), ended.out
    assert (tmp_path / "model.keras").exists() == ("--save" in more)
