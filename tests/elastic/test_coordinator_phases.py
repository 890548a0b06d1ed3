# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a job on hosts is killed in each phase of a join and of a checkpoint: by the
worker that comes to this phase, which goes on. So do all others, and the newcomer joins in the
end, once another coordinator is there."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "programs"))

import steps
from test_coordinator_ends import all_ended, own_folder, resumed, wait_until, workers_of
from test_dialing import DDL, LIMIT, PROGRAM, started, state

__all__ = ["own_folder"]  # a fixture, for all tests

pytestmark = pytest.mark.slow

PASSES = ["--passes", 60]  # 375 steps
SAVED = ["--checkpoint", "saved", "--every", 10]
SLOW = "0.05"  # seconds of a share longer, until the newcomer trains
ALONE = 5  # steps without a coordinator, at least
# Where a newcomer is then, or a member, see programs/moments.py.
MOMENTS = [
    "connect",
    "warm-up",
    "creation, by a newcomer",
    "creation, by a member",
    "agreement",
    "hello, by a newcomer",
    "switch",
    "observing",
    "receiving",
    "arrival",
    "writing",
    "the manifest",
]


@pytest.fixture(scope="module")
def alone(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final state of one undisturbed worker."""
    words = [*DDL, "run", "-n", "1", PROGRAM, *PASSES]
    done = run_program(words, cwd=tmp_path_factory.mktemp("alone"), limit=LIMIT)
    return state(done.expect_success().out)


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_coordinator_dies_in_each_phase(tmp_path: Path, alone: str, moment: str) -> None:
    (tmp_path / "slow").write_text(SLOW)
    with started(tmp_path) as job:
        words = [*PASSES, *SAVED, "--moments", "--tell"]
        run = job.run_program("-n", "2:3", "--name", "job", PROGRAM, *words)
        agents = [job.agent(0, 2)]
        wait_until(lambda: steps.last(tmp_path) > 2)
        (tmp_path / "coordinator").write_text(str(run.pid))
        file = tmp_path / f"die in {moment}"
        file.write_text("coordinator")
        agents.append(job.agent(0, 1))
        assert run.wait(LIMIT) == -signal.SIGKILL
        assert not file.exists()  # somebody has come there
        since = steps.last(tmp_path)
        wait_until(lambda: steps.last(tmp_path) >= since + ALONE)
        another = resumed(job)
        pids = [pid for agent in agents for pid in workers_of(agent)]
        since = steps.last(tmp_path)
        wait_until(lambda: len(steps.trainers(tmp_path, since)) == 3)
        (tmp_path / "slow").unlink()
        out, err = another.communicate(timeout=LIMIT)
        assert another.returncode == 0, err
        assert state(out) == alone == job.report()["hash"]
        assert [agent.wait(LIMIT) for agent in agents] == [0, 0]
        wait_until(lambda: all_ended(pids))
    report = job.report()
    assert [each for each in report["events"] if each["kind"] == "died"] == []
