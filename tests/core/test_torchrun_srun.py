# SPDX-License-Identifier: Apache-2.0
"""Ranks started by torchrun or srun find each other by the environment. The tests set the
launchers' variables without the launchers.

The launchers themselves are not needed: they give nothing but these variables.
"""

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Finished, Run

import ddl_core
from ddl_core.joining.environment import SRUN_PORTS, TORCHRUN_PORT_OFFSET

PROGRAM = """
import logging
import numpy as np
import ddl_core
logging.basicConfig(level=logging.INFO, format="%(message)s")
comm = ddl_core.init(ddl_core.Config(timeout=20))
print(comm.rank, comm.size, comm.allreduce(np.full(3, comm.rank + 1)).tolist())
"""

IN_C = """
#include <ddl/ddl.h>
#include <stdio.h>

int main(void)
{
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    ddl_status status = ddl_endpoint_create(NULL, &endpoint);
    if (!status)
        status = ddl_rendezvous(endpoint, NULL, -1, 0, &config, &comm);
    if (status) {
        fprintf(stderr, "%s\\n", ddl_last_error());
        return 1;
    }
    int64_t x[3] = {0};
    int rank = ddl_comm_rank(comm);
    x[0] = x[1] = x[2] = rank + 1;
    status = ddl_allreduce(comm, x, x, 3, DDL_I64, DDL_SUM, NULL, NULL);
    printf("%d %d [%d, %d, %d]\\n", rank, ddl_comm_size(comm), (int)x[0], (int)x[1], (int)x[2]);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return status;
}
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


@pytest.fixture(scope="module")
def program_in_c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("cc"):
        pytest.skip("there is no cc here")
    folder = tmp_path_factory.mktemp("c")
    (folder / "program.c").write_text(IN_C)
    package = Path(ddl_core.__file__).parent
    options = [f"-I{package / 'include'}", f"-L{package / 'lib'}", f"-Wl,-rpath,{package / 'lib'}"]
    sources = [folder / "program.c", "-lddl", "-o", folder / "program"]
    subprocess.run(["cc", *options, *sources], check=True)
    return folder / "program"


@pytest.mark.parametrize("launcher", [torchrun, srun])
@pytest.mark.parametrize("in_c", [(), (1, 2), (0, 1, 2)], ids=["python", "both", "c"])
def test_ranks_join(
    launcher: object,
    in_c: tuple[int, ...],
    program_in_c: Path,
    run_here: Run,
    tmp_path: Path,
    find_port: Callable[[], int],
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    port = find_port()  # of the rendezvous
    if launcher is srun:
        port = SRUN_PORTS[port % len(SRUN_PORTS)]

    def start(rank: int) -> Finished:
        assert callable(launcher)
        command = [program_in_c] if rank in in_c else [sys.executable, program]
        return run_here(command, env=launcher(rank, port))

    with ThreadPoolExecutor(3) as pool:
        ended = [one.expect_success() for one in pool.map(start, range(3))]
    assert [one.out for one in ended] == [f"{rank} 3 [6, 6, 6]\n" for rank in range(3)]
    if 0 not in in_c:
        assert f"launcher: {launcher.__name__} at tcp://localhost:" in ended[0].err


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DDL_RANK": "0", "DDL_SIZE": "2"}, "but DDL_RENDEZVOUS is not"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "use ddl_comm_from_mpi"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun's variables are incomplete"),
    ],
)
def test_program_in_c_without_an_address_is_refused(
    variables: dict[str, str], message: str, program_in_c: Path, run_here: Run
) -> None:
    ended = run_here([program_in_c], env=variables)
    assert (ended.code, ended.out) == (1, "")
    assert message in ended.err
