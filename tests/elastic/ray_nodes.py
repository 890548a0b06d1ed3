# SPDX-License-Identifier: Apache-2.0
"""An elastic job on a Ray cluster of virtual nodes, one of which is killed, and another added; for
`make test-ray`, since Ray is no dependency of other tests."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

sys.path.insert(0, str(Path(__file__).parent))

from serving import Serving, is_alive

SERVED = Path(__file__).parent / "programs" / "served.py"
PROGRAM = Path(__file__).parent / "programs" / "own_loop.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run"]
LIMIT = 240  # seconds, on a busy machine


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"not so within {LIMIT} s"
        time.sleep(0.1)


def state(out: str) -> str:
    (found,) = re.findall(r"^\[\d\] state (\w{64})$", out, re.M)
    return str(found)


def test_nodes_come_and_go(cluster: Cluster, run_program: Any, tmp_path: Path) -> None:
    """Of three workers on three nodes one is lost with its node. Its slot comes back on another
    node, and so does a worker."""
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
    assert state((tmp_path / "out").read_text()) == state(alone.out)


def test_the_coordinator_is_killed(
    cluster: Cluster, run_program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one takes its place; meanwhile the workers of the cluster train on. In the end their
    slots are free again."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
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
    assert state((tmp_path / "out").read_text()) == state(alone.expect_success().out)
    ray.init(cluster.address, log_to_driver=False)
    try:
        wait_until(lambda: ray.available_resources().get("CPU") == 2)
    finally:
        ray.shutdown()


class RayServing(Serving):
    """`ddl serve` with three slots of a cluster."""

    def __init__(self, folder: Path, address: str) -> None:
        self.options = ["--ray", address]
        super().__init__(folder, slots=3)


def test_a_service_on_a_cluster(cluster: Cluster, run_program: Any, tmp_path: Path) -> None:
    """One job on three nodes, one of which is lost, and comes back on another one."""
    steps = ["--steps", 150]
    order = [*DDL, "-n", "1", "--quiet", SERVED, *steps]
    alone = run_program(order, cwd=tmp_path, limit=LIMIT).expect_success()
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    serving = RayServing(tmp_path, cluster.address)
    try:
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
    finally:
        serving.close()


def test_no_cluster(run_program: Any, tmp_path: Path) -> None:
    order = [*DDL, "--ray", "127.0.0.1:1", "-n", "1", PROGRAM]
    done = run_program(order, cwd=tmp_path, limit=LIMIT)
    assert done.code == 2
    assert "--ray 127.0.0.1:1" in done.err
