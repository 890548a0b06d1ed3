# SPDX-License-Identifier: Apache-2.0
"""The hosts that a batch scheduler has allocated, from the environment that it sets.

Slurm is tested with a real one (tests/lab/slurm.py). LSF, PBS and Kubernetes follow the
documentation cited below and are untested.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddl_launch.errors import USAGE, LaunchError
from ddl_launch.hosts.layout import Host, read_hostfile


@dataclass(frozen=True)
class Allocation:
    """The hosts that a batch scheduler has allocated to a job.

    scheduler  "slurm", "lsf", "pbs" or "k8s"
    job        the job's number or name
    """

    scheduler: str
    job: str
    hosts: list[Host]


def find_allocation(env: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of this process, or None."""
    return _slurm(env) or _lsf(env) or _pbs(env) or _kubernetes(env)


def _slurm(env: Mapping[str, str]) -> Allocation | None:
    nodes = env.get("SLURM_JOB_NODELIST")
    if "SLURM_JOB_ID" not in env or not nodes:
        return None
    names = expand_nodes(nodes)
    counts: list[int | None] = [None] * len(names)
    # If no number of tasks was requested, Slurm gives one per core here.
    if "SLURM_NTASKS" in env or "SLURM_NTASKS_PER_NODE" in env:
        tasks = expand_counts(env.get("SLURM_TASKS_PER_NODE", ""))
        if len(tasks) == len(names):
            counts = list(tasks)
    hosts = [Host(name, count) for name, count in zip(names, counts, strict=True)]
    return Allocation("slurm", env["SLURM_JOB_ID"], hosts)


def expand_nodes(text: str) -> list[str]:
    """Return the hosts of a list in Slurm's notation, such as "n[07-09,12],gpu1"."""
    names = []
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        found = [""]
        for i, piece in enumerate(pieces):
            choices = [piece] if i % 2 == 0 else _numbers(piece)
            found = [begin + choice for begin in found for choice in choices]
        names += found
    return names


def _numbers(text: str) -> list[str]:
    numbers = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise LaunchError(
                USAGE, f"SLURM_JOB_NODELIST contains {text!r}; must be a list of numbers"
            )
        width = len(first)
        numbers += [f"{n:0{width}}" for n in range(int(first), int(last or first) + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """Return the numbers of a list in Slurm's notation, such as "2(x3),1"."""
    counts = []
    for item in filter(None, text.split(",")):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)
        if not found:
            raise LaunchError(
                USAGE,
                f"SLURM_TASKS_PER_NODE is {text!r}; must be a list of numbers such as 2(x3),1",
            )
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _lsf(env: Mapping[str, str]) -> Allocation | None:
    """Return the hosts of an LSF job.

    IBM Spectrum LSF 10.1, "Environment variables set for job execution": LSB_MCPU_HOSTS is "a list
    of hosts and the number of CPUs", such as "hostA 20 hostB 10". On clusters with launch nodes,
    which have jsrun, the first host is the job's launch node, with one slot. It gets no ranks.
    """
    if "LSB_JOBID" not in env or not env.get("LSB_MCPU_HOSTS"):
        return None
    words = env["LSB_MCPU_HOSTS"].split()
    if len(words) % 2 or not all(n.isdecimal() and int(n) for n in words[1::2]):
        raise LaunchError(
            USAGE,
            f'LSB_MCPU_HOSTS="{env["LSB_MCPU_HOSTS"]}" must be a list of hosts and numbers,'
            ' such as "h1 4 h2 4"',
        )
    hosts = [Host(name, int(n)) for name, n in zip(words[::2], words[1::2], strict=True)]
    if len(hosts) > 1 and hosts[0].ranks == 1 and shutil.which("jsrun", path=env.get("PATH", "")):
        del hosts[0]
    return Allocation("lsf", env["LSB_JOBID"], hosts)


def _pbs(env: Mapping[str, str]) -> Allocation | None:
    """Return the hosts of a PBS job.

    PBS Professional, User's Guide, "The Job's Node File": PBS_NODEFILE names a file with one line,
    the host, for each MPI process that the job's chunks request (mpiprocs).
    """
    if "PBS_JOBID" not in env or "PBS_NODEFILE" not in env:
        return None
    hosts = read_hostfile(Path(env["PBS_NODEFILE"]), "PBS_NODEFILE")
    hosts = [Host(host.name, host.ranks or 1) for host in hosts]
    return Allocation("pbs", env["PBS_JOBID"], hosts)


def _kubernetes(env: Mapping[str, str]) -> Allocation | None:
    """Return the hosts of the pod that launches an MPI job.

    There, /etc/mpi/hostfile has lines "NAME slots=N" for Open MPI, "NAME:N" for Intel MPI and
    MPICH, and the MPI's own variable names the file. Kubeflow's MPI Operator, v2beta1, also sets
    K_MPI_JOB_ROLE to "launcher"; Kubeflow Trainer, v2, has no such variable."""
    variables = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")
    named = (*variables, "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE")
    path = next((env[name] for name in named if name in env), None)
    if env.get("K_MPI_JOB_ROLE") == "launcher":
        path = path or "/etc/mpi/hostfile"
    elif "KUBERNETES_SERVICE_HOST" not in env:
        return None
    if path is None:
        return None
    return Allocation("k8s", env.get("HOSTNAME", ""), read_hostfile(Path(path), "hostfile"))
