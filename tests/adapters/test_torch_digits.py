# SPDX-License-Identifier: Apache-2.0
"""The example trains a real network: in one process, on two, and under mpirun."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Finished, Mpi, Run

pytestmark = pytest.mark.usefixtures("torch_native")

BATCH, EPOCHS = 64, 15
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # the value of ddlrun on two cores
STEPS_PER_EPOCH = 1437 // BATCH


@dataclass(frozen=True)
class Trained:
    accuracy: float
    losses: list[float]
    processes: int


def outcome(ended: Finished, log: Path) -> Trained:
    (line,) = re.findall(r"accuracy .*", ended.expect_success().out)
    found = re.fullmatch(
        r"accuracy ([\d.]+) %  loss [\d.]+  [\d.]+ s"
        r"  (\d) processes?, batch 64  weights [0-9a-f]{16}",
        line,
    )
    assert found, line
    losses = [json.loads(entry)["loss"] for entry in log.read_text().splitlines()]
    return Trained(float(found[1]), losses, int(found[2]))


@pytest.fixture(scope="session")
def alone(
    run_program: Run, train_digits: Path, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    folder = tmp_path_factory.mktemp("alone")
    options = ["--global-batch", str(BATCH), "--epochs", str(EPOCHS), "--loss-log", "log"]
    command = [sys.executable, train_digits, *options]
    return outcome(run_program(command, cwd=folder, env=ONE_THREAD, limit=180), folder / "log")


def compare(trained: Trained, alone: Trained) -> None:
    assert trained.processes == 2 and alone.processes == 1
    assert min(trained.accuracy, alone.accuracy) >= 97
    assert abs(trained.accuracy - alone.accuracy) <= 1
    assert len(trained.losses) == len(alone.losses)
    first_epoch = slice(STEPS_PER_EPOCH)
    assert trained.losses[first_epoch] == pytest.approx(alone.losses[first_epoch], rel=1e-5, abs=0)
    assert trained.losses[-1] < 0.1 * trained.losses[0]


def test_two_processes(ddlrun: Run, train_digits: Path, alone: Trained, tmp_path: Path) -> None:
    ended = ddlrun(2, train_digits, "--epochs", str(EPOCHS), "--loss-log", "log", limit=180)
    compare(outcome(ended, tmp_path / "log"), alone)
    assert len(ended.lines(0)) == 1 and ended.lines(1) == []
    assert "100%" in ended.err and "[1]" not in ended.err


@pytest.mark.slow  # test_own_names_under_mpirun starts in the same way
def test_mpirun(
    mpi: Mpi, run_here: Run, train_digits: Path, alone: Trained, tmp_path: Path
) -> None:
    command = mpi.command(2, train_digits, "--epochs", str(EPOCHS), "--loss-log", "log")
    env = {**mpi.environment, **ONE_THREAD}
    ended = run_here(command, env=env, limit=180)
    compare(outcome(ended, tmp_path / "log"), alone)


@pytest.mark.slow
def test_different_weights_are_noticed(ddlrun: Run, train_digits: Path) -> None:
    text = f"""
import sys
sys.path.insert(0, {str(train_digits.parent)!r})
import train_digits
import ddl_torch as ddl
train_digits.hash_of = lambda model: bytes([ddl.rank()] * 32)
sys.argv[1:] = ["--epochs", "1"]
sys.exit(train_digits.main())
"""
    ended = ddlrun(2, text, limit=180)
    assert ended.code == 1
    assert "the processes' weights differ" in ended.err
    assert "accuracy" not in ended.out


@pytest.mark.slow
def test_batch_that_cannot_be_shared(ddlrun: Run, train_digits: Path) -> None:
    ended = ddlrun(2, train_digits, "--global-batch", "33", limit=120)
    assert ended.code == 1
    assert "--global-batch 33 cannot be shared equally by 2 processes" in ended.err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        pytest.param(
            "--global-batch",
            "2000",
            "the batch of 2000 is larger than the 1437 images",
            marks=pytest.mark.slow,
        ),
        ("--epochs", "0", "'0' is not a positive integer"),
    ],
)
def test_bad_options(run_here: Run, train_digits: Path, option: str, value: str, said: str) -> None:
    ended = run_here([sys.executable, train_digits, option, value], limit=120)
    assert ended.code != 0
    assert said in ended.err and "Traceback" not in ended.err
