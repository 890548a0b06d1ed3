# SPDX-License-Identifier: Apache-2.0
"""Ranks on four hosts that send over UCX: sums, and a member that is lost."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import clean_environment

from ddl_launch.lab import Lab, missing


def has_ucx() -> bool:
    try:
        ctypes.CDLL("libucp.so.0")
    except OSError:
        return False
    return True


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is a lab"),
    pytest.mark.skipif(not has_ucx(), reason="there is no libucp"),
]

HOSTS = 4
VICTIM = 3
PROGRAM = """
import pathlib, sys, time
import ddl_core, numpy as np
from ddl_core import errors
comm = ddl_core.init()
for n in (1, 1000, 20000, 3000000):
    assert (comm.allreduce(np.full(n, comm.rank, np.int32)) == sum(range(comm.size))).all()
if comm.rank == 0:
    pathlib.Path(sys.argv[1]).touch()
try:
    while True:
        comm.allreduce(np.ones(20000, np.float32))
except errors.PeerLost as error:
    print(time.time(), error)
survivors = comm.shrink()
assert survivors.size == comm.size - 1
assert (survivors.allreduce(np.ones(20000, np.float32)) == survivors.size).all()
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(HOSTS) as lab:
        yield lab


@pytest.mark.parametrize("cause", ["killed", "disconnected"])
def test_survivors_name_the_lost_member(lab: Lab, cause: str, tmp_path: Path) -> None:
    world = f"DDL_RENDEZVOUS=tcp://{lab.hosts[0].addresses[0]}:7000"
    links = ["DDL_LINKS=ucx", "UCX_TLS=tcp", "UCX_NET_DEVICES=eth0", "DDL_LOG=info"]
    ranks = []
    for rank, host in enumerate(lab.hosts):
        own = ["env", world, f"DDL_RANK={rank}", f"DDL_SIZE={HOSTS}", *links]
        start = f"echo $$ >{tmp_path}/{rank}; exec {sys.executable} -c '{PROGRAM}' {tmp_path}/begun"
        ranks.append(
            subprocess.Popen(
                lab.at(host.name, *own, "sh", "-c", start),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=clean_environment(),
            )
        )
    try:
        while not (tmp_path / "begun").exists():
            assert all(rank.poll() is None for rank in ranks), ranks[0].communicate()
            time.sleep(0.01)
        lost = time.time()
        if cause == "killed":
            process = (tmp_path / f"{VICTIM}").read_text().strip()
            lab.run(lab.hosts[VICTIM].name, ["kill", "-9", process])
        else:
            lab.connect(lab.hosts[VICTIM].name, False)
        for rank in ranks[:VICTIM]:
            out, err = rank.communicate(timeout=120)
            assert rank.returncode == 0, err
            assert "uses UCX" in err
            assert f"rank {VICTIM} on {lab.hosts[VICTIM].name} is " in out, out
            print(f"{cause}: named after {float(out.split()[0]) - lost:.2f} s")
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
