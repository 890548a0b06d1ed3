# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on a Ray cluster of virtual nodes, which are killed, and replaced by others; for
`make test-ray`, since Ray is no dependency of other tests."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.test_utils import RayletKiller, get_and_run_resource_killer
from ray.cluster_utils import Cluster
from waits import final_state, under_load, wait_until

sys.path.append(str(Path(__file__).parent))  # after the tests' folder, which has another conftest
sys.path.insert(0, str(Path(__file__).parent / "programs"))

import steps
from serving import Serving, is_alive

SERVED = Path(__file__).parent / "programs" / "served.py"
PROGRAM = Path(__file__).parent / "programs" / "own_loop.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run"]
LIMIT = 240  # seconds, on a busy machine
PROGRESS = 10.0  # seconds until the others have committed a step, whatever happened
SLOW = "0.1"  # additional seconds of a share, while nodes are killed
MOMENT = 2.0  # seconds within which Ray's killer of nodes waits
# Moments at which a node is killed on purpose, for a joining worker or a member; see
# programs/moments.py.
MOMENTS = ["warm-up", "observing", "switch", "telling", "writing"]


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    head = {"num_cpus": getattr(request, "param", 1), "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()


def test_nodes_come_and_go(cluster: Cluster, run_program: Any, tmp_path: Path) -> None:
    """One of three nodes is killed with its worker. Its slot is replaced on another node, and so is
    its worker."""
    alone = run_program([*DDL, "-n", "1", PROGRAM], cwd=tmp_path, limit=LIMIT).expect_success()
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    strike = ["--strike", "pause", "--members", "0,1,2"]
    order = [*DDL, "--ray", cluster.address, "-n", "3", PROGRAM, *strike]
    with (
        (tmp_path / "out").open("w") as out,
        (tmp_path / "err").open("w") as err,
        subprocess.Popen(order, stdout=out, stderr=err, cwd=tmp_path) as job,
    ):
        try:
            wait_until(lambda: (tmp_path / "out").read_text().count("paused") >= 3)
            cluster.remove_node(nodes[0], allow_graceful=False)
            cluster.add_node(num_cpus=1)
            wait_until(lambda: "is lost" in (tmp_path / "err").read_text())
            (tmp_path / "go").touch()
            assert job.wait(LIMIT) == 0, (tmp_path / "err").read_text()
        finally:
            job.kill()
    assert final_state((tmp_path / "out").read_text()) == final_state(alone.out)


class Nodes:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self.kills = 0
        self.slowest = 0.0  # seconds from a kill to the next step
        for _ in range(3):
            cluster.add_node(num_cpus=1)

    def wait_for_all(self) -> None:
        since = steps.last(self._folder)
        wait_until(lambda: len(steps.trainers(self._folder, since)) == 3)

    def kill_any(self) -> None:
        self.kills += 1
        killer = get_and_run_resource_killer(
            RayletKiller, MOMENT, namespace=f"kill {self.kills}", max_to_kill=1
        )
        ((name, _, _),) = ray.get(killer.get_killed_nodes.remote())
        self._wait_for_step()
        ray.kill(killer)
        (node,) = [each for each in self._cluster.worker_nodes if each.node_id == name]
        self._cluster.remove_node(node, allow_graceful=False)  # the rest of it

    def kill_in(self, moment: str) -> None:
        """Kill the node of the worker that reaches this moment, once another worker is there."""
        self.kills += 1
        file, held = self._folder / f"die in {moment}", self._folder / "held"
        file.write_text("hold")
        self._cluster.add_node(num_cpus=1)
        wait_until(held.exists)
        assert not file.exists()
        above = ancestors(int(held.read_text().split()[1]))
        held.unlink()
        (node,) = [each for each in self._cluster.worker_nodes if raylet(each) in above]
        self._cluster.remove_node(node, allow_graceful=False)
        self._wait_for_step()
        self._cluster.add_node(num_cpus=1)

    def _wait_for_step(self) -> None:
        since, began = steps.last(self._folder), time.monotonic()
        limit = under_load(PROGRESS)
        wait_until(lambda: steps.last(self._folder) > since, limit)
        self.slowest = max(self.slowest, time.monotonic() - began)


def raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


@pytest.mark.parametrize("cluster", [0], indirect=True)
def test_nodes_are_killed_again_and_again(
    cluster: Cluster, run_program: Any, tmp_path: Path
) -> None:
    """For each moment, kill a node when all three workers train, and another one while it is being
    replaced."""
    passes = ["--passes", "100"]  # 625 steps
    alone = run_program([*DDL, "-n", "1", PROGRAM, *passes], cwd=tmp_path, limit=LIMIT)
    (tmp_path / "slow").write_text(SLOW)
    nodes = Nodes(cluster, tmp_path)
    words = [*passes, "--moments", "--tell", "--checkpoint", "saved"]
    order = [*DDL, "--ray", cluster.address, "-n", "3", PROGRAM, *words]
    ray.init(cluster.address, log_to_driver=False)
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        job = subprocess.Popen(order, stdout=out, stderr=err, cwd=tmp_path)
        try:
            for moment in MOMENTS:
                nodes.wait_for_all()
                nodes.kill_any()
                nodes.kill_in(moment)
            nodes.wait_for_all()
            (tmp_path / "slow").unlink()
            assert job.wait(LIMIT) == 0, (tmp_path / "err").read_text()
        finally:
            job.kill()
            job.wait()
            ray.shutdown()
    lost = re.findall(r"^the agent on .* is lost: ", (tmp_path / "err").read_text(), re.M)
    assert len(lost) == nodes.kills == 2 * len(MOMENTS)
    shown = (tmp_path / "out").read_text()
    assert "raylet" not in shown  # what Ray tells is elsewhere
    assert final_state(shown) == final_state(alone.expect_success().out)
    print(f"{nodes.kills} nodes killed; at most {nodes.slowest:.2f} s until the next step")


def test_the_coordinator_is_killed(
    cluster: Cluster, run_program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator is killed, and another one takes its place; meanwhile the workers of the
    cluster train. At the end their slots are free again."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    passes = ["--passes", "200"]
    alone = run_program([*DDL, "-n", "1", PROGRAM, *passes], cwd=tmp_path, limit=LIMIT)
    cluster.add_node(num_cpus=1)
    order = [*DDL, "--ray", cluster.address, "-n", "2", "--name", "job", PROGRAM, *passes]
    strike = ["--strike", "pause", "--members", "0,1"]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        job = subprocess.Popen([*order, *strike], stdout=out, stderr=err, cwd=tmp_path)
        try:
            wait_until(lambda: {"[0]", "[1]"} <= {*(tmp_path / "out").read_text().split()})
        finally:
            job.kill()
            job.wait()
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        resume = [*DDL[:-1], "resume", "job"]
        another = subprocess.Popen(resume, stdout=out, stderr=err, cwd=tmp_path)
        try:
            wait_until(lambda: "the coordinator is back" in (tmp_path / "err").read_text())
            (tmp_path / "go").touch()
            assert another.wait(LIMIT) == 0, (tmp_path / "err").read_text()
        finally:
            another.kill()
            another.wait()
    assert final_state((tmp_path / "out").read_text()) == final_state(alone.expect_success().out)
    ray.init(cluster.address, log_to_driver=False)
    try:
        wait_until(lambda: ray.available_resources().get("CPU") == 2)
    finally:
        ray.shutdown()


class RayServing(Serving):
    def __init__(self, folder: Path, address: str) -> None:
        self.options = ["--ray", address]
        super().__init__(folder, slots=3)


def test_a_service_on_a_cluster(cluster: Cluster, run_program: Any, tmp_path: Path) -> None:
    steps = ["--steps", 150]
    order = [*DDL, "-n", "1", "--quiet", SERVED, *steps]
    alone = run_program(order, cwd=tmp_path, limit=LIMIT).expect_success()
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    with closing(RayServing(tmp_path, cluster.address)) as serving:
        go = tmp_path / "go"
        job = serving.submit(*steps, "--go", go, "--every", 5)
        serving.wait_for_size(job, 3)
        wait_until(lambda: sum(map(is_alive, serving.pids(job))) == 3)
        cluster.remove_node(nodes[0], allow_graceful=False)
        wait_until(lambda: sum(map(is_alive, serving.pids(job))) == 2)
        cluster.add_node(num_cpus=1)
        wait_until(lambda: sum(map(is_alive, serving.pids(job))) == 3)
        serving.wait_for_size(job, 3)
        go.touch()
        serving.wait(job, "done")
        assert serving.state(job) in alone.out


def test_no_cluster(run_program: Any, tmp_path: Path) -> None:
    order = [*DDL, "--ray", "127.0.0.1:1", "-n", "1", PROGRAM]
    done = run_program(order, cwd=tmp_path, limit=LIMIT)
    assert done.code == 2
    assert "--ray 127.0.0.1:1" in done.err
