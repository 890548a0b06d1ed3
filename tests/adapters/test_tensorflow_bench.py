# SPDX-License-Identifier: Apache-2.0
"""python -m bench training --framework tensorflow measures ddl_tensorflow and TensorFlow's own
strategy. The test does not check the times."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from conftest import Run

if importlib.util.find_spec("tensorflow") is None:  # an import takes seconds
    pytest.skip("there is no tensorflow", allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-m", "bench", "training", "--framework", "tensorflow"]


@pytest.mark.slow
@pytest.mark.usefixtures("tensorflow_native")
def test_it_measures(run_program: Run, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    short = ["--models", "transformer,gradients", "--rounds", "1", "--steps", "1", "--json", file]
    ended = run_program([*COMMAND, *short], cwd=ROOT, limit=500).expect_success()
    assert "transformer, 19." in ended.out
    assert "| graph |" in ended.out
    told = json.loads(file.read_text())
    (model,) = told["samples"]
    assert sum(model["buckets"]) == 4 * model["parameters"]
    assert model["steps"].keys() == {"ddl", "ddl, jit", "alone", "alone, jit", "mirrored"}
    assert all(len(seconds) == 1 for rounds in model["steps"].values() for seconds in rounds)
    (group,) = told["groups"]
    assert group["bytes"] > 100e6
    assert {"bare", "graph", "jit"} < group["seconds"].keys()
    assert all(group["groups"][name] for name in ("bare", "graph"))
