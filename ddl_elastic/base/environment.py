# SPDX-License-Identifier: Apache-2.0
"""The environment variables and process settings that this package reads and sets."""

from __future__ import annotations

import mmap
import os
import platform
import re
import resource
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_TRACES = "DDL_TRACE_DIR"
_TOKEN = "DDL_ELASTIC_TOKEN"
_CHECKPOINTS = "DDL_ELASTIC_CHECKPOINTS"
_RECORDING = "DDL_ELASTIC_RECORDING"  # settings for workers of `ddl elastic verify`
_AUDIT = "DDL_ELASTIC_AUDIT"  # the fraction of shares to audit, and the action
_AGENT = "DDL_ELASTIC_AGENT"  # a worker's channel descriptor, and its number in the job

_taken: mmap.mmap | None = None  # a worker's flag, in memory that it shares with forked children


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def dead() -> float:
    """Return the seconds without a heartbeat after which libddl declares a rank dead."""
    found = os.environ.get("DDL_DEAD_MS", "")
    return int(found) / 1000 if found.isdecimal() and int(found) else 3.0


def allow_connections() -> None:
    """Raise this process's limit of open files to the hard limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def runtime_folder() -> Path:
    """Return a folder that only this user can enter. It may be removed when the user logs out.
    Raises OSError."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    name = "ddl-elastic" if base else f"ddl-elastic-{os.getuid()}"
    return _private(Path(base or tempfile.gettempdir(), name))


def state_folder() -> Path:
    """Return a permanent folder for this machine that only this user can enter. Raises OSError."""
    base = os.environ.get("XDG_STATE_HOME", "")
    shared = Path(base) if base else Path.home() / ".local" / "state"
    shared.mkdir(parents=True, exist_ok=True)
    return _private(_private(shared / "ddl-elastic") / socket.gethostname())


def _private(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} must belong to this user alone; remove it")
    return folder


def prepare_worker(threads: int, witness: str) -> None:
    """Set a worker's environment for libraries that it loads later. The job reports failures
    itself, so libddl's messages are off unless DDL_LOG is set."""
    limit_threads(threads)
    os.environ["DDL_WITNESS"] = witness
    os.environ.setdefault("DDL_LOG", "off")


def fix_hashes() -> None:
    """Restart Python with PYTHONHASHSEED=0, unless the variable is set. Sets of strings then have
    the same order in each run and on each host. Call this first: only the command line, the
    environment and inherited file descriptors are kept."""
    if "PYTHONHASHSEED" not in os.environ and not sys.flags.ignore_environment:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def limit_threads(threads: int) -> None:
    """Set the number of threads for OpenMP, XLA and TensorFlow, if they start later."""
    for name in _THREADS:
        os.environ[name] = str(threads)


def fix_cublas() -> None:
    """Give cuBLAS a workspace of fixed size, so that its results have the same bits in each run.
    Call this before cuBLAS is first used."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def has_threads(threads: int) -> bool:
    """Return True if the variables that `limit_threads` sets have this value."""
    return all(os.environ.get(name) == str(threads) for name in _THREADS)


def threads() -> str:
    """Return the number of threads of XLA and TensorFlow, as text."""
    return os.environ.get("NPROC", "one for each core")


_THREADS = ("OMP_NUM_THREADS", "NPROC", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

# Variables that can change the bits of numerical libraries' results.
_SETTINGS = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_ENABLE_X64",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "PYTHONHASHSEED",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


def settings() -> dict[str, str]:
    """Return the variables of _SETTINGS that are set, with their values."""
    return {name: os.environ[name] for name in _SETTINGS if name in os.environ}


def processor() -> dict[str, str]:
    """Return the processor's architecture and model, and Python's version."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    kind = f"{platform.machine()} {found[1] if found else ''}".strip()
    return {"Python": platform.python_version(), "processor": kind}


def has_agent() -> bool:
    """Return True if an agent has started this process, for example in `ddl elastic run`."""
    return _AGENT in os.environ


def give_agent(descriptor: int, member: int, secret: str) -> None:
    """Set the environment variables that the worker's program uses to join the job; see
    `take_agent`."""
    global _taken
    _taken = mmap.mmap(-1, 1)
    os.environ[_AGENT] = f"{descriptor} {member}"
    os.environ["DDL_SECRET"] = secret


def give_variables(variables: Mapping[str, str]) -> None:
    """Set environment variables for programs that this process runs."""
    os.environ.update(variables)


def with_checkpoints(variables: Mapping[str, str], checkpoints: Path) -> dict[str, str]:
    """Add a variable that sets the default folder for checkpoints. The program's jobs use folders
    below it, unless they name others."""
    return {**variables, _CHECKPOINTS: str(checkpoints)}


def checkpoint_folder(number: int) -> str | None:
    """Return the default checkpoint folder for job number `number` of this process, or None. Raises
    ValueError if the folder's parent, which exists before any worker starts, is missing on this
    machine."""
    if _CHECKPOINTS not in os.environ:
        return None
    folder = Path(os.environ[_CHECKPOINTS])
    if not folder.parent.is_dir():
        raise ValueError(
            f"{socket.gethostname()} has no folder {folder.parent}, where this job's checkpoints"
            " belong: it must be on a file system that all machines share, or the job would begin"
            " at its first step when it continues elsewhere"
        )
    return str(folder / str(number))


def with_recording(text: str, hash_seed: int) -> dict[str, str]:
    """Return this environment with a hash seed and the description of a recording, which
    `recording` returns in the workers of the run."""
    return {**os.environ, _RECORDING: text, "PYTHONHASHSEED": str(hash_seed)}


def record(text: str) -> None:
    """Make the workers that this process starts record their results as `text` describes."""
    os.environ[_RECORDING] = text


def recording() -> str:
    """Return the description of the results that this worker must record, or ""."""
    return os.environ.get(_RECORDING, "")


def use_cores(count: int) -> None:
    """Restrict this process and its later children to the first `count` of its cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def with_audit(variables: Mapping[str, str], rate: float, action: str) -> dict[str, str]:
    """Add a variable that sets the default audit options for the program's jobs."""
    return {**variables, _AUDIT: f"{rate} {action}"}


def audit() -> tuple[float, str] | None:
    """Return the default fraction of shares to audit and the default action, or None. Raises
    ValueError."""
    if _AUDIT not in os.environ:
        return None
    rate, action = os.environ[_AUDIT].split()
    return float(rate), action


def refuse_wire() -> None:
    """Raise ValueError if DDL_WIRE would round sums."""
    wire = os.environ.get("DDL_WIRE", "")
    if wire not in ("", "f32"):
        raise ValueError(
            f"DDL_WIRE is {wire}, but an elastic job adds gradients without rounding them for the"
            " wire, so that its bits do not depend on the number of workers. Unset DDL_WIRE; on a"
            " slow network, use job.rounds, which adds only once in many steps and has a `wire` of"
            " its own"
        )


def is_agent_taken() -> bool:
    """Return True if the program, or a process that it forked, has joined the job."""
    return bool(_taken and _taken[0])


def take_agent() -> tuple[int, int] | None:
    """Return the descriptor of the channel to the job and this worker's number, or None if no agent
    started this process. Only the first call returns them: child processes are not workers."""
    text = os.environ.pop(_AGENT, "")
    if not text:
        return None
    if _taken:
        _taken[0] = 1
    descriptor, member = map(int, text.split())
    return descriptor, member


def collect_traces(folder: Path | None) -> None:
    """Make libddl write the operations of this process's failed comms to this folder."""
    if folder:
        os.environ[_TRACES] = str(folder)


def traces() -> Path | None:
    """Return the folder that `collect_traces` has set, or None."""
    return Path(os.environ[_TRACES]) if _TRACES in os.environ else None


def with_token(token: str) -> dict[str, str]:
    """Return this environment with the token, for agents that this process starts."""
    return {**os.environ, _TOKEN: token}


def take_token() -> str:
    """Return the token in the environment, or "". Remove it, so that workers do not get it."""
    return os.environ.pop(_TOKEN, "")


def remote_shell() -> str | None:
    """Return the command that replaces ssh to reach other hosts, or None."""
    return os.environ.get("DDL_RSH")


def scheduler() -> str | None:
    """Return the batch scheduler in whose allocation this process runs, or None."""
    return "slurm" if "SLURM_JOB_ID" in os.environ else None


def server() -> dict[str, str]:
    """Return the scheduler's "address", "token" and "ca" that the environment variables set."""
    names = {"address": "DDL_SERVER", "token": "DDL_TOKEN", "ca": "DDL_SERVER_CA"}
    return {each: os.environ[name] for each, name in names.items() if os.environ.get(name)}


def server_file() -> Path:
    """Return the path of the configuration file for settings that `server` does not return."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(os.environ.get("DDL_SERVER_FILE") or Path(base, "ddl", "server.toml"))
