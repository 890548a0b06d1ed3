# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a job on hosts is killed in each phase of a join and of a checkpoint, by the
worker that reaches this phase. The others continue, and a new coordinator restores the number of
workers."""

import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waits import final_state, wait_until

sys.path.append(str(Path(__file__).parent))  # after the tests' folder, which has another conftest
sys.path.insert(0, str(Path(__file__).parent / "programs"))

import steps
from test_coordinator_ends import all_ended, own_folder, shown, workers_of
from test_dialing import DDL, LIMIT, PROGRAM, started

__all__ = ["own_folder"]  # a fixture, for all tests

pytestmark = pytest.mark.slow

PASSES = ["--passes", 60]  # 375 steps
SAVED = ["--checkpoint", "saved", "--every", 10]
SLOW = "0.05"  # additional seconds of a share, until the joining worker trains
ALONE = 5  # minimum number of steps without a coordinator
# The phase that a joining worker or a member has reached, see programs/moments.py.
MOMENTS = [
    *("start", "warm-up", "creation, by a newcomer", "creation, by a member", "agreement"),
    *("hello, by a newcomer", "switch", "observing", "arrival", "writing", "the manifest"),
]


@pytest.fixture(scope="module")
def alone(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    words = [*DDL, "run", "-n", "1", PROGRAM, *PASSES]
    done = run_program(words, cwd=tmp_path_factory.mktemp("alone"), limit=LIMIT)
    return final_state(done.expect_success().out)


@pytest.mark.parametrize("how", ["coordinator", "both"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_coordinator_dies_in_each_phase(
    tmp_path: Path, alone: str, moment: str, how: str
) -> None:
    (tmp_path / "slow").write_text(SLOW)
    with started(tmp_path) as job:
        words = [*PASSES, *SAVED, "--moments", "--tell"]
        run = job.run_program("-n", "2:3", "--name", "job", PROGRAM, *words)
        agents = [job.agent(0, 2)]
        wait_until(lambda: steps.last(tmp_path) > 2)
        (tmp_path / "coordinator").write_text(str(run.pid))
        file = tmp_path / f"die in {moment}"
        file.write_text(how)
        agents.append(job.agent(0, 1))
        assert run.wait(LIMIT) == -signal.SIGKILL
        assert not file.exists()  # a worker has reached it
        since = steps.last(tmp_path)
        wait_until(lambda: steps.last(tmp_path) >= since + ALONE)
        another = job.start(0, "resume", "--report", "report.json", "job")
        shown(another, "the coordinator is back: it has found rank")
        since = steps.last(tmp_path)
        wait_until(lambda: len(steps.trainers(tmp_path, since)) == 3)
        pids = [pid for agent in agents for pid in workers_of(agent)]
        (tmp_path / "slow").unlink()
        out, err = another.communicate(timeout=LIMIT)
        assert another.returncode == 0, err
        assert final_state(out) == alone == job.report()["hash"]
        assert [agent.wait(LIMIT) for agent in agents] == [0, 0]
        wait_until(lambda: all_ended(pids))
    died = [each["member"] for each in job.report()["events"] if each["kind"] == "died"]
    assert len(died) <= (how == "both")  # the new coordinator may not have received it


def connections(port: int) -> int:
    table = Path("/proc/net/tcp").read_text()
    return len(re.findall(rf"^\s*\d+: \w+:{port:04X} \w+:\w+ 01 ", table, re.M))


@pytest.mark.parametrize("moment", ["start", "warm-up"])
def test_the_agent_of_a_newcomer_comes_back_first(tmp_path: Path, alone: str, moment: str) -> None:
    """The agent of the other workers hangs for a while. All workers train, whether the joining one
    was told so or not."""
    (tmp_path / "slow").write_text(SLOW)
    with started(tmp_path) as job:
        run = job.run_program("-n", "2:3", "--name", "job", PROGRAM, *PASSES, "--moments", "--tell")
        agents = [job.agent(0, 2)]
        wait_until(lambda: steps.last(tmp_path) > 2)
        file = tmp_path / f"die in {moment}"
        file.write_text("pause")
        agents.append(job.agent(0, 1))
        wait_until(lambda: not file.exists())
        agents[0].send_signal(signal.SIGSTOP)
        run.kill()
        run.wait()
        another = job.start(0, "resume", "--report", "report.json", "job")
        wait_until(lambda: connections(int(job.address.split(":")[1])) == 2)
        (tmp_path / "go").touch()
        with suppress(subprocess.TimeoutExpired):
            another.wait(1)
        agents[0].send_signal(signal.SIGCONT)
        shown(another, "the coordinator is back: it has found rank 0 on .*, rank 1 on .*, rank 2")
        since = steps.last(tmp_path)
        wait_until(lambda: len(steps.trainers(tmp_path, since)) == 3)
        (tmp_path / "slow").unlink()
        out, err = another.communicate(timeout=LIMIT)
        assert another.returncode == 0, err
        assert final_state(out) == alone
