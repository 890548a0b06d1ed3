# SPDX-License-Identifier: Apache-2.0
"""ddlrun: prepares the ranks' environments from its options, and runs the ranks."""

from __future__ import annotations

import argparse
import ctypes
import glob
import mmap
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddl_launch import submit, timeline
from ddl_launch.arguments import COUNTED, explain_misplaced, find_number, make_parser, parse
from ddl_launch.base.packages import find_frameworks
from ddl_launch.errors import FAILED, INTERRUPTED, NOT_EXECUTABLE, NOT_FOUND, USAGE, LaunchError
from ddl_launch.hosts import topology
from ddl_launch.hosts.allocation import Allocation, find_allocation
from ddl_launch.hosts.launchers import find_launcher
from ddl_launch.hosts.layout import (
    Host,
    Layout,
    lay_out,
    parse_hosts,
    read_hostfile,
    read_rankfile,
)
from ddl_launch.jobs.console import Console, open_standard_streams
from ddl_launch.jobs.init_process import leave_process_1
from ddl_launch.jobs.local_job import LaunchSpec, LocalJob
from ddl_launch.jobs.remote_job import RemoteJob, RemotePlan, preview
from ddl_launch.jobs.supervisor import Supervisor
from ddl_launch.rank import placement, sockets

_CHECK = ["-m", "ddl_launch.check"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ddlrun with `argv` (None: the process's own arguments). Return the exit code."""
    if argv is None:
        leave_process_1()
    open_standard_streams()
    console = Console()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = parse(words)
        _count_ranks(arguments)
        if arguments.submit:
            return submit.submit(arguments, words, _command(arguments), console)
        return _run(arguments, console)
    except LaunchError as error:
        console.log(str(error))
        return error.code
    except KeyboardInterrupt:  # before or after the run of the ranks
        console.log("interrupted")
        return INTERRUPTED


def _run(arguments: argparse.Namespace, console: Console) -> int:
    _refuse_several(os.environ)
    arguments.no_prefix |= arguments.check  # rank 0 prints a table
    layout, cores, allocation = _where(arguments)
    if arguments.nnodes not in (None, len(layout.hosts)):
        raise LaunchError(
            USAGE,
            f"--nnodes is {arguments.nnodes}, but the number of hosts is"
            f" {len(layout.hosts)}: list the hosts with -H or -hostfile, and start ddlrun once",
        )
    environment = _shared(arguments, layout, console)
    folder: Path | None = arguments.output_dir
    if folder is not None and not arguments.dry_run:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(USAGE, f"--output-dir {folder}: {error.strerror}") from None
    if arguments.timeline and not arguments.dry_run:
        timeline.prepare(arguments.timeline)
    command = _command(arguments)
    if all(_is_this_machine(host) for host in layout.hosts):
        return _run_here(arguments, command, layout.size, environment, cores, console)
    for host in layout.hosts:
        if host == "localhost" or sockets.is_loopback(host):
            raise LaunchError(
                USAGE,
                f"-H {host}: other hosts cannot reach this machine by this name; use its host name",
            )
    scheduler = allocation.scheduler if allocation else None
    plan = RemotePlan(
        launcher=find_launcher(arguments.launcher, scheduler),
        layout=layout,
        command=command,
        environment=environment,
        exported=[name for name, _ in arguments.x],
        binding=_binding(arguments.bind, cores, layout.size),
        rsh=arguments.rsh or os.environ.get("DDL_RSH"),
        more=[word for text in arguments.mpiarg for word in shlex.split(text)],
        prefix=not arguments.no_prefix,
        output_dir=folder,
        grace=arguments.grace,
        start_timeout=arguments.start_timeout,
        verbose=arguments.verbose,
        keep_going=arguments.keep_going,
        repeat_last=not arguments.check,
    )
    if arguments.dry_run:
        print(preview(plan, _free_ports()))
        return 0
    return _finish(RemoteJob(plan, console), layout.size, command, arguments, console)


def _finish(
    job: Supervisor,
    size: int,
    command: list[str],
    arguments: argparse.Namespace,
    console: Console,
) -> int:
    """Run the job and return its exit code. Then write the timeline if it was requested, and print
    a hint if an option stands after the program."""
    code = job.run()
    if arguments.timeline:
        console.log(timeline.join(arguments.timeline, size))
    if code == USAGE and (hint := explain_misplaced(make_parser(), command, job.last_words())):
        console.log(hint)
    return code


def _refuse_several(env: Mapping[str, str]) -> None:
    """Raise LaunchError if a launcher has started several ddlruns, since each would start all
    ranks."""
    for name, what in (
        ("OMPI_COMM_WORLD_SIZE", "mpirun"),
        ("PMI_SIZE", "mpirun"),
        ("SLURM_STEP_NUM_TASKS", "srun"),
    ):
        if name == "SLURM_STEP_NUM_TASKS" and not env.get("SLURM_STEP_ID", "").isdecimal():
            continue
        if env.get(name, "1") not in ("0", "1"):
            raise LaunchError(
                USAGE,
                f"{what} started ddlrun {env[name]} times: start ddlrun once, or start the"
                f" program with {what} and without ddlrun",
            )


# ---- which ranks, where ----


def _count_ranks(arguments: argparse.Namespace) -> None:
    """Replace a word for the number of ranks on each host, which torchrun also accepts, by the
    number: `cpu` means the usable cores, `gpu` the NVIDIA GPUs, and `auto` the GPUs if there are
    any, else the cores."""
    word = arguments.accelerators
    if word not in COUNTED:
        return
    given = arguments.host or arguments.hostfile or arguments.rankfile or arguments.submit
    if given or find_allocation(os.environ):
        raise LaunchError(
            USAGE,
            f"-accelerators {word} counts on this machine only; for a list of hosts, write a"
            " number, such as -accelerators 4",
        )
    gpus = len(glob.glob("/dev/nvidia[0-9]*"))
    if word == "gpu" and not gpus:
        raise LaunchError(
            USAGE, "-accelerators gpu: this machine has no NVIDIA GPU; write cpu or a number"
        )
    cores = placement.threads(placement.look()[1], 1)
    arguments.accelerators = gpus if gpus and word != "cpu" else cores


def _where(
    arguments: argparse.Namespace,
) -> tuple[Layout, dict[int, str], Allocation | None]:
    """Return the hosts of the ranks, the cores that a rankfile gives to ranks, and the
    allocation."""
    given = [name for name in ("host", "hostfile", "rankfile") if getattr(arguments, name)]
    if len(given) > 1:
        raise LaunchError(
            USAGE, f"-{given[0]} and -{given[1]} both specify the hosts: use only one of them"
        )
    allocation = find_allocation(os.environ)
    if arguments.rankfile:
        layout, cores = read_rankfile(arguments.rankfile)
        if arguments.n not in (None, layout.size):
            raise LaunchError(
                USAGE, f"-n {arguments.n}, but {arguments.rankfile} has {layout.size} ranks"
            )
        return layout, cores, allocation
    if arguments.host:
        hosts = parse_hosts(arguments.host, "-H")
    elif arguments.hostfile:
        hosts = read_hostfile(arguments.hostfile)
    elif allocation:
        hosts = allocation.hosts
    else:
        hosts = [Host("localhost")]
        if arguments.n is None and arguments.accelerators is None and not arguments.check:
            number = find_number(arguments.command)
            where = (
                f"; {number} stands after the program, so it was passed to the program"
                if number
                else ""
            )
            raise LaunchError(
                USAGE,
                f"the following arguments are required: -n, or -H for other hosts{where}"
                " (see ddlrun --help)",
            )
    if arguments.check:
        return Layout(tuple(host.name for host in hosts)), {}, allocation
    per_host = arguments.accelerators
    layout = lay_out(hosts, arguments.n, per_host)
    return layout, {}, allocation


def _binding(binding: str, cores: Mapping[int, str], size: int) -> str:
    return "/".join(cores.get(rank, "all") for rank in range(size)) if cores else binding


def _is_this_machine(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", socket.gethostname())


# ---- the ranks' environments ----


def _shared(arguments: argparse.Namespace, layout: Layout, console: Console) -> dict[str, str]:
    """Return the environment that all ranks share."""
    shared = dict(os.environ)
    for name, value in arguments.x:
        if value is not None:
            shared[name] = value
        elif name not in shared:
            raise LaunchError(USAGE, f"-x {name}: the variable is not set in ddlrun's environment")
    if arguments.timeline_filename:
        shared["HOROVOD_TIMELINE"] = arguments.timeline_filename
    if arguments.timeline:
        shared["DDL_TIMELINE_DIR"] = str(arguments.timeline.absolute())
    shape = (arguments.nodes, arguments.racks, arguments.aisles)
    if any(shape):
        description = topology.describe(len(layout.hosts), *shape)
        shared.pop("DDL_TOPOLOGY", None)
        if description:
            shared["DDL_TOPOLOGY"] = description
    mode, others, variables = topology.library_options(arguments.ddloption)
    shared |= variables
    if mode and arguments.mode:
        raise LaunchError(USAGE, "-mode is given twice, once through -ddlarg; omit one")
    options, remark = topology.mode_option(arguments.mode or mode, layout.size)
    options = f"{options} {others}".strip()
    if remark:
        console.log(remark)
    if arguments.no_ddloptions:
        shared.pop("DDL_OPTIONS", None)
    elif options:
        shared["DDL_OPTIONS"] = options
    if arguments.tcp:
        shared["DDL_LINKS"] = "inproc,shm,tcp"
    return shared


def _command(arguments: argparse.Namespace) -> list[str]:
    """Return the command to execute. Raises LaunchError if it cannot be executed."""
    if arguments.check:
        picture = ["--plot", str(arguments.plot.absolute())] if arguments.plot else []
        return [sys.executable, *_CHECK, *picture, *_imports(arguments.command)]
    command = list(arguments.command)
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise LaunchError(USAGE, "PROGRAM is missing (see ddlrun --help)")
    program = command[0]
    if program.endswith(".py"):
        if not Path(program).is_file():
            raise LaunchError(NOT_FOUND, f"the file {program} does not exist")
        return [sys.executable, *command]
    if shutil.which(program):
        return command
    path = Path(program)
    if "/" not in program:
        hint = f"; did you mean ./{program}?" if path.is_file() else ""
        raise LaunchError(NOT_FOUND, f"the program {program} is not in PATH{hint}")
    if path.is_dir():
        raise LaunchError(NOT_EXECUTABLE, f"{program} is a folder, not a program")
    if path.exists():
        raise LaunchError(NOT_EXECUTABLE, f"{program} is not executable")
    raise LaunchError(NOT_FOUND, f"the file {program} does not exist")


def _imports(command: Sequence[str]) -> list[str]:
    """Return the option of `ddlrun --check` for the frameworks that the program imports."""
    program = next((Path(word) for word in command if word.endswith(".py")), None)
    if program is None:
        return []
    if not program.is_file():
        raise LaunchError(NOT_FOUND, f"the file {program} does not exist")
    frameworks = find_frameworks(program)
    return ["--imports", ",".join(frameworks)] if frameworks else []


# ---- on this machine ----


def _run_here(
    arguments: argparse.Namespace,
    command: list[str],
    size: int,
    shared: dict[str, str],
    cores: Mapping[int, str],
    console: Console,
) -> int:
    nodes, limit = placement.look()
    if cores:
        bound = [placement.parse_cores(cores.get(rank, "")) for rank in range(size)]
    else:
        bound = [placement.share(nodes, rank, size, arguments.bind) for rank in range(size)]
    number = placement.threads(limit, size)
    if size > 1 and placement.THREADS[0] not in shared:
        console.log(
            f"setting OMP_NUM_THREADS={number} for each of {size} ranks on"
            f" {sum(map(len, nodes))} cores; set the variable to choose another number"
        )
        shared |= placement.thread_variables(shared, number)
    shared.setdefault("PYTHONUNBUFFERED", "1")
    if _has_loopback():  # no other host needs to reach these ranks
        # By number, because "lo" may also have addresses that are routed to this host.
        shared.setdefault("DDL_INTERFACES", "127.0.0.0/8,::1")
    elif size > 1:
        console.log(
            "the loopback interface is down, but the ranks of one machine connect over it: bring it"
            " up (ip link set lo up)"
        )
    if size > 1 and (library := _mpi_library(command[0])):
        console.log(
            f"{command[0]} uses {library}, but ddlrun starts the ranks of one machine without MPI:"
            " to MPI, each rank is alone. Start programs that call MPI with mpirun"
        )
    if arguments.output_dir is None and console.draws_on(console.err):  # for progress bars
        columns, lines = shutil.get_terminal_size()
        prefix = 0 if arguments.no_prefix else len(f"[{size - 1}] ")
        shared |= {"COLUMNS": str(columns - prefix), "LINES": str(lines)}
    if arguments.verbose:
        for rank, mine in enumerate(bound):
            console.log(f"rank {rank} on cores {placement.format_cores(mine)}")
    if arguments.dry_run:
        print(f"{size} times, on this machine: {shlex.join(command)}")
        return 0
    secret = secrets.token_hex(32) if _have_libcrypto() else ""
    if not secret:
        console.log(
            "libcrypto.so.3 is missing (Debian: libssl3): the ranks connect without a secret, so"
            " any user of this machine could connect as one of them; see ddl doctor"
        )
    plan = LaunchSpec(
        command,
        _environments(shared, size, secret),
        bound,
        not arguments.no_prefix,
        arguments.output_dir,
        arguments.grace,
        summary=arguments.verbose,
        keep_going=arguments.keep_going,
    )
    return _finish(LocalJob(plan, console), size, command, arguments, console)


def _mpi_library(program: str) -> str:
    """Return the name of the MPI library that an executable file names, or "" if there is none."""
    found = None
    try:
        with (
            open(shutil.which(program) or program, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            if data[:4] == b"\x7fELF":
                found = re.search(rb"\0(libmpi(?:ch)?\.so[.\d]*)\0", data)
            return found[1].decode() if found else ""
    except (OSError, ValueError):  # it cannot be read, or is empty
        return ""


def _has_loopback() -> bool:
    """Return True if loopback is up. In a new network namespace it is down, although a socket can
    be bound to its address."""
    try:
        sockets.addresses_to("127.0.0.1")
    except OSError:
        return False
    return True


def _have_libcrypto() -> bool:
    """Return True if libddl can use a secret. libddl/src/base/crypto.c looks for the same names."""
    for name in ("libcrypto.so.3", "libcrypto.so.1.1"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def _environments(shared: Mapping[str, str], size: int, secret: str) -> list[dict[str, str]]:
    ours, torchs = _free_ports()
    job = {
        "DDL_SIZE": str(size),
        "DDL_LOCAL_SIZE": str(size),
        "DDL_RENDEZVOUS": f"tcp://127.0.0.1:{ours}",
        "DDL_SECRET": secret,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(torchs),
    }
    names = ("DDL_RANK", "DDL_LOCAL_RANK", "RANK", "LOCAL_RANK")
    return [{**shared, **job, **dict.fromkeys(names, str(rank))} for rank in range(size)]


def _free_ports() -> list[int]:
    """Return two ports: one for the ranks' rendezvous, one for torch.distributed's store."""
    free = sockets.free_ports(2)
    if len(free) < 2:
        raise LaunchError(
            FAILED, f"no port from {sockets.PORTS.start} to {sockets.PORTS.stop - 1} is free"
        )
    return free
