# SPDX-License-Identifier: Apache-2.0
"""Jobs of JAX, Keras and TensorFlow grow and shrink, with the state of one undisturbed worker."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import popen

PROGRAMS = Path(__file__).parent / "programs"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic"]
LIMIT = 240  # seconds, on a busy machine
MANY = 300  # more steps than pass between two changes of the workers
CASES = {
    "jax": ("train_jax.py", {"steps": MANY}),
    "tensorflow": ("train_tensorflow.py", {"steps": MANY}),
    "keras": ("train_keras.py", {"epochs": MANY // 7}),
}


def run(folder: Path, workers: str, program: str, case: dict[str, Any]) -> subprocess.Popen[str]:
    words = ["-n", workers, "--name", "job", "--report", "report.json"]
    environment = {"XDG_RUNTIME_DIR": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return popen(
        [*DDL, "run", *words, str(PROGRAMS / program), json.dumps(case)],
        cwd=folder,
        env={**environment, "KERAS_BACKEND": "jax"},
        stdout=subprocess.DEVNULL,
    )


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["jax", "keras", "tensorflow"])
def test_a_worker_joins_and_leaves(run_here: Any, tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework)
    program, given = CASES[framework]
    case = {**given, "patient": True}

    def scale(workers: int) -> int:
        command = [*DDL, "scale", "job", str(workers)]
        env = {"XDG_RUNTIME_DIR": str(tmp_path)}
        return int(run_here(command, env=env, limit=LIMIT).code)

    def await_line(text: str) -> None:
        assert job.stderr
        seen = []
        for line in job.stderr:
            seen.append(line)
            if text in line:
                return
        raise AssertionError("".join(seen))

    with run(tmp_path, "2:3", program, case) as job:
        end = time.monotonic() + LIMIT
        while scale(3):  # until the job exists
            assert job.poll() is None and time.monotonic() < end
        await_line("has joined")
        assert scale(2) == 0
        await_line("has left")
        (tmp_path / "go").touch()
        shown = "".join(iter(job.stderr.readline, "")) if job.stderr else ""
    assert job.returncode == 0, shown
    disturbed = report(tmp_path)
    kinds = [event["kind"] for event in disturbed["events"]]
    assert (kinds.count("joined"), kinds.count("left"), kinds.count("died")) == (1, 1, 0)
    with run(tmp_path, "1", program, case) as alone:
        _, shown = alone.communicate(timeout=LIMIT)
    assert alone.returncode == 0, shown
    assert disturbed["hash"] == report(tmp_path)["hash"]
