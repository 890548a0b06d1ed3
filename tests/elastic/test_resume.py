# SPDX-License-Identifier: Apache-2.0
"""Jobs whose processes have all died resume from their newest checkpoint, with the same bits."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from ddl_elastic.storage import checkpoint
from ddl_elastic.storage.checkpoint import Folder

PROGRAM = Path(__file__).parent / "programs" / "train.py"
PASSES, STEPS = 24, 150  # over 150 samples, in batches of 24


@pytest.fixture(scope="module")
def alone(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train(run_program, tmp_path_factory.mktemp("alone"), {"workers": 1, "passes": PASSES})[0]


def train(run_program: Any, folder: Path, *cases: dict[str, Any]) -> list[dict[str, Any]]:
    texts = [json.dumps(case) for case in cases]
    done = run_program([sys.executable, PROGRAM, *texts], cwd=folder, limit=300)
    done.expect_success()
    reports: list[dict[str, Any]] = [json.loads(line) for line in done.out.splitlines()]
    return [{**report, "shown": done.err} for report in reports]


def test_all_workers_are_killed(run_program: Any, tmp_path: Path, alone: dict[str, Any]) -> None:
    saved = {"checkpoint": "saved", "every": 10, "passes": PASSES}
    first = {**saved, "workers": 3, "kill": [[20, 0], [20, 1], [20, 2]], "changes": 0}
    second = {**saved, "workers": 2, "kill": [[40, 0], [40, 1]], "changes": 0}
    reports = train(run_program, tmp_path, first, second, {**saved, "workers": 3})
    assert [each["state"] for each in reports] == ["failed", "failed", "done"]
    assert all("no worker is left" in each["error"] for each in reports[:2])
    assert reports[2]["hash"] == alone["hash"]
    assert reports[2]["steps"] == STEPS
    resumed = [int(n) for n in re.findall(r"resumed after (\d+) steps", reports[2]["shown"])]
    assert len(resumed) == 2
    assert resumed[0] in range(10, STEPS, 10)
    assert resumed[1] in range(resumed[0], STEPS, 10)


@pytest.mark.parametrize(
    "local", [{}, pytest.param({"local_steps": 2}, marks=pytest.mark.slow)], ids=["steps", "rounds"]
)
def test_workers_join_after_a_resume(
    run_program: Any, tmp_path: Path, local: dict[str, int]
) -> None:
    """A joining worker, whose program is at step 0, computes the same reference share."""
    saved = {"checkpoint": "saved", "every": 5, "passes": PASSES, **local}
    first = {**saved, "workers": 1, "kill": [[20, 0]], "changes": 0}
    resumed = {**saved, "workers": "1:2", "start": 1, "resize": [[21, 2]], "changes": 1}
    reference = {"workers": 1, "passes": PASSES, **local}
    killed, report, alone = train(run_program, tmp_path, first, resumed, reference)
    assert killed["state"] == "failed"
    assert "resumed after" in report["shown"]
    kinds = {each["kind"] for each in report["events"]} - {"balanced"}
    assert kinds == {"joined"}, report["events"]
    assert report["hash"] == alone["hash"]


@pytest.mark.slow
def test_a_job_that_is_done(run_program: Any, tmp_path: Path, alone: dict[str, Any]) -> None:
    case = {"workers": 2, "checkpoint": "saved", "every": 40, "keep": 2, "passes": PASSES}
    reports = train(run_program, tmp_path, case, case)
    assert [each["hash"] for each in reports] == [alone["hash"]] * 2
    assert f"resumed after {STEPS} steps" in reports[1]["shown"]
    assert len(list((tmp_path / "saved").glob("steps-*.json"))) == 2
    assert not list((tmp_path / "saved").glob("part-*"))


@pytest.mark.slow
def test_deaths_beside_checkpoints(run_program: Any, tmp_path: Path, alone: dict[str, Any]) -> None:
    saved = {"checkpoint": "saved", "every": 1, "passes": PASSES}
    killed = {**saved, "workers": 3, "kill": [[20, 1], [30, 0], [40, 2]], "changes": 0}
    reports = train(run_program, tmp_path, killed, {**saved, "workers": 1})
    assert reports[0]["state"] == "failed"
    assert reports[1]["hash"] == alone["hash"]


@pytest.mark.slow
@pytest.mark.parametrize(("writer", "member"), [("writing, member 1", 1), ("the manifest", 0)])
def test_slow_storage(jobs: Any, tmp_path: Path, writer: str, member: int) -> None:
    """A rank that writes the last checkpoint does not count as hanging, however long it takes."""
    saved = {"checkpoint": "saved", "every": 1000, "die": writer, "how": "late"}
    _, report = jobs.train({**saved, "workers": 2, "watchdog": 1.0, "passes": 1})
    assert "abandoned" not in jobs.shown, jobs.shown
    assert report["events"] == [], report["events"]
    told = rf"rank {member} on \S+: all wait for it, which has been writing the checkpoint after 7"
    assert len(re.findall(rf"{told} steps for \d s", jobs.shown)) == 2, jobs.shown
    storage = Folder(tmp_path / "saved")
    newest = checkpoint.read_manifest(storage, checkpoint.manifests(storage)[0])
    assert newest.steps == report["steps"]


@pytest.mark.slow
def test_another_job_s_folder_is_refused(run_program: Any, tmp_path: Path) -> None:
    case = {"workers": 1, "checkpoint": "saved", "every": 10, "passes": 1}
    other = {**case, "batch": 48}
    reports = train(run_program, tmp_path, case, other)
    assert reports[1]["state"] == "failed"
    assert "is of another job: batch was 24, is 48" in reports[1]["error"]
