# SPDX-License-Identifier: Apache-2.0
"""Hosts with an interface whose address is in a shared network, but which is not connected, such as
that of a server's management controller or of a virtual machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddl_launch.lab import Lab, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is a lab"),
]

HOSTS = 4
PROGRAM = """
import time
import ddl_core, numpy as np
ones = np.ones(4, np.float32)
for create in (ddl_core.init, lambda: world.split(0), lambda: world.subset(range(world.size))):
    begun = time.monotonic()
    comm = create()
    print(f"{time.monotonic() - begun:.2f}")
    assert comm.allreduce(ones.copy()).sum() == 4 * comm.size
    world = ddl_core.world()
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(HOSTS) as lab:
        for number, host in enumerate(lab.hosts, 1):
            command = (
                "ip link add tap0 type veth peer name other && ip link set other up"
                f" && ip link set tap0 up && ip addr add 10.60.0.{number}/24 dev tap0"
            )
            made = lab.run(host.name, ["sh", "-c", command])
            assert made.returncode == 0, made.stderr
        yield lab


def test_unconnected_interface_delays_one_creation_only(lab: Lab) -> None:
    def run(rank: int) -> tuple[list[float], str]:
        address = lab.hosts[0].addresses[0]
        world = [f"DDL_RANK={rank}", f"DDL_SIZE={HOSTS}", f"DDL_RENDEZVOUS=tcp://{address}:7000"]
        command = ["env", "DDL_LOG=warn", *world, sys.executable, "-c", PROGRAM]
        done = lab.run(lab.hosts[rank].name, command)
        return [float(line) for line in done.stdout.split()], done.stderr

    with ThreadPoolExecutor(HOSTS) as pool:
        ranks = list(pool.map(run, range(HOSTS)))
    begun = max(times[0] for times, _ in ranks)
    assert begun < 4, ranks  # including the start of Python on the slowest host
    assert max(max(times[1:]) for times, _ in ranks) < 0.5, ranks
    for rank, (_, stderr) in enumerate(ranks):
        assert stderr.count("interface tap0 is not used") == (rank > 0), stderr
