# SPDX-License-Identifier: Apache-2.0
"""A test with two real ranks on this machine: an all-reduce over shared memory and over TCP.

`run` starts them with ddlrun. This module is also the ranks' program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import ddl_core
from ddl_core.base.config import Config

LINKS = ("shm", "tcp")
BYTES = 1 << 20
_LIMIT = 30.0  # seconds for the whole test
_ROUNDS = 20
# Variables of this process's own job, which the test must not inherit.
_OTHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "DDL_INTERFACES", "DDL_SECRET")


class SelfTestError(Exception):
    """A failed test. The message names the rank and the reason."""


def run() -> dict[str, tuple[float, float]]:
    """Return the best times of an all-reduce of 8 bytes and of BYTES, in seconds, for each of
    LINKS."""
    job = [sys.executable, "-m", "ddl_launch", "-H", "localhost", "-n", "2", "--no-prefix"]
    try:
        done = subprocess.run(
            [*job, sys.executable, "-m", "ddl_launch.commands.selftest"],
            # The folder of the packages, so that -m finds them.
            cwd=Path(__file__).resolve().parents[2],
            env={name: v for name, v in os.environ.items() if not name.startswith(_OTHERS)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired:
        raise SelfTestError(f"the test did not finish within {_LIMIT:.0f} s") from None
    if done.returncode:
        causes = [line for line in done.stderr.splitlines() if line.startswith("ddlrun: rank ")]
        raise SelfTestError(causes[-1].removeprefix("ddlrun: ") if causes else done.stderr.strip())
    return {link: (small, large) for link, (small, large) in json.loads(done.stdout).items()}


def main() -> None:
    """Run one of the two ranks."""
    comm = ddl_core.init(Config(timeout=10, operation_timeout=10))
    times = {}
    for link in LINKS:
        with comm.duplicate(Config(links=[link], timeout=10, operation_timeout=10)) as twin:
            times[link] = [_measure(twin, 8), _measure(twin, BYTES)]
    if comm.rank == 0:
        print(json.dumps(times))
    ddl_core.finalize()


def _measure(comm: ddl_core.Comm, nbytes: int) -> float:
    best = float("inf")
    for i in range(_ROUNDS):
        values = np.full(nbytes // 4, comm.rank + i, np.float32)
        comm.barrier()
        start = time.perf_counter()
        comm.allreduce(values)
        best = min(best, time.perf_counter() - start)
        if not (values == 2 * i + 1).all():
            raise RuntimeError(f"the sums are {values[:4]}; must be {2 * i + 1}")
    return best


if __name__ == "__main__":
    main()
