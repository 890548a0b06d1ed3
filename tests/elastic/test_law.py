# SPDX-License-Identifier: Apache-2.0
"""Programs change state on which the next step depends, while workers die and join. The final state
is that of one undisturbed worker, or the joining worker gets an error that names the state, and the
others continue.

`make test-law` runs all of them.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "programs"))

from law import MODES

PROGRAM = Path(__file__).parent / "programs" / "law.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run"]
LIMIT = 240  # seconds, on a busy machine
QUICK = "unfreeze"
REFUSED = "added in loop"


def final(run_program: Any, folder: Path, workers: int, *words: str) -> tuple[str, dict[str, Any]]:
    report = folder / f"report{workers}.json"
    command = [*DDL, "-n", str(workers), "--quiet", "--report", report, PROGRAM, *words]
    done = run_program(command, cwd=folder, limit=LIMIT).expect_success()
    found = re.findall(r"^(?:\[\d+\] )?final (\w{64} \w{64})", done.out, re.M)
    assert len(found) == 1, done.out
    return str(found[0]), json.loads(report.read_text())


def events(report: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [each for each in report["events"] if each["kind"] == kind]


@pytest.mark.parametrize(
    "mode",
    [
        QUICK,
        *(pytest.param(m, marks=pytest.mark.slow) for m in sorted({*MODES} - {QUICK, REFUSED})),
    ],
)
def test_joining_worker_keeps_the_law(run_program: Any, tmp_path: Path, mode: str) -> None:
    alone, _ = final(run_program, tmp_path, 1, mode)
    struck, report = final(run_program, tmp_path, 2, mode, "--strike")
    died = [each["member"] for each in events(report, "died") if each["cause"] == "SIGKILL"]
    assert died == [0, 1]
    assert min(each["member"] for each in events(report, "joined")) == 2
    assert struck == alone == f"{report['hash']} {alone.split()[1]}"


@pytest.mark.slow
def test_joining_worker_with_other_parameters_is_refused(run_program: Any, tmp_path: Path) -> None:
    alone, _ = final(run_program, tmp_path, 1, REFUSED)
    struck, report = final(run_program, tmp_path, 2, REFUSED, "--strike")
    assert struck == alone
    died = events(report, "died")
    assert [each["member"] for each in died if each["cause"] == "SIGKILL"] == [0]
    refused = [each["cause"] for each in died if each["cause"] != "SIGKILL"]
    assert refused and all("cannot join before step" in each for each in refused), refused
    assert all("extra" in each for each in refused)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("keras frozen", r"the trained variables have changed since the job began: \S*first/bias"),
        ("keras option", r"the optimizer's clipnorm was 1.0 when the job began, but is now 0.5"),
        ("tensorflow frozen", r"the trained variables have changed since the job began: .* frozen"),
        ("jax added", r"update_fn changed state\['momentum'\] from missing to float32"),
    ],
)
def test_change_that_joining_workers_lack_is_refused(run_here: Any, case: str, error: str) -> None:
    pytest.importorskip(case.split()[0])
    program = PROGRAM.with_name("law_frameworks.py")
    backend = "tensorflow" if case.startswith("tensorflow") else "jax"
    env = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [*DDL, "-n", "1", "--quiet", program, case]
    done = run_here(command, env=env, limit=LIMIT)
    assert done.code != 0
    assert re.search(error, done.err + done.out), done.err


@pytest.mark.parametrize(
    ("case", "warning"),
    [
        (
            "attribute",
            r"queue, a tensor and attribute of a Net.*, changes .* buffer: self\.register_",
        ),
        pytest.param(
            *(
                "generator",
                r"Samples\.generator, a numpy Generator of the program's.*, has changed",
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(
                "average",
                r"of class AveragedModel.*, changes .* Give it as also=\{\"average\": averag",
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param("none", "", marks=pytest.mark.slow),
    ],
)
def test_hidden_state_is_named(run_here: Any, case: str, warning: str) -> None:
    command = [*DDL, "-n", "2", "--quiet", PROGRAM.with_name("hidden.py"), case]
    done = run_here(command, limit=LIMIT).expect_success()
    shown = done.out + done.err
    assert re.search(warning, shown), shown
    assert shown.count("is not part of the job's state") == bool(warning)
    if warning:
        assert run_here([*command, "strict"], limit=LIMIT).code != 0


@pytest.mark.parametrize(
    "strict", [pytest.param(False), pytest.param(True, marks=pytest.mark.slow)]
)
def test_joining_worker_with_hidden_state_is_named(run_here: Any, strict: bool) -> None:
    """The state does not change any more, so only the comparison of a share finds it."""
    program = PROGRAM.with_name("hidden.py")
    command = [*DDL, "-n", "2", "--quiet", program, "set once", *["strict"] * strict]
    done = run_here(command, limit=LIMIT)
    assert (done.code != 0) == strict, done.err
    shown = done.out + done.err
    found = re.search(
        r"rank 2 on \S+ \(pid \d+\) has joined, and computes other bits than rank 1 on \S+ \(pid"
        r" \d+\) in step (\d+), share \d, tensor linear\.\w+: Net\.factor, a float and"
        r" attribute of a Net, at hidden\.py:\d+, differs between the two, but is not part of the"
        r" job's state\. Compute it from step\.number",
        shown,
    )
    assert found and int(found[1]) < 60, shown
    assert strict or shown.count("has joined, and computes other bits") == 1


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_hidden_state_fails_a_strict_job_without_a_loop(run_here: Any, framework: str) -> None:
    pytest.importorskip(framework)
    finding = r"Samples\.generator, a numpy Generator .* is not part of the job's state"
    command = [sys.executable, PROGRAM.with_name("strict.py"), framework]
    warned = run_here(command, limit=LIMIT).expect_success()
    assert "trained" in warned.out and re.search(finding, warned.out + warned.err)
    failed = run_here([*command, "strict"], limit=LIMIT)
    assert failed.code != 0 and "trained" not in failed.out
    assert re.search(f"JobFailed: .*RuntimeError: .*{finding}", failed.err, re.S), failed.err
