# SPDX-License-Identifier: Apache-2.0
"""The recipes and templates agree with the sources, and the commands in them start."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import ddl_core

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("conda/recipe.yaml", r'version: "([\d.]+)"'),
        ("spack/package.py", r'version\("([\d.]+)"'),
        ("spack/package.py", r"libddl-([\d.]+)\.tar"),
        ("kubernetes/jobset.yaml", r"image: libddl:([\d.]+)"),
        ("Dockerfile", r"-t libddl:([\d.]+)"),
    ],
)
def test_versions(file: str, pattern: str) -> None:
    found = re.findall(pattern, (PACKAGING / file).read_text())
    assert found == [ddl_core.version()]


def test_recipes_require_what_the_package_requires() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    wanted = re.findall(r'"((?:cffi|msgspec|numpy|tomli|scikit-build-core)>=[>=,<\d.]+)', project)
    conda = (PACKAGING / "conda" / "recipe.yaml").read_text().replace(" >=", ">=")
    spack = (PACKAGING / "spack" / "package.py").read_text()
    assert len(set(wanted)) == 5
    for requirement in wanted:
        assert requirement in conda
        name, lowest = requirement.split(",")[0].split(">=")
        assert f"py-{name}@{lowest}:" in spack


def test_workflow_calls_the_projects_own_ci() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step.get("run") for step in workflow["jobs"]["test"]["steps"]]
    assert steps[-1] == ".ci/run"


def test_jobset_starts_ranks() -> None:
    """Return the variables of its pods, with this machine in place of the first pod."""
    manifest = (PACKAGING / "kubernetes" / "jobset.yaml").read_text()
    jobset, _policy = yaml.safe_load_all(manifest)
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert spec["parallelism"] == spec["completions"] == int(given["DDL_SIZE"] or 0)
    name = f"train-{job['name']}-0-0.train"
    assert given["DDL_RENDEZVOUS"] == f"tcp://{name}:23000"
    assert (given["MASTER_ADDR"], given["WORLD_SIZE"]) == (name, given["DDL_SIZE"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = "import ddl_core; comm = ddl_core.init(); print(comm.rank, comm.size)"
    ranks = []
    for rank in range(2):
        variables = {
            "DDL_RANK": str(rank),
            "DDL_SIZE": str(given["DDL_SIZE"]),
            "DDL_RENDEZVOUS": f"tcp://127.0.0.1:{port}",
            "DDL_PORTS": str(given["DDL_PORTS"]),
            "DDL_SECRET": "x" * 32,
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(given["DDL_SIZE"]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(given["MASTER_PORT"]),
        }
        assert variables.keys() == given.keys()
        command = [sys.executable, "-c", program]
        env = os.environ | variables
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd="/"))
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["0 2\n", "1 2\n"]
