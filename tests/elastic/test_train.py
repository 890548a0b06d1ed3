# SPDX-License-Identifier: Apache-2.0
"""`Job.train` without a loop, service or configuration: killed workers change nothing."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import popen

from ddl_elastic.job import Job, choose_workers

PROGRAM = Path(__file__).parent / "programs" / "train.py"
LIMIT = 300  # seconds, on a busy machine


def train(run_program: Any, folder: Path, *cases: dict[str, Any]) -> tuple[list[Any], str]:
    texts = [json.dumps(case) for case in cases]
    done = run_program([sys.executable, PROGRAM, *texts], cwd=folder, limit=LIMIT)
    done.expect_success()
    return [json.loads(line) for line in done.out.splitlines()], done.err


def test_the_result_is_the_same_whoever_dies(run_program: Any, tmp_path: Path) -> None:
    kills = [[5, 1], [25, "agent 0"]]
    cases = {"workers": 1}, {"workers": 3, "kill": kills, "others": 1, "changes": 0}
    reports, shown = train(run_program, tmp_path, *({**case, "passes": 30} for case in cases))
    alone, disturbed = reports
    assert alone["hash"] == disturbed["hash"]
    assert alone["model"] == disturbed["model"]
    assert alone["loss"] == disturbed["loss"]
    assert [each["state"] for each in reports] == ["done", "done"]
    assert [each["steps"] for each in reports] == [188, 188]
    died = [each for each in disturbed["events"] if each["kind"] == "died"]
    # Both may be reported in one poll of the engine.
    ends = sorted((each["member"], each["cause"]) for each in died)
    assert ends == [(0, "SIGKILL"), (1, "SIGKILL")]
    recovered = [each for each in disturbed["events"] if each["kind"] == "recovered"]
    assert [each["died"] for each in recovered] == [[1], [0]]
    # At most half of the shares each time, unless speeds differ, in which case shares move.
    assert all(each["adopted"] < 12 for each in recovered)
    for member, event in zip((1, 0), recovered, strict=True):
        name = process(disturbed, member)
        assert f"{name} died (SIGKILL); {event['adopted']} of 12 shares" in shown
        assert f"recomputed; step {event['step']} committed {event['seconds']:.2f} s later" in shown


def process(report: dict[str, Any], member: int) -> str:
    pid = report["workers"][str(member)]["pid"]
    return f"rank {member} on {os.uname().nodename} (pid {pid})"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "hang"])
def test_one_hangs_before_the_first_step(jobs: Any, how: str) -> None:
    case = {"workers": 3, "die": "start", "how": how, "founding": 6.0}
    _, report = jobs.train(case)
    (died,) = [event for event in report["events"] if event["kind"] == "died"]
    assert re.match(r"hung: the other workers have waited \d+ s for it to start", died["cause"])
    assert [each["state"] for each in report["workers"].values()].count("done") == 2


@pytest.mark.slow
def test_a_death_before_the_first_step(run_program: Any, tmp_path: Path) -> None:
    """The others get the list of addresses without it. They wait for the last one, and cannot see
    that it ended before it connected."""
    deaths = [{"workers": 3, "die": where} for where in ("start", "connect, member 2")]
    (alone, *disturbed), _ = train(run_program, tmp_path, {"workers": 1}, *deaths)
    for each in disturbed:
        assert each["hash"] == alone["hash"]
        assert [event["kind"] for event in each["events"]] == ["died"]


def test_an_error_of_the_program(run_program: Any, tmp_path: Path) -> None:
    (report,), shown = train(run_program, tmp_path, {"workers": 2, "fail": "always"})
    assert report["state"] == "failed"
    host = os.uname().nodename
    for member in (0, 1):
        unread = f"rank {member} on {host}: sample 3 of pass 0 cannot be read: OSError: sample 3"
        assert f"{process(report, member)} died (LoadingError: {unread} " in report["error"]
    assert 'raise OSError("sample 3 cannot be read")' in report["error"]
    assert "] about to read sample 3" in shown


@pytest.mark.slow
def test_a_sample_that_one_worker_cannot_read(run_program: Any, tmp_path: Path) -> None:
    failing = {"workers": 3, "fail": "once"}
    (alone, disturbed), shown = train(run_program, tmp_path, {"workers": 1}, failing)
    assert disturbed["hash"] == alone["hash"]
    (died, recovered) = disturbed["events"]
    name = f"rank {died['member']} on {os.uname().nodename}"
    unread = f"{name}: sample 3 of pass 0 cannot be read: OSError: sample 3 cannot be read"
    assert died["cause"] == f"LoadingError: {unread}"
    assert recovered["died"] == [died["member"]]
    assert f"{process(disturbed, died['member'])} died (LoadingError: {unread}); " in shown


@pytest.mark.parametrize(
    "case", [pytest.param({"weighted": True}, marks=pytest.mark.slow), {"steps": 30}]
)
def test_weights_and_streams(run_program: Any, tmp_path: Path, case: dict[str, Any]) -> None:
    cases = [
        {**case, "workers": 1},
        {**case, "workers": 2, "loader_workers": 1, "kill": [[5, 0]], "changes": 0},
    ]
    (alone, disturbed), _ = train(run_program, tmp_path, *cases)
    assert alone["hash"] == disturbed["hash"]
    assert [event["kind"] for event in disturbed["events"]] == ["died", "recovered"]


def test_clipped_gradients_have_the_same_bits(run_program: Any, tmp_path: Path) -> None:
    clipped = {"passes": 2, "clip_norm": 0.1}
    cases = {"workers": 1, "passes": 2}, {"workers": 1, **clipped}, {"workers": 2, **clipped}
    (free, alone, two), _ = train(run_program, tmp_path, *cases)
    assert alone["hash"] == two["hash"] != free["hash"]


def test_clipping_by_other_frameworks_is_refused() -> None:
    class Other(Job):
        def _make_framework(self) -> Any:
            return object()

    unused: Any = None
    functions = {"model": unused, "loss": unused, "optimizer": unused}
    job = Other(**functions, data=[(1, 1)], batch=1, logical=1, clip_norm=1.0)
    with pytest.raises(TypeError, match="clip_norm is supported with PyTorch only"):
        job._make()


def test_nothing_survives_the_caller(tmp_path: Path) -> None:
    case = json.dumps({"workers": 2, "passes": 100_000, "kill": [[3, 0]]})
    caller = popen(
        [sys.executable, PROGRAM, case], cwd=tmp_path, start_new_session=True, stdout=None
    )
    with caller:
        assert caller.stderr
        line = next(line for line in caller.stderr if "died (SIGKILL)" in line)
        assert line
        caller.kill()
        # The fork server and the agents have the other end of stderr, until the last one ends.
        caller.stderr.read()
    assert caller.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("workers", "places", "expected"),
    [
        *[(1, 8, 1), (5, 2, 5), ("5", 2, 5), (16, 1, 16)],
        *[("1:16", 2, 2), ("1:16", 5, 4), ("1:16", 7, 6), ("1:16", 99, 16), ("1:3", 8, 3)],
        *[("1:16", 0, 1), ("5:16", 2, 5), ("5:7", 16, 6)],
    ],
)
def test_how_many_workers(workers: int | str, places: int, expected: int) -> None:
    assert choose_workers(workers, 16, places) == expected


@pytest.mark.parametrize("workers", [0, "", "a", "3:2", "0:4", ":4", "1:2:3"])
def test_wrong_numbers_of_workers(workers: int | str) -> None:
    with pytest.raises(ValueError, match="workers is"):
        choose_workers(workers, 16, 4)


def test_more_workers_than_shares() -> None:
    with pytest.raises(ValueError, match="more than the 16 logical workers"):
        choose_workers("17:20", 16, 40)


@pytest.mark.slow
def test_threads_after_a_fork(run_here: Any) -> None:
    """The caller has used PyTorch's pool of threads, which a fork does not copy."""
    program = f"""
import json, runpy, sys, torch
torch.set_num_threads(2)
torch.ones(1000, 1000) @ torch.ones(1000, 1000)
sys.argv = [{str(PROGRAM)!r}, json.dumps({{"workers": 2, "threads": 2, "passes": 1}})]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    done = run_here([sys.executable, "-c", program], limit=LIMIT)
    assert json.loads(done.expect_success().out)["state"] == "done"


@pytest.mark.slow
def test_the_example(run_here: Any) -> None:
    example = Path(__file__).parents[2] / "examples" / "elastic_digits.py"
    states = []
    for options in (["--workers", "1"], ["--workers", "3", "--kill", "1"]):
        command = [sys.executable, example, "--passes", "2", *options]
        done = run_here(command, limit=LIMIT).expect_success()
        states.append(done.out.split("state ")[1])
    assert "rank 0 on " in done.err
    assert states[0] == states[1]
