# SPDX-License-Identifier: Apache-2.0
"""The world that an environment describes. Pure: environments are given as mappings."""

import pytest

from ddl_core.errors import InvalidArgument
from ddl_core.frameworks import torch_choices
from ddl_core.joining.environment import SRUN_PORTS, World, detect, first_host

DDLRUN = {"DDL_RANK": "1", "DDL_SIZE": "4", "DDL_RENDEZVOUS": "tcp://127.0.0.1:20001"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "2"}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3", "MPI_LOCALRANKID": "2"}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "1",
}
SALLOC = {
    "SLURM_JOB_ID": "77",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_NODELIST": "n[07-09,12],gpu1",
    "SLURM_NNODES": "5",
}
SBATCH = {**SALLOC, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
SRUN = {
    **SBATCH,
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[08-09]",
}


def summary(world: World) -> tuple[str, int, int, str | None]:
    return world.launcher, world.rank, world.size, world.url


PLAIN = {name: value for name, value in TORCHRUN.items() if "ELASTIC" not in name}
MPIRUN = ("mpirun", 2, 3, None)
ALONE = ("alone", 0, 1, None)
ELSEWHERE = {"DDL_RENDEZVOUS": "tcp://other:1234"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (DDLRUN, ("ddlrun", 1, 4, "tcp://127.0.0.1:20001")),
        (OPEN_MPI, MPIRUN),
        (MPICH, MPIRUN),
        ({"PMIX_RANK": "2"}, ("mpirun", -1, 0, None)),  # MPI knows the size
        (TORCHRUN, ("torchrun", 5, 8, "tcp://node1:29517")),
        ({**TORCHRUN, "MASTER_PORT": "65530"}, ("torchrun", 5, 8, "tcp://node1:65513")),
        ({**TORCHRUN, "MASTER_ADDR": "fe80::1"}, ("torchrun", 5, 8, "tcp://[fe80::1]:29517")),
        # Variables that do not give a place.
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, ALONE),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ALONE),
        ({"DDL_RENDEZVOUS": ""}, ALONE),
        ({**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, ("srun", 0, 1, None)),
        # Batch shells of Slurm, even with a rendezvous that they export for srun.
        (SBATCH, ALONE),
        (SALLOC, ALONE),
        ({"SLURM_JOB_ID": "77", "DDL_RENDEZVOUS": "tcp://h:1"}, ALONE),
        ({**SRUN, **MPICH}, MPIRUN),  # mpirun below srun
        # Precedence.
        ({**PLAIN, **SRUN}, ("torchrun", 5, 8, "tcp://node1:29517")),
        ({**PLAIN, **SRUN, **OPEN_MPI}, MPIRUN),
        ({**PLAIN, **SRUN, **OPEN_MPI, **DDLRUN}, ("ddlrun", 1, 4, "tcp://127.0.0.1:20001")),
        ({**OPEN_MPI, **TORCHRUN}, ("torchrun", 5, 8, "tcp://node1:29517")),  # below mpirun
        ({**TORCHRUN, **ELSEWHERE, "DDL_SECRET": "x"}, ("torchrun", 5, 8, "tcp://other:1234")),
        ({**SRUN, **ELSEWHERE, "DDL_SECRET": "x"}, ("srun", 3, 4, "tcp://other:1234")),
    ],
)
def test_world_of_a_launcher(env: dict[str, str], expected: tuple[str, int, int, str]) -> None:
    assert summary(detect(env)) == expected


def test_alone() -> None:
    assert detect({"PATH": "/bin", "HOME": "/"}) == World("alone", 0, 1, None, None, "")


def test_secret() -> None:
    own = {"DDL_RENDEZVOUS": "tcp://other:1234", "DDL_SECRET": "x"}
    for env in (DDLRUN, {**TORCHRUN, **own}, {**SRUN, **own}):
        assert detect(env).secret is None  # the library reads DDL_SECRET
    assert detect(TORCHRUN).secret == "abc.1"
    assert detect(SRUN).secret == "77.2"
    assert detect({**SRUN, "SLURM_JOB_ID": "4227858432"}).secret == "4227858432.2"


@pytest.mark.parametrize(
    ("env", "missing"),
    [
        *(
            ({name: value for name, value in TORCHRUN.items() if name != missing}, missing)
            for missing in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT"),
        ({"DDL_RENDEZVOUS": "tcp://127.0.0.1:20001"}, "DDL_RANK, DDL_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK"),
        ({"PMI_SIZE": "2"}, "PMI_RANK"),
        ({"SLURM_STEP_ID": "2", "SLURM_JOB_ID": "77"}, "SLURM_PROCID"),
    ],
)
def test_part_of_a_launchers_variables_is_refused(env: dict[str, str], missing: str) -> None:
    with pytest.raises(InvalidArgument, match=f"are incomplete: .*, but not {missing};"):
        detect(env)


@pytest.mark.parametrize(
    "more",
    [
        {},
        # Batch scripts export some of torchrun's variables before srun.
        {"WORLD_SIZE": "4", "MASTER_ADDR": "n08", "MASTER_PORT": "29500"},
        {"PMI_RANK": "3", "PMI_SIZE": "4"},
        {"PMIX_RANK": "3"},
    ],
)
def test_srun(more: dict[str, str]) -> None:
    world = detect({**SRUN, **more})
    assert (world.launcher, world.rank, world.size) == ("srun", 3, 4)
    assert world.url is not None
    host, port = world.url.removeprefix("tcp://").split(":")
    assert host == "n08"
    assert int(port) in SRUN_PORTS


def test_srun_steps_use_different_ports() -> None:
    urls = {detect({**SRUN, "SLURM_STEP_ID": str(step)}).url for step in range(20)}
    assert len(urls) == 20


def test_batch_shell_of_slurm_warns() -> None:
    for env in (SBATCH, SALLOC):
        said = "SLURM_NTASKS is 4, but srun did not start this process"
        assert said in detect(env).warning
    warning = detect({"SLURM_JOB_ID": "77", "DDL_RENDEZVOUS": "tcp://h:1"}).warning
    assert warning.startswith("DDL_RENDEZVOUS is set, but srun did not start this process")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"DDL_RANK": "0"}, "DDL_SIZE is not set"),
        ({"DDL_SIZE": "2"}, "DDL_RANK is not set"),
        ({"DDL_RANK": "0", "DDL_SIZE": "2"}, "DDL_RENDEZVOUS is not"),
        ({**DDLRUN, "DDL_RANK": "one"}, 'DDL_RANK is "one"; must be a number'),
        ({**DDLRUN, "DDL_SIZE": "-4"}, 'DDL_SIZE is "-4"; must be a number'),
        ({**DDLRUN, "DDL_SIZE": ""}, 'DDL_SIZE is ""; must be a number'),
        ({**DDLRUN, "DDL_RANK": "4"}, "ddlrun set rank 4 and size 4"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not set"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, 'MASTER_PORT is "http"'),
        ({**TORCHRUN, "RANK": "8"}, "torchrun set rank 8 and size 8"),
        ({**SRUN, "SLURM_JOB_ID": "x"}, 'SLURM_JOB_ID is "x"'),
    ],
)
def test_bad_variable_is_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        detect(env)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("nl[0-1]", "nl0"),
        ("n[07-09,12],gpu1", "n07"),
        ("n[12,15],a", "n12"),
        ("rack[1-2]n[03-04]", "rack1n03"),
        ("gpu-a[1-3]-x,b", "gpu-a1-x"),
    ],
)
def test_first_host_of_slurms_lists(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_host_of_rank_0() -> None:
    elsewhere = {"DDL_RENDEZVOUS": "tcp://other:1"}
    assert detect({**DDLRUN, "MASTER_ADDR": "node1"}).master == "node1"
    assert detect(DDLRUN).master is None
    assert detect({**TORCHRUN, **elsewhere}).master == "node1"
    assert detect({**TORCHRUN, "MASTER_ADDR": "fe80::1"}).master == "fe80::1"
    assert detect({**SRUN, **elsewhere}).master == "n08"
    assert detect({**OPEN_MPI, "MASTER_ADDR": "node1"}).master is None


def test_the_backend_that_ddl_answers_for() -> None:
    served = torch_choices.served_backend
    assert served({}) == served({"DDL_TORCH_SERVE": ""}) == ""
    assert served({"DDL_TORCH_SERVE": "gloo"}) == "gloo"
    with pytest.raises(InvalidArgument, match='DDL_TORCH_SERVE is "mpi"; must be "gloo"'):
        served({"DDL_TORCH_SERVE": "mpi"})


def test_whether_a_native_part_is_compiled() -> None:
    native = torch_choices.native
    assert native({})
    assert native({"DDL_TORCH_NATIVE": "1"})
    assert not native({"DDL_TORCH_NATIVE": "0"})
    with pytest.raises(InvalidArgument, match='DDL_TORCH_NATIVE is "no"; must be 0 or 1'):
        native({"DDL_TORCH_NATIVE": "no"})
