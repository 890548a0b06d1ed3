# SPDX-License-Identifier: Apache-2.0
"""Ranks started by torchrun or srun find each other by the environment.

The launchers themselves are not needed: they give nothing but these variables.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ddl_core.environment import SRUN_PORTS, TORCHRUN_PORT_OFFSET

if TYPE_CHECKING:
    from conftest import Finished, Run

PROGRAM = """
import logging
import numpy as np
import ddl_core
logging.basicConfig(level=logging.INFO, format="%(message)s")
comm = ddl_core.init(ddl_core.Config(timeout=20))
print(comm.rank, comm.size, comm.allreduce(np.full(3, comm.rank + 1)).tolist())
"""


def torchrun(rank: int, port: int) -> dict[str, str]:
    master = port - TORCHRUN_PORT_OFFSET
    rendezvous = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(master)}
    return {**rendezvous, "RANK": str(rank), "WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "test"}


def srun(rank: int, port: int) -> dict[str, str]:
    number = next(
        job for job in itertools.count() if SRUN_PORTS[31 * job % len(SRUN_PORTS)] == port
    )
    job = {"SLURM_JOB_ID": str(number), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost"}
    return {**job, "SLURM_PROCID": str(rank), "SLURM_NTASKS": "3", "PMI_RANK": str(rank)}


@pytest.mark.parametrize("launcher", [torchrun, srun])
def test_ranks_join(
    launcher: object, run_program: Run, tmp_path: Path, find_port: Callable[[], int]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    port = find_port()  # of the rendezvous
    if launcher is srun:
        port = SRUN_PORTS[port % len(SRUN_PORTS)]

    def start(rank: int) -> Finished:
        assert callable(launcher)
        return run_program([sys.executable, program], cwd=tmp_path, env=launcher(rank, port))

    with ThreadPoolExecutor(3) as pool:
        ended = [one.expect_success() for one in pool.map(start, range(3))]
    assert [one.out for one in ended] == [f"{rank} 3 [6, 6, 6]\n" for rank in range(3)]
    assert f"launcher: {launcher.__name__} at tcp://localhost:" in ended[0].err
