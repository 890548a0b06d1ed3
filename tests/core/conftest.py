# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of this folder: comms and hosts."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_hosts import Hosts
from ranks import join

from ddl_core import Comm, Config, Endpoint
from ddl_launch.lab import Lab

CONFIG = Config(operation_timeout=30)  # so that a test that waits in vain fails


@pytest.fixture
def alone() -> Iterator[Comm]:
    with Endpoint(secret="test") as endpoint:
        yield endpoint.connect([endpoint.address], 0, CONFIG)


@pytest.fixture
def pair() -> Iterator[tuple[Comm, Comm]]:
    """Two ranks in this process."""
    with Endpoint(secret="test") as a, Endpoint(secret="test") as b:
        yield join([a, b], CONFIG)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(4) as lab:
        yield lab


@pytest.fixture(params=["openmpi", "mpich", "intelmpi"])
def hosts(lab: Lab, request: pytest.FixtureRequest, tmp_path: Path, mpirun_of: Any) -> Hosts:
    return Hosts(lab, mpirun_of(request.param), tmp_path)


@pytest.fixture
def one(lab: Lab, tmp_path: Path, mpirun_of: Callable[[str], Path]) -> Hosts:
    return Hosts(lab, mpirun_of("mpich"), tmp_path)
