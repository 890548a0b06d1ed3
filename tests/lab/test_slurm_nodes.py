# SPDX-License-Identifier: Apache-2.0
"""An elastic job whose agents are the tasks of a Slurm array: its nodes are lost and restored
repeatedly, and Slurm requeues the tasks."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waits import final_state, under_load, wait_until

from ddl_launch.lab import Lab

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "elastic" / "programs"))

import steps
from slurm import Slurm, why_not

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a Slurm"),
    pytest.mark.slow,
]

PROGRAM = Path(__file__).parents[1] / "elastic" / "programs" / "own_loop.py"
DDL = f"{sys.executable} -m ddl_launch.commands elastic"
LIMIT = 240  # seconds, on a busy machine
# Seconds until the others have committed a step, whatever happened. If of two workers the one with
# the lowest rank is lost, the other one asks the coordinator, which waits for twice DDL_DEAD_MS.
PROGRESS = 20.0
REQUEUED = 10  # seconds until a task of a lost node may start again
WORKERS = 3  # one node for each; the coordinator is on another node
CPUS = 4  # of a node
PASSES = ["--passes", "100"]  # 625 steps
SLOW = "0.1"  # additional seconds of a share, while nodes are lost
# Moments at which a node is lost on purpose, for a joining worker or a member; see
# ../elastic/programs/moments.py.
MOMENTS = ["warm-up", "observing", "switch", "writing"]


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    with Lab(WORKERS + 1) as lab, Slurm(lab, CPUS, REQUEUED) as slurm:
        yield slurm


def lose(slurm: Slurm, node: str, folder: Path) -> float:
    """Lose a node, and restore it. Return the seconds until the others have committed a step."""
    since, began = steps.last(folder), time.monotonic()
    slurm.lose(node)
    limit = under_load(PROGRESS)
    wait_until(lambda: steps.last(folder) > since, limit)
    took = time.monotonic() - began
    slurm.bring_back(node)
    return took


def test_nodes_are_lost_again_and_again(slurm: Slurm, tmp_path: Path) -> None:
    """For each moment, lose a node when all workers train, and another one while it is being
    replaced."""
    alone = slurm.run([*DDL.split(), "run", "-n", "1", PROGRAM, *PASSES], cwd=tmp_path)
    (tmp_path / "slow").write_text(SLOW)
    (tmp_path / "job.token").write_text("what only the job's agents know\n")
    where = ["--listen", "29400", "--token-file", "job.token", "-n", str(WORKERS)]
    words = [*PASSES, "--moments", "--tell", "--checkpoint", "saved"]
    order = slurm.lab.at("h1", *DDL.split(), "run", *where, PROGRAM, *words)
    took = []

    def wait_for_all() -> None:
        since = steps.last(tmp_path)
        wait_until(lambda: len(steps.trainers(tmp_path, since)) == WORKERS)

    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        job = subprocess.Popen(order, cwd=tmp_path, stdout=out, stderr=err, env=slurm.clean())
        try:
            agent = f"{DDL} agent --join h1:29400 --token-file job.token -n 1"
            tasks = [f"--array=1-{WORKERS}", "-N1", f"-c{CPUS}", "--exclude=h1", "--requeue"]
            sent = slurm.run(["sbatch", *tasks, "--wrap", agent], cwd=tmp_path)
            assert sent.returncode == 0, sent.stderr
            for count, moment in enumerate(MOMENTS):
                wait_for_all()
                file, held = tmp_path / f"die in {moment}", tmp_path / "held"
                node = slurm.nodes[1 + count % WORKERS]
                took.append(lose(slurm, node, tmp_path))
                file.write_text("hold")
                wait_until(held.exists)
                assert not file.exists()
                node = held.read_text().split()[0]
                held.unlink()
                took.append(lose(slurm, node, tmp_path))
            wait_for_all()
            (tmp_path / "slow").unlink()
            assert job.wait(LIMIT) == 0, (tmp_path / "err").read_text()
            wait_until(lambda: slurm.run(["squeue", "--noheader"]).stdout == "")
        finally:
            job.kill()
            job.wait()
    lost = re.findall(r"^the agent on .* is lost: ", (tmp_path / "err").read_text(), re.M)
    assert len(lost) == len(took) == 2 * len(MOMENTS)
    assert final_state((tmp_path / "out").read_text()) == final_state(alone.stdout)
    print(f"{len(took)} nodes lost; at most {max(took):.2f} s until the next step")
