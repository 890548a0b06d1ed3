# SPDX-License-Identifier: Apache-2.0
"""Elastic training with TensorFlow: the same bits for any number of workers, whichever worker
dies."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "train_tensorflow.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic_digits_tensorflow.py"
LIMIT = 300  # seconds, on a busy machine


def train(
    run_program: Any, folder: Path, workers: int, program: Path, *words: str
) -> dict[str, Any]:
    command = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run", "--quiet"]
    words = ("-n", str(workers), "--report", "report.json", str(program), *words)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = run_program([*command, *words], env=environment, cwd=folder, limit=LIMIT)
    done.expect_success()
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert report["hash"]
    return report


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_digits_whoever_dies(run_program: Any, tmp_path: Path, workers: int) -> None:
    alone = train(run_program, tmp_path, 1, EXAMPLE, "--passes", "2")
    kills = ["--passes", "2", "--kill", str(workers - 1)]
    disturbed = train(run_program, tmp_path, workers, EXAMPLE, *kills)
    assert disturbed["hash"] == alone["hash"]
    assert [event["kind"] for event in disturbed["events"]].count("died") == min(workers - 1, 3)


@pytest.mark.slow
def test_a_death_in_the_middle_of_a_step(run_program: Any, tmp_path: Path) -> None:
    alone = train(run_program, tmp_path, 1, PROGRAM, "{}")
    disturbed = train(run_program, tmp_path, 3, PROGRAM, json.dumps({"kills": 1}))
    assert disturbed["hash"] == alone["hash"]
    assert disturbed["recomputed"] > 0


@pytest.mark.slow
def test_a_job_goes_on_from_its_checkpoint(run_program: Any, tmp_path: Path) -> None:
    undisturbed = train(run_program, tmp_path, 1, PROGRAM, "{}")
    case = {"checkpoint": str(tmp_path / "saved"), "every": 3}
    train(run_program, tmp_path, 2, PROGRAM, json.dumps({**case, "steps": 5}))
    resumed = train(run_program, tmp_path, 2, PROGRAM, json.dumps(case))
    assert resumed["hash"] == undisturbed["hash"]
