# SPDX-License-Identifier: Apache-2.0
"""Detection, from the environment, of the launcher that started this process.

    ddlrun     DDL_RANK, DDL_SIZE, DDL_RENDEZVOUS
    mpirun     OMPI_COMM_WORLD_RANK (Open MPI), PMI_RANK (MPICH, Intel MPI, ...), PMIX_RANK
    torchrun   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    srun       SLURM_PROCID, SLURM_STEP_ID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST
    alone      none of these: size 1

The launchers are tried in this order, but one that another launcher started takes precedence.
Except under mpirun, the ranks connect to a TCP address of rank 0, at a port derived from values
that all ranks know; DDL_RENDEZVOUS=tcp://host:port chooses another one. An incomplete set of a
launcher's variables is an error, because each process would run alone. MASTER_ADDR and MASTER_PORT
without RANK and WORLD_SIZE are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddl_core.errors import InvalidArgument
from ddl_core.joining.variables import is_of_service

# torchrun's store listens at MASTER_PORT itself. The offset is subtracted if the sum is not a port.
TORCHRUN_PORT_OFFSET = 17
# srun provides no port. These are below Linux's ephemeral ports.
SRUN_PORTS = range(20000, 32000)
# For each launcher: the variables that give a process its place, and those that it also needs.
_PARTS = (
    ("ddlrun", ("DDL_RENDEZVOUS",), ("DDL_RANK", "DDL_SIZE")),
    ("mpirun", ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_RANK",)),
    ("mpirun", ("PMI_SIZE",), ("PMI_RANK",)),
    ("torchrun", ("RANK", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT")),
    ("srun", ("SLURM_STEP_ID",), ("SLURM_PROCID",)),
)


@dataclass(frozen=True)
class World:
    """The launch of this process.

    launcher   "ddlrun", "mpirun", "torchrun", "srun" or "alone"
    rank       from 0 to size - 1; -1 if only MPI knows it
    size       0 if only MPI knows it
    url        the ranks' rendezvous; None under mpirun, and for a single rank
    secret     distinguishes this job from others; None: DDL_SECRET or DDL_SECRET_FILE, if set
    warning    a probable error in this environment, or ""
    master     the launcher's name for rank 0's host; None if it sets none
    """

    launcher: str
    rank: int = 0
    size: int = 1
    url: str | None = None
    secret: str | None = None
    warning: str = ""
    master: str | None = None


def detect(env: Mapping[str, str]) -> World:
    """Return the world that the environment `env` describes. Raises InvalidArgument, which names a
    variable that is missing, not a number, or out of range."""
    world = _ddlrun(env) or _mpirun(env) or _torchrun(env) or _srun(env) or _alone(env)
    if world.size and not 0 <= world.rank < world.size:
        raise InvalidArgument(
            f"{world.launcher} set rank {world.rank} and size {world.size}; the rank must be less "
            f"than the size"
        )
    return world


def _ddlrun(env: Mapping[str, str]) -> World | None:
    if "DDL_RANK" not in env and "DDL_SIZE" not in env:
        return None
    rank, size = _number(env, "DDL_RANK"), _number(env, "DDL_SIZE")
    if "DDL_RENDEZVOUS" not in env and size != 1:
        raise InvalidArgument("DDL_RANK and DDL_SIZE are set, but DDL_RENDEZVOUS is not")
    master = env.get("MASTER_ADDR")
    return World("ddlrun", rank, size, env.get("DDL_RENDEZVOUS"), master=master)


def _mpirun(env: Mapping[str, str]) -> World | None:
    if "TORCHELASTIC_RUN_ID" in env:  # set by a torchrun that mpirun started
        return None
    if "OMPI_COMM_WORLD_RANK" in env:
        size = _number(env, "OMPI_COMM_WORLD_SIZE")
        return World("mpirun", _number(env, "OMPI_COMM_WORLD_RANK"), size)
    # srun may set PMI's variables for any program. They count as mpirun's if an mpirun below srun
    # set them, which also sets MPI_LOCALNRANKS.
    if _in_srun_step(env) and "MPI_LOCALNRANKS" not in env:
        return None
    if "PMI_RANK" in env:
        return World("mpirun", _number(env, "PMI_RANK"), _number(env, "PMI_SIZE"))
    if "PMIX_RANK" in env:
        return World("mpirun", -1, 0)
    return None


def _torchrun(env: Mapping[str, str]) -> World | None:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= env.keys():
        return None
    rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    port = _number(env, "MASTER_PORT") + TORCHRUN_PORT_OFFSET
    if port > 65535:
        port -= 2 * TORCHRUN_PORT_OFFSET
    job = [env.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    return _rendezvous_url("torchrun", rank, size, env["MASTER_ADDR"], port, ".".join(job), env)


def _srun(env: Mapping[str, str]) -> World | None:
    if not _in_srun_step(env):
        return None
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    rank, size = _number(env, "SLURM_PROCID"), _number(env, tasks)
    job, step = _number(env, "SLURM_JOB_ID"), _number(env, "SLURM_STEP_ID")
    nodes = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in env else "SLURM_JOB_NODELIST"
    host = first_host(env.get(nodes, "127.0.0.1"))
    port = SRUN_PORTS[(31 * job + step) % len(SRUN_PORTS)]
    return _rendezvous_url("srun", rank, size, host, port, f"{job}.{step}", env)


def _alone(env: Mapping[str, str]) -> World:
    _refuse_parts(env)
    tasks = env.get("SLURM_NTASKS", "1")
    if tasks != "1":
        several = f"Slurm's SLURM_NTASKS is {tasks}"
    elif env.get("DDL_RENDEZVOUS"):
        several = "DDL_RENDEZVOUS is set"
    else:
        return World("alone")
    return World(
        "alone",
        warning=f"{several}, but srun did not start this process: it runs alone; start it with"
        " srun, mpirun or ddlrun",
    )


def _refuse_parts(env: Mapping[str, str]) -> None:
    """Raise InvalidArgument if only some of a launcher's variables are set. The shells of sbatch
    and salloc may have DDL_RENDEZVOUS, which they export for srun."""
    for launcher, places, needed in _PARTS:
        if launcher == "ddlrun" and env.get("SLURM_JOB_ID"):
            continue
        present = [name for name in places + needed if env.get(name)]
        missing = [name for name in places + needed if not env.get(name)]
        if missing and any(name in present for name in places) and env.get("WORLD_SIZE") != "1":
            raise InvalidArgument(
                f"{launcher}'s variables are incomplete: {', '.join(present)} is set, but not"
                f" {', '.join(missing)}; set all of them, or none to run alone"
            )


def _in_srun_step(env: Mapping[str, str]) -> bool:
    """Return True if srun started this process, or a parent of it. The shells of sbatch and salloc
    also have Slurm's variables, but belong to no numbered step."""
    return "SLURM_PROCID" in env and env.get("SLURM_STEP_ID", "").isdecimal()


def _rendezvous_url(
    launcher: str, rank: int, size: int, host: str, port: int, job: str, env: Mapping[str, str]
) -> World:
    address = f"[{host}]" if ":" in host else host  # IPv6
    url = env.get("DDL_RENDEZVOUS", f"tcp://{address}:{port}")
    secret = None if "DDL_SECRET" in env or env.get("DDL_SECRET_FILE") else job
    return World(launcher, rank, size, url if size != 1 else None, secret, master=host)


def metrics_port(env: Mapping[str, str]) -> int | None:
    """Return DDL_METRICS_PORT, or None if it is unset, empty or set by Kubernetes for a Service.
    Raises InvalidArgument if it is not a port."""
    if not env.get("DDL_METRICS_PORT") or is_of_service(env, "DDL_METRICS_PORT"):
        return None
    port = _number(env, "DDL_METRICS_PORT")
    if not 0 < port < 65536:
        raise InvalidArgument(f"DDL_METRICS_PORT is {port}; must be a port from 1 to 65535")
    return port


def first_host(nodes: str) -> str:
    """Return the first host of a list in Slurm's notation: "n07" for "n[07-09,12],gpu1"."""
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else nodes)


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name)
    if text is None:
        raise InvalidArgument(
            f"{name} is not set, but other variables of its launcher are; set all of them, or"
            " none to "
            f"run alone"
        )
    if not re.fullmatch(r"[0-9]{1,10}", text):  # Slurm's job ids have up to 10 digits
        raise InvalidArgument(f'{name} is "{text}"; must be a number')
    return int(text)
