# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a job on hosts is killed, but the steps continue. Another coordinator takes
its place, or the job ends without one."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waits import final_state, wait_until

sys.path.append(str(Path(__file__).parent))  # after the tests' folder, which has another conftest

from test_dialing import DDL, LIMIT, PROGRAM, Job, started

PASSES = ["--passes", "200"]
PAUSE = ["--strike", "pause", "--members"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def alone(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("alone")
    words = [*DDL, "run", "-n", "1", PROGRAM, *PASSES]
    return final_state(run_program(words, cwd=folder, limit=LIMIT).expect_success().out)


def workers_of(agent: subprocess.Popen[str]) -> list[int]:
    found = [agent.pid]
    for pid in found:
        children = Path(f"/proc/{pid}/task/{pid}/children")
        found += [int(each) for each in children.read_text().split()]
    return found[1:]


def paused(run: subprocess.Popen[str], count: int) -> None:
    assert run.stdout
    lines = [run.stdout.readline() for _ in range(count)]
    assert all("paused" in line for line in lines), lines


def all_ended(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def shown(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if re.search(pattern, line):
            return line
    pytest.fail("".join(lines))


def resumed(job: Job) -> subprocess.Popen[str]:
    process = job.start(0, "resume", "--report", "report.json", "job")
    shown(process, "the coordinator is back: it has found rank 0 on .*, rank 1 on .*")
    return process


@pytest.mark.slow
def test_another_coordinator_starts_nothing_on_barred_hosts(tmp_path: Path) -> None:
    """An audit found a wrong worker there before the first coordinator was killed."""
    audited = Path(__file__).parent / "programs" / "audited.py"
    # Steps are slow while a worker is missing.
    fault = ["--fault", "gradient", "--steps", "200", "--killed", "9"]
    with started(tmp_path) as job:
        run = job.run_program("-n", "3", "--name", "job", "--audit", "1", audited, *fault)
        agents = [job.agent(0, 4)]
        shown(run, "rank 1 on .* computes wrongly")
        run.kill()
        again = job.start(0, "resume", "--report", "report.json", "job")
        _, err = again.communicate(timeout=LIMIT)
        assert again.returncode == 0, err
        report = json.loads((tmp_path / "report.json").read_text())
        assert {*report["workers"]} <= {"0", "1", "2"}
        assert not any(each["kind"] == "joined" for each in report["events"])
        assert [agent.wait(LIMIT) for agent in agents] == [0]


@pytest.mark.slow
def test_another_coordinator_takes_its_place(tmp_path: Path, alone: str) -> None:
    with started(tmp_path) as job:
        run = job.run_program("-n", "2:3", "--name", "job", PROGRAM, *PASSES, *PAUSE, "0,1")
        agents = [job.agent(0, 2), job.agent(0, 2)]
        paused(run, 2)
        pids = [pid for agent in agents for pid in workers_of(agent)]
        assert len(pids) >= 5  # a fork server, two agents of slots, and two workers
        run.kill()
        run.wait()
        shutil.rmtree(tmp_path / "ddl-elastic")  # as after the user has logged out
        another = resumed(job)
        scale = job.start(0, "scale", "job", 3)
        assert scale.wait(LIMIT) == 0
        slow = tmp_path / "slow"
        slow.write_text("0.1")  # until the new worker has started and joined
        (tmp_path / "go").touch()
        shown(another, r"rank \d on .* has joined")
        slow.unlink()
        out, err = another.communicate(timeout=LIMIT)
        assert another.returncode == 0, err
        assert final_state(out) == alone == job.report()["hash"]
        assert [agent.wait(LIMIT) for agent in agents] == [0, 0]
        wait_until(lambda: all_ended(pids))
    report = job.report()
    assert (report["state"], report["steps"]) == ("done", 1250)
    assert not list((tmp_path / "ddl-elastic").iterdir())
    assert not list(tmp_path.glob("state/ddl-elastic/*/*"))


@pytest.mark.slow
def test_nobody_takes_its_place(tmp_path: Path, alone: str) -> None:
    with started(tmp_path) as job:
        run = job.run_program("-n", "2", "--name", "job", PROGRAM, *PASSES, *PAUSE, "0,1")
        agents = [job.agent(0, 1, "--wait", 2), job.agent(0, 1, "--wait", 2)]
        paused(run, 2)
        pids = [pid for agent in agents for pid in workers_of(agent)]
        run.kill()
        (tmp_path / "go").touch()
        outs = [agent.communicate(timeout=LIMIT) for agent in agents]
        assert [agent.returncode for agent in agents] == [0, 0], outs
        assert final_state("".join(out for out, _ in outs)) == alone
        assert all("the connection to the job's coordinator is lost" in err for _, err in outs)
        wait_until(lambda: all_ended(pids))


@pytest.mark.slow
def test_a_job_that_waits_for_nobody(tmp_path: Path) -> None:
    """The job would train once more, for which the coordinator must send its workers each other's
    addresses."""
    with started(tmp_path) as job:
        run = job.run_program("-n", "1", "--name", "job", PROGRAM, "--times", 2, *PAUSE, "0")
        agent = job.agent(0, 1, "--wait", 2)
        paused(run, 1)
        pids = workers_of(agent)
        run.kill()
        (tmp_path / "go").touch()
        _, err = agent.communicate(timeout=LIMIT)
        assert agent.returncode == 1
        assert "no coordinator has connected for 2 s, and rank 0 needs one to continue" in err
        wait_until(lambda: all_ended(pids))


def test_a_job_that_has_ended_is_no_job(run_here: Any, tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = run_here([*DDL, "resume", "job"], env=env, limit=LIMIT)
    assert done.code == 2
    assert "there is no job job to resume" in done.err
    assert not list(tmp_path.glob("state/ddl-elastic/*/*"))
