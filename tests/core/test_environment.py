# SPDX-License-Identifier: Apache-2.0
"""Which world an environment describes. Pure: environments are given as mappings."""

import pytest

from ddl_core import torch_choices
from ddl_core.environment import SRUN_PORTS, World, detect, first_host
from ddl_core.errors import InvalidArgument

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


def test_alone() -> None:
    assert detect({"PATH": "/bin", "HOME": "/"}) == World("alone", 0, 1, None, None, "")


def test_ddlrun() -> None:
    assert summary(detect(DDLRUN)) == ("ddlrun", 1, 4, "tcp://127.0.0.1:20001")
    assert detect(DDLRUN).secret is None  # the library reads DDL_SECRET


@pytest.mark.parametrize("env", [OPEN_MPI, MPICH], ids=["openmpi", "mpich"])
def test_mpirun(env: dict[str, str]) -> None:
    assert summary(detect(env)) == ("mpirun", 2, 3, None)


def test_mpirun_with_pmix_alone_leaves_the_size_to_mpi() -> None:
    assert summary(detect({"PMIX_RANK": "2"})) == ("mpirun", -1, 0, None)


def test_torchrun() -> None:
    world = detect(TORCHRUN)
    assert summary(world) == ("torchrun", 5, 8, "tcp://node1:29517")
    assert world.secret == "abc.1"


def test_torchrun_port_stays_in_range() -> None:
    assert detect({**TORCHRUN, "MASTER_PORT": "65530"}).url == "tcp://node1:65513"


def test_torchrun_ipv6() -> None:
    assert detect({**TORCHRUN, "MASTER_ADDR": "fe80::1"}).url == "tcp://[fe80::1]:29517"


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_part_of_torchruns_variables_is_refused(missing: str) -> None:
    env = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(
        InvalidArgument, match=f"torchrun's variables are incomplete: .*, but not {missing};"
    ):
        detect(env)


@pytest.mark.parametrize(
    ("env", "missing"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT"),
        ({"DDL_RENDEZVOUS": "tcp://127.0.0.1:20001"}, "DDL_RANK, DDL_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK"),
        ({"PMI_SIZE": "2"}, "PMI_RANK"),
        ({"SLURM_STEP_ID": "2", "SLURM_JOB_ID": "77"}, "SLURM_PROCID"),
    ],
)
def test_part_of_a_launchers_variables_is_refused(env: dict[str, str], missing: str) -> None:
    with pytest.raises(InvalidArgument, match=f"are incomplete: .* is set, but not {missing};"):
        detect(env)


@pytest.mark.parametrize(
    "env",
    [
        {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"DDL_RENDEZVOUS": ""},
    ],
)
def test_variables_that_give_no_place_mean_alone(env: dict[str, str]) -> None:
    assert summary(detect(env)) == ("alone", 0, 1, None)


def test_part_of_torchruns_variables_under_srun_is_srun() -> None:
    env = {**SRUN, "WORLD_SIZE": "4", "MASTER_ADDR": "n08", "MASTER_PORT": "29500"}
    assert detect(env).launcher == "srun"


def test_slurm_job_id_of_ten_digits() -> None:
    world = detect({**SRUN, "SLURM_JOB_ID": "4227858432"})
    assert (world.launcher, world.rank, world.secret) == ("srun", 3, "4227858432.2")


def test_srun() -> None:
    world = detect(SRUN)
    assert (world.launcher, world.rank, world.size, world.secret) == ("srun", 3, 4, "77.2")
    assert world.url is not None
    host, port = world.url.removeprefix("tcp://").split(":")
    assert host == "n08"
    assert int(port) in SRUN_PORTS


def test_srun_steps_use_different_ports() -> None:
    urls = {detect({**SRUN, "SLURM_STEP_ID": str(step)}).url for step in range(20)}
    assert len(urls) == 20


def test_srun_of_one_task_is_alone() -> None:
    env = {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert summary(detect(env)) == ("srun", 0, 1, None)


@pytest.mark.parametrize("env", [SBATCH, SALLOC], ids=["sbatch", "salloc"])
def test_a_batch_shell_of_slurm_is_alone(env: dict[str, str]) -> None:
    world = detect(env)
    assert summary(world) == ("alone", 0, 1, None)
    assert "SLURM_NTASKS is 4, but srun did not start this process" in world.warning


def test_rendezvous_that_a_batch_shell_exports_for_srun_is_no_place() -> None:
    world = detect({"SLURM_JOB_ID": "77", "DDL_RENDEZVOUS": "tcp://h:1"})
    assert summary(world) == ("alone", 0, 1, None)
    assert world.warning.startswith("DDL_RENDEZVOUS is set, but srun did not start this process")


def test_order_of_precedence() -> None:
    plain = {name: value for name, value in TORCHRUN.items() if "ELASTIC" not in name}
    launchers = [("ddlrun", DDLRUN), ("mpirun", OPEN_MPI), ("torchrun", plain), ("srun", SRUN)]
    everything: dict[str, str] = {}
    for launcher, env in reversed(launchers):
        everything |= env
        assert detect(everything).launcher == launcher


def test_srun_that_sets_pmi_is_srun() -> None:
    assert detect({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4"}).launcher == "srun"
    assert detect({**SRUN, "PMIX_RANK": "3"}).launcher == "srun"


def test_mpirun_below_srun_is_mpirun() -> None:
    assert summary(detect({**SRUN, **MPICH}))[:3] == ("mpirun", 2, 3)


def test_torchrun_below_mpirun_is_torchrun() -> None:
    assert detect({**OPEN_MPI, **TORCHRUN}).launcher == "torchrun"


@pytest.mark.parametrize("env", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_ddl_rendezvous_and_ddl_secret_take_precedence(env: dict[str, str]) -> None:
    world = detect({**env, "DDL_RENDEZVOUS": "tcp://other:1234", "DDL_SECRET": "x"})
    assert (world.url, world.secret) == ("tcp://other:1234", None)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"DDL_RANK": "0"}, "DDL_SIZE is not set"),
        ({"DDL_SIZE": "2"}, "DDL_RANK is not set"),
        ({"DDL_RANK": "0", "DDL_SIZE": "2"}, "DDL_RENDEZVOUS is not"),
        ({**DDLRUN, "DDL_RANK": "one"}, 'DDL_RANK is "one", not a number'),
        ({**DDLRUN, "DDL_SIZE": "-4"}, 'DDL_SIZE is "-4", not a number'),
        ({**DDLRUN, "DDL_SIZE": ""}, 'DDL_SIZE is "", not a number'),
        ({**DDLRUN, "DDL_RANK": "4"}, "ddlrun set rank 4 of 4"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not set"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, 'MASTER_PORT is "http"'),
        ({**TORCHRUN, "RANK": "8"}, "torchrun set rank 8 of 8"),
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
