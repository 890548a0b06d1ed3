# SPDX-License-Identifier: Apache-2.0
"""A killed worker is replaced by a new one, but not for ever if each one dies."""

from typing import Any

import pytest


def members(report: dict[str, Any], kind: str) -> list[int]:
    return [each["member"] for each in report["events"] if each["kind"] == kind]


@pytest.mark.slow
def test_killed_workers_are_replaced(jobs: Any) -> None:
    kills = [[5, 0], [20, 2], [40, 1]]
    case = {"workers": 2, "kill": kills, "replace": True, "passes": 40, "others": 1}
    _, report = jobs.train({**case, "changes": 6})
    assert members(report, "died") == [0, 2, 1]
    assert members(report, "joined") == [2, 3, 4]
    running = [worker for worker in report["workers"].values() if worker["state"] == "done"]
    assert len(running) == 2


@pytest.mark.slow
def test_a_new_worker_that_has_no_state_yet(jobs: Any) -> None:
    """The report shows the replacement until it trains like the others. Only then is the last
    worker that has the state killed."""
    case = {"workers": 2, "kill": [[5, 0], [5, 1]], "replace": True, "others": 1}
    held = {"die": "receiving", "how": "pause", "go": "observing", "changes": 0}
    _, report = jobs.train({**case, **held})
    assert members(report, "died") == [0, 1]


@pytest.mark.slow
def test_each_process_is_killed_once(jobs: Any) -> None:
    kills = [[5, 0], [15, 1], [25, 2], [35, 3], [45, 4]]
    case = {"workers": 3, "kill": kills, "replace": True, "others": 1, "changes": 0}
    _, report = jobs.train({**case, "passes": 40})
    assert members(report, "died") == [0, 1, 2, 3, 4]
    assert {3, 4} <= {*members(report, "joined")}


@pytest.mark.slow
def test_a_job_that_is_over_before_the_new_worker_has_joined(jobs: Any) -> None:
    case = {"workers": 2, "kill": [[5, 1]], "replace": True, "always": ["wait in warm-up"]}
    _, report = jobs.train(case)
    assert [each["kind"] for each in report["events"]] == ["died", "recovered"]
    assert report["workers"]["2"]["state"] == "ended"


@pytest.mark.slow
def test_workers_that_die_at_once(jobs: Any) -> None:
    case = {
        "workers": 2,
        "kill": [[5, 1]],
        "replace": True,
        "passes": 40,
        "always": ["die in warm-up"],
        "changes": 4,
    }
    _, report = jobs.train(case)
    assert members(report, "died") == [1, 2, 3, 4]
    assert members(report, "joined") == []
    assert members(report, "gave up") == [4]
    text = "3 workers in a row have exited before they joined: no more are started"
    assert jobs.shown.count(text) == 1
