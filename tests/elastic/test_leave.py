# SPDX-License-Identifier: Apache-2.0
"""Workers leave a job as planned: when it gets smaller, or when they receive SIGTERM."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import popen
from waits import final_state

from ddl_elastic.base import environment
from ddl_elastic.coordinator import control
from ddl_elastic.coordinator.control import Control, ControlError

PROGRAM = Path(__file__).parent / "programs" / "own_loop.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic"]
LIMIT = 240  # seconds, on a busy machine


def kinds(report: dict[str, Any]) -> list[tuple[str, int]]:
    return [(each["kind"], each["member"]) for each in report["events"] if "member" in each]


@pytest.mark.slow
def test_a_job_gets_smaller(jobs: Any) -> None:
    _, report = jobs.train({"workers": "1:3", "start": 3, "resize": [[5, 1]], "changes": 2})
    assert sorted(kinds(report)) == [("left", 1), ("left", 2)]
    assert [w["state"] for w in report["workers"].values()] == ["done", "ended", "ended"]
    assert report["recomputed"] == 0


def test_a_worker_that_is_asked_to_leave(jobs: Any) -> None:
    case = {"start": 2, "kill": [[5, 0, signal.SIGTERM]]}
    _, fewer, filled = jobs.train(
        {**case, "workers": "1:2", "changes": 1},
        {**case, "workers": "1:3", "changes": 2, "replace": True},
    )
    assert kinds(fewer) == [("left", 0)]
    assert sorted(kinds(filled)) == [("joined", 2), ("left", 0)]


@pytest.mark.slow
def test_the_last_one_leaves_when_another_has_the_state(jobs: Any) -> None:
    case = {"workers": "1:2", "start": 1, "kill": [[5, 0, signal.SIGTERM]], "replace": True}
    _, report = jobs.train({**case, "changes": 2})
    assert kinds(report) == [("joined", 1), ("left", 0)]


def run(folder: Path, *words: str) -> subprocess.Popen[str]:
    return popen(
        [*DDL, "run", *words],
        cwd=folder,
        env={"XDG_RUNTIME_DIR": str(folder), "PYTHONUNBUFFERED": ""},
    )


@pytest.mark.slow
def test_scale(run_here: Any, tmp_path: Path) -> None:
    def scale(workers: int) -> Any:
        command = [*DDL, "scale", "job", str(workers)]
        env = {"XDG_RUNTIME_DIR": str(tmp_path)}
        return run_here(command, env=env, limit=LIMIT)

    passes = ["--passes", "200"]
    paused = ["--strike", "pause", "--members", "0"]
    with run(tmp_path, "-n", "1", str(PROGRAM), *passes) as alone:
        expected = final_state(alone.communicate(timeout=LIMIT)[0])
    with run(tmp_path, "-n", "1:3", "--name", "job", str(PROGRAM), *passes, *paused) as job:
        assert job.stderr and job.stdout
        assert "paused" in job.stdout.readline()
        scale(3).expect_success()
        slow = tmp_path / "slow"
        slow.write_text("0.1")
        (tmp_path / "go").touch()
        next(line for line in job.stderr if "rank 2 on" in line and "has joined" in line)
        refused = scale(4)
        assert refused.code == 2
        assert "4 workers were requested; this job can have 1 to 3" in refused.err
        scale(1).expect_success()
        slow.unlink()
        shown = "".join(iter(job.stderr.readline, ""))
        assert job.stdout
        out = job.stdout.read()
    assert job.returncode == 0, shown
    assert "rank 2 on" in shown and "has left" in shown
    assert final_state(out) == expected
    gone = scale(2)
    assert gone.code == 2
    assert "there is no job job on this machine; jobs: none" in gone.err


def test_the_control_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    asked: list[int] = []
    with Control("a", "secret", asked.append):
        assert control.names() == ["a"]
        control.scale("a", 5)
        assert asked == [5]
        with pytest.raises(ControlError, match="a job named a is already running"):
            Control("a", "other", asked.append)
        (tmp_path / "ddl-elastic" / "a.secret").write_text("wrong")
        with pytest.raises(ControlError, match="the secret differs from the job's"):
            control.scale("a", 6)
    assert asked == [5]
    assert control.names() == []
    with pytest.raises(ControlError, match="letters, digits"):
        control.scale("../a", 1)
    (tmp_path / "ddl-elastic").chmod(0o755)
    with pytest.raises(PermissionError, match="must belong to this user alone"):
        environment.runtime_folder()
