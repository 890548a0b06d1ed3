# SPDX-License-Identifier: Apache-2.0
"""The start of each library's ranks, on one host or on several."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.cases import free_port
from bench.environments import ROOT, cache_folder, compile_loop, interpreter

LIBRARIES = ("libddl", "gloo", "openmpi", "mpich", "impi")  # measured by default
MPIS = ("openmpi", "openmpi_yield", "mpich", "impi")  # openmpi_yield waits by sched_yield
BACKENDS = {"gloo": "gloo", "ddl_torch": "ddl", "commux": "ucx"}  # of torch.distributed
# Libraries that are measured with other settings, too: the variant's name, and the library's.
VARIANTS = {"openmpi_yield": "openmpi", "openmpi_ucx": "openmpi", "libddl_ucx": "libddl"}
ALL_LIBRARIES = (*LIBRARIES, *VARIANTS, "ddl_torch", "commux")
OVER_UCX = ("libddl_ucx", "openmpi_ucx", "commux")
# Open MPI uses UCX only with the networks of this list, which leaves out TCP.
_UCX_OPTIONS = ["--mca", "pml", "ucx"]
_UCX_OPTIONS += ["--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]


class Placement(Protocol):
    """The hosts of the ranks. `hosts` is the number of ranks on each host, `loops` the number of
    busy loops beside them; addresses are IP addresses."""

    name: str
    hosts: list[int]
    loops: int

    def address(self, host: int) -> str: ...
    def interface(self) -> str: ...
    def enter(self, host: int) -> list[str]: ...


class OneHost:
    """A placement of all ranks on this machine."""

    def __init__(self, ranks: int, loops: int = 0) -> None:
        self.name = f"one host, busy loops: {loops}" if loops else "one host"
        self.hosts = [ranks]
        self.loops = loops

    def address(self, host: int) -> str:
        return "127.0.0.1"

    def interface(self) -> str:
        return "lo"

    def enter(self, host: int) -> list[str]:
        return []


@dataclass
class ProcessSpec:
    """A process to start: its command line, and variables to add to its environment."""

    command: list[str]
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Library:
    """A library to measure. `name` is its name in tables, `kind` the module of rank/ that calls it,
    `loop` the compiled loop of calls from C, `program` the program of rank/."""

    name: str
    kind: str
    python: Path
    loop: Path | None = None
    program: str = "worker.py"

    def process_specs(self, placement: Placement, control: str) -> list[ProcessSpec]:
        """Return the processes that make up all ranks. `control` is the path of the scheduler's
        socket."""
        program = str(ROOT / "bench" / "rank" / self.program)
        worker = [str(self.python), program, self.kind, control]
        pinned = not placement.loops and self.name not in ("gloo", "commux")
        env = {"PYTHONDONTWRITEBYTECODE": "1", "BENCH_LOOP": str(self.loop or "")}
        env |= {"BENCH_PIN": str(int(pinned)), "BENCH_BACKEND": BACKENDS.get(self.name, "")}
        if self.name in OVER_UCX and len(placement.hosts) > 1:
            # UCX takes the lab's hosts for one, and would use shared memory between them.
            env |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": placement.interface()}
        if self.name == "libddl_ucx":
            env["DDL_LINKS"] = "inproc,shm,ucx"
        if self.kind == "mpi":
            return [self._mpirun(placement, worker, env)]
        size, port, secret = sum(placement.hosts), free_port(), "bench"
        places = [host for host, ranks in enumerate(placement.hosts) for _ in range(ranks)]
        specs = []
        for rank, host in enumerate(places):
            own = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": placement.address(0),
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": placement.interface(),
                "DDL_RENDEZVOUS": f"tcp://{placement.address(0)}:{port}",
                "DDL_RANK": str(rank),
                "DDL_SIZE": str(size),
                "DDL_SECRET": secret,
            }
            specs.append(ProcessSpec([*placement.enter(host), *worker], {**env, **own}))
        return specs

    def _mpirun(self, placement: Placement, worker: list[str], env: dict[str, str]) -> ProcessSpec:
        prefix = self.python.parent.parent
        size, several = sum(placement.hosts), len(placement.hosts) > 1
        hosts = [placement.address(h) for h in range(len(placement.hosts))]
        command = [str(prefix / "bin" / "mpirun"), "-n", str(size)]
        if self.name.startswith("openmpi"):
            # The ranks pin themselves.
            command += ["--allow-run-as-root", "--bind-to", "none"]
            command += ["--map-by", "slot:OVERSUBSCRIBE"]
            for name in env:
                command += ["-x", name]
            yields = self.name == "openmpi_yield"
            command += ["--mca", "mpi_yield_when_idle", "1"] if yields else []
            if several:
                slots = [f"{a}:{n}" for a, n in zip(hosts, placement.hosts, strict=True)]
                command += ["--host", ",".join(slots)]
                command += ["--prtemca", "plm_ssh_agent", str(_remote_shell(placement))]
                command += ["--mca", "btl_tcp_if_include", placement.interface()]
                btl = "self,tcp" if max(placement.hosts) == 1 else "self,sm,tcp"
                own = ["--mca", "pml", "ob1", "--mca", "btl", btl]
                command += _UCX_OPTIONS if self.name in OVER_UCX else own
                command += ["--prefix", str(prefix)]
        else:
            env = {**env, "I_MPI_PIN": "0", "I_MPI_ROOT": str(prefix), "HYDRA_BINDING": "none"}
            libraries = f"{prefix}/lib:{prefix}/lib/mpi:{prefix}/opt/mpi/libfabric/lib"
            env["LD_LIBRARY_PATH"] = libraries
            env["PATH"] = f"{prefix}/bin:{os.environ.get('PATH', '')}"
            if several:
                command += ["-hosts", ",".join(hosts), "-iface", placement.interface()]
                command += ["-ppn", str(placement.hosts[0])]
                command += ["-launcher", "ssh", "-launcher-exec", str(_remote_shell(placement))]
                env["FI_PROVIDER"] = "tcp"
                env["FI_TCP_IFACE"] = placement.interface()
                env["I_MPI_FABRICS"] = "shm:ofi"
            elif self.name == "impi":
                env["I_MPI_FABRICS"] = "shm"
        return ProcessSpec([*(placement.enter(0) if several else []), *command, *worker], env)


def find(name: str, python: Path | None = None, from_c: bool = False) -> Library:
    """Return the library of this name. Its virtual environment is created at first use.

    `python` is an interpreter that has ddl_core, to use instead; `name` is then only a label.
    `from_c`: also compile the loop of calls from C.
    """
    library = VARIANTS.get(name, name)
    kind = "mpi" if library in MPIS else "pytorch" if name in BACKENDS else "ddl"
    python = python or interpreter(library)
    loop = compile_loop(name, kind, python) if from_c and kind != "pytorch" else None
    return Library(name, kind, python, loop)


def _remote_shell(placement: Placement) -> Path:
    """Return a script that mpirun calls in place of ssh: SCRIPT [OPTIONS] ADDRESS COMMAND..."""
    lines = ["#!/bin/sh", "# Made by python -m bench: ssh for the lab's hosts."]
    lines += ["while :; do case $1 in -*) shift ;; *) break ;; esac; done"]
    lines += ["host=$1; shift", "case $host in"]
    for h in range(len(placement.hosts)):
        inside = " ".join([*placement.enter(h), "unshare", "--uts"])
        name = f'hostname bench{h}; exec sh -c "$*"'
        lines.append(f"{placement.address(h)}) exec {inside} sh -c '{name}' sh \"$@\" ;;")
    lines += ['*) echo "no host $host" >&2; exit 1 ;;', "esac"]
    path = cache_folder() / "remote_shell.sh"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
