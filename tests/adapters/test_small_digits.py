# SPDX-License-Identifier: Apache-2.0
"""The digits examples of the smaller adapters: two processes reach the accuracy of one.

Each framework has an environment of its own, which `make test-heritage` makes. Frameworks that are
not installed are skipped.
"""

import importlib.util
import re
import sys
from pathlib import Path

import adapter_list
import pytest
from conftest import Finished, Mpi, Run

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
FRAMEWORKS = {
    framework: EXAMPLES / f"{adapter.name}_digits.py"
    for framework, adapter in adapter_list.ADAPTER_OF.items()
    if (EXAMPLES / f"{adapter.name}_digits.py").exists()
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
LIMIT = 300


@pytest.fixture(params=FRAMEWORKS)
def example(request: pytest.FixtureRequest) -> Path:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"there is no {request.param}")
    return FRAMEWORKS[request.param]


def accuracy(ended: Finished, size: int) -> float:
    (line,) = re.findall(r"accuracy .*", ended.expect_success().out)
    print(line)  # shown by pytest -rP
    found = re.fullmatch(r"accuracy ([\d.]+) %  (\d) process.*  weights [0-9a-f]{16}", line)
    assert found and int(found[2]) == size, line
    return float(found[1])


def test_digits(run_here: Run, ddlrun: Run, mpi: Mpi, example: Path) -> None:
    command = [sys.executable, example]
    alone = accuracy(run_here(command, env=ONE_THREAD, limit=LIMIT), 1)
    together = accuracy(ddlrun(2, example, env=ONE_THREAD, limit=LIMIT), 2)
    command = mpi.command(2, example)
    env = {**mpi.environment, **ONE_THREAD}
    under_mpirun = accuracy(run_here(command, env=env, limit=LIMIT), 2)
    assert min(alone, together, under_mpirun) >= 96
    assert max(abs(alone - together), abs(alone - under_mpirun)) <= 1.5
