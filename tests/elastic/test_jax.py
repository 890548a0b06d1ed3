# SPDX-License-Identifier: Apache-2.0
"""Elastic training with JAX: the same bits for any number of workers, whichever worker dies."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "train_jax.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic_digits_jax.py"
LIMIT = 300  # seconds, on a busy machine


def digits(run_program: Any, folder: Path, *words: str) -> tuple[str, int]:
    command = [sys.executable, EXAMPLE, "--passes", "2", *words]
    done = run_program(command, cwd=folder, limit=LIMIT)
    done.expect_success()
    found = re.search(r"(\d+) shares recomputed.* state (\w+)", done.out)
    assert found, done.out
    return found[2], int(found[1])


def run(run_program: Any, folder: Path, *prefix: str, **case: Any) -> Any:
    command = [*(prefix or [sys.executable]), PROGRAM, json.dumps(case)]
    return run_program(command, cwd=folder, limit=LIMIT)


def states(done: Any) -> set[str]:
    done.expect_success()
    return set(re.findall(r"state (\w+ \d+)", done.out))


def elastic_run(workers: int) -> list[str]:
    ddl = [sys.executable, "-m", "ddl_launch.commands"]
    return [*ddl, "elastic", "run", "--quiet", "-n", str(workers)]


@pytest.fixture(scope="module")
def alone(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    found, recomputed = digits(run_program, tmp_path_factory.mktemp("alone"), "--workers", "1")
    assert recomputed == 0
    return found


@pytest.mark.slow
def test_digits_whoever_dies(run_program: Any, tmp_path: Path, alone: str) -> None:
    found, recomputed = digits(run_program, tmp_path, "--workers", "3", "--kill", "2")
    assert found == alone
    assert 0 < recomputed <= 6 + 8


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_digits_on_other_numbers_of_workers(
    run_program: Any, tmp_path: Path, alone: str, workers: int
) -> None:
    kills = ("--kill", str(workers - 1))
    assert digits(run_program, tmp_path, "--workers", str(workers), *kills)[0] == alone


@pytest.mark.slow
def test_a_program_of_several_workers(run_program: Any, tmp_path: Path) -> None:
    (alone,) = states(run(run_program, tmp_path))
    assert alone.endswith(" 14")  # 2 in each of seven steps
    found = states(run(run_program, tmp_path, *elastic_run(3), kills=1))
    assert found == {alone}


def test_jax_has_started_before(run_program: Any, tmp_path: Path) -> None:
    done = run(run_program, tmp_path, starts=True)
    assert done.code == 1
    assert "RuntimeError: JAX has already computed in this process" in done.err


@pytest.mark.slow
def test_a_job_goes_on_from_its_checkpoint(run_program: Any, tmp_path: Path) -> None:
    case = {"checkpoint": str(tmp_path / "saved"), "every": 3}
    undisturbed = states(run(run_program, tmp_path, steps=12))
    run(run_program, tmp_path, **case, workers=2, steps=5).expect_success()
    assert states(run(run_program, tmp_path, **case, steps=12)) == undisturbed


def test_a_round_steps_the_outer_optimizer(run_program: Any, tmp_path: Path) -> None:
    """Parameters take steps with Nesterov momentum; the rest of the state is averaged, and numbers
    that are not floating-point are logical worker 0's."""
    program = PROGRAM.parent / "jax_outer_step.py"
    run_program([sys.executable, program], cwd=tmp_path, limit=LIMIT).expect_success()


ROUNDS = {"local_steps": 2, "steps": 5}


def test_rounds_on_several_workers(run_program: Any, tmp_path: Path) -> None:
    (alone,) = states(run(run_program, tmp_path, **ROUNDS))
    assert alone.endswith(" 20")  # 2 in each of two local steps of five rounds
    found = states(run(run_program, tmp_path, *elastic_run(2), kills=1, **ROUNDS))
    assert found == {alone}


@pytest.mark.slow
def test_rounds_go_on_from_a_checkpoint(run_program: Any, tmp_path: Path) -> None:
    (whole,) = states(run(run_program, tmp_path, **ROUNDS))
    saved = {"checkpoint": str(tmp_path / "saved"), "every": 1}
    run(run_program, tmp_path, **saved, **{**ROUNDS, "steps": 2}).expect_success()
    found = run(run_program, tmp_path, *elastic_run(2), **saved, **ROUNDS)
    assert states(found) == {whole}
