# SPDX-License-Identifier: Apache-2.0
"""Elastic training with Keras on each of its backends: the same bits whichever worker dies."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "train_keras.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic_digits_keras.py"
LIMIT = 400  # seconds, on a busy machine
BACKENDS = ["tensorflow", "jax", "torch"]


def environment(backend: str) -> dict[str, str]:
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}


def digits(run_program: Any, folder: Path, backend: str, *words: str) -> tuple[str, int]:
    command = [sys.executable, EXAMPLE, "--epochs", "2", *words]
    done = run_program(command, env=environment(backend), cwd=folder, limit=LIMIT)
    done.expect_success()
    found = re.search(r"(\d+) shares recomputed.* state (\w+)", done.out)
    assert found, done.out
    return found[2], int(found[1])


def fit(
    run_program: Any, folder: Path, backend: str, workers: int, **case: Any
) -> tuple[str, list[dict[str, Any]]]:
    run = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run", "--quiet", "--no-replace"]
    words = ["-n", str(workers), "--report", "report.json", PROGRAM, json.dumps(case)]
    done = run_program([*run, *words], env=environment(backend), cwd=folder, limit=LIMIT)
    done.expect_success()
    results = re.findall(r"^\[\d\] result (.*)$", done.out, re.MULTILINE)
    report = json.loads((folder / "report.json").read_text())
    return report["hash"], [json.loads(each) for each in results]


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("tensorflow", marks=pytest.mark.slow),
        pytest.param("jax", marks=pytest.mark.slow),
        pytest.param("torch", marks=pytest.mark.slow),
    ],
)
def test_digits_whoever_dies(run_program: Any, tmp_path: Path, backend: str) -> None:
    alone, recomputed = digits(run_program, tmp_path, backend, "--workers", "1")
    assert recomputed == 0
    disturbed, recomputed = digits(run_program, tmp_path, backend, "--workers", "3", "--kill", "2")
    assert disturbed == alone
    assert 0 < recomputed <= 6 + 8


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_fit(run_program: Any, tmp_path: Path, backend: str) -> None:
    alone, (one,) = fit(run_program, tmp_path, backend, 1)
    assert one["seen"] == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"]
    names = ["loss", "mae", "val_loss", "val_mae"]
    assert sorted(one["history"]) == names
    assert all(len(one["history"][name]) == 3 for name in names)
    assert one["history"]["loss"][-1] < one["history"]["loss"][0]
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0].split(",") == ["epoch", "loss", "mae", "val_loss", "val_mae"]
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "2"]
    (tmp_path / "log.csv").unlink()
    disturbed, others = fit(run_program, tmp_path, backend, 3, kills=1)
    assert disturbed == alone
    assert others == [one, one]
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines if line[0] != "e"] == ["0", "1", "2"]


STATE = """
import keras, numpy as np
import ddl_keras.elastic as elastic
from ddl_elastic.frameworks.protocol import digest

elastic.pin(1)
model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
model.compile("adam", "mse")
batch = np.arange(12, dtype="f4").reshape(4, 3), np.ones((4, 1), "f4")
adapter = elastic.Adapter(model, batch)
adapter.result()
adapter.begin(0)
state = adapter.state()
before = digest(state)
adapter.run(batch)
assert digest(adapter.state()) != before
assert digest(state) == before
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_share_does_not_change_a_state_that_was_taken(run_here: Any, backend: str) -> None:
    command = [sys.executable, "-c", STATE]
    run_here(command, env=environment(backend), limit=LIMIT).expect_success()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_callbacks_stop_all_workers(run_program: Any, tmp_path: Path, backend: str) -> None:
    case = {"epochs": 9, "least": 100, "wait": 1, "own": True}
    alone, (one,) = fit(run_program, tmp_path, backend, 1, **case)
    assert one["seen"][-1] == "end 1"
    together, others = fit(run_program, tmp_path, backend, 2, **case)
    assert together == alone
    assert others == [one, one]


@pytest.mark.slow
def test_fit_goes_on_from_its_checkpoint(run_program: Any, tmp_path: Path) -> None:
    alone, (one,) = fit(run_program, tmp_path, "jax", 1)
    case = {"checkpoint": str(tmp_path / "saved"), "every": 3}
    fit(run_program, tmp_path, "jax", 2, epochs=1, **case)  # seven steps
    for manifest in (tmp_path / "saved").glob("*0007*"):
        manifest.unlink()
    resumed, (other,) = fit(run_program, tmp_path, "jax", 1, **case)
    assert resumed == alone
    assert other["history"] == one["history"]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name"), [("tensorflow", "TensorFlow"), ("jax", "JAX")])
def test_the_backend_has_started_before(run_here: Any, backend: str, name: str) -> None:
    program = (
        "import keras, numpy as np, ddl_keras.elastic as elastic\n"
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "data = np.zeros((8, 2)), np.zeros((8, 1))\n"
        "elastic.Job(lambda: model, data, batch=4, logical=2).train()\n"
    )
    command = [sys.executable, "-c", program]
    done = run_here(command, env=environment(backend), limit=LIMIT)
    assert done.code == 1
    assert f"RuntimeError: {name} has already computed in this process" in done.err
