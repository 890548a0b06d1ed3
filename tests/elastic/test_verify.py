# SPDX-License-Identifier: Apache-2.0
"""Programs with hidden state are right, or named: by `ddl elastic verify` with the cause, and by
the warnings of a normal run. Programs that keep the law get no warning.

`make test-law` runs all of them.
"""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "hidden_state"))

import framework_cases
from cases import CASES, Case

FOLDER = Path(__file__).parent / "hidden_state"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic"]
LIMIT = 240  # seconds, on a busy machine
QUICK = ["plain", "own generator"]
ENVIRONMENT = {"KERAS_BACKEND": "jax"}
WARNINGS = (
    "is not part of the job's state|has changed the number|is refused: it computes other bits"
)
# Cases of which a normal run does not warn. The first is state only if the cache depends on more
# than the index. The others keep the law in workers that `ddl elastic run` has started.
NOT_WARNED = {
    *("cache of augmented samples", "hash of a name", "order of a set", "subset of each epoch")
}


def find_program(name: str) -> Path:
    has_frameworks = CASES[name].run.__module__ == framework_cases.__name__
    return FOLDER / ("framework_cases.py" if has_frameworks else "cases.py")


def verify(run_program: Any, folder: Path, name: str) -> None:
    case: Case = CASES[name]
    command = [*DDL, "verify", find_program(name), name]
    done = run_program(command, cwd=folder, env=ENVIRONMENT, limit=LIMIT)
    if done.code == 0:
        assert case.is_right and "keeps the law" in done.out, done.out + done.err
        return
    assert done.code == 1, done.out + done.err
    found = re.findall(r"^(?:likely cause| +or): (.*)$", done.out, re.M)
    assert any(re.search(cause, found[0]) for cause in case.causes), done.out


@pytest.mark.parametrize("name", QUICK)
def test_verify_names_the_cause(run_program: Any, tmp_path: Path, name: str) -> None:
    verify(run_program, tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*CASES} - {*QUICK}))
def test_verify_names_the_cause_of_each_case(run_program: Any, tmp_path: Path, name: str) -> None:
    if find_program(name).name == "framework_cases.py":
        pytest.importorskip("keras")
        pytest.importorskip("jax")
    verify(run_program, tmp_path, name)


def count_warnings(run_program: Any, folder: Path, name: str) -> int:
    command = [*DDL, "run", "-n", "2", "--quiet", find_program(name), name]
    done = run_program(command, cwd=folder, env=ENVIRONMENT, limit=LIMIT).expect_success()
    return len(re.findall(WARNINGS, done.out + done.err))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_run_warns_of_hidden_state_alone(run_program: Any, tmp_path: Path, name: str) -> None:
    if find_program(name).name == "framework_cases.py":
        pytest.importorskip("keras")
        pytest.importorskip("jax")
    is_hidden = bool(CASES[name].causes) and name not in NOT_WARNED
    assert bool(count_warnings(run_program, tmp_path, name)) == is_hidden
