# SPDX-License-Identifier: Apache-2.0
"""All that this package reads from its environment, and sets in it."""

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
_RECORDING = "DDL_ELASTIC_RECORDING"  # of workers of `ddl elastic verify`
_AUDIT = "DDL_ELASTIC_AUDIT"  # the fraction of shares, and what follows from a finding
_AGENT = "DDL_ELASTIC_AGENT"  # of a worker: the channel's descriptor, and its number in the job

_taken: mmap.mmap | None = None  # of a worker: a flag in memory that forked children share


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def dead() -> float:
    """Seconds without a sign of life after which libddl counts a rank as dead."""
    found = os.environ.get("DDL_DEAD_MS", "")
    return int(found) / 1000 if found.isdecimal() and int(found) else 3.0


def allow_connections() -> None:
    """Let this process have as many files open as the system lets it have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def runtime_folder() -> Path:
    """Which only this user can enter, and which may be gone when the user logs out. Raises
    OSError."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    name = "ddl-elastic" if base else f"ddl-elastic-{os.getuid()}"
    return _private(Path(base or tempfile.gettempdir(), name))


def state_folder() -> Path:
    """Of this machine, which only this user can enter, and which stays. Raises OSError."""
    base = os.environ.get("XDG_STATE_HOME", "")
    shared = Path(base) if base else Path.home() / ".local" / "state"
    shared.mkdir(parents=True, exist_ok=True)
    return _private(_private(shared / "ddl-elastic") / socket.gethostname())


def _private(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is not this user's alone; remove it")
    return folder


def prepare_worker(threads: int, witness: str) -> None:
    """For libraries that read their settings later. The job itself tells of its failures, so the
    messages of libddl are off unless DDL_LOG is set."""
    limit_threads(threads)
    os.environ["DDL_WITNESS"] = witness
    os.environ.setdefault("DDL_LOG", "off")


def fix_hashes() -> None:
    """Replace this process by one in which sets of strings have the order that they have in each
    run and on each host, unless PYTHONHASHSEED is set. Call it first: nothing stays but the
    command line, the environment and the files of the shell."""
    if "PYTHONHASHSEED" not in os.environ and not sys.flags.ignore_environment:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def limit_threads(threads: int) -> None:
    """For libraries that start later: those with OpenMP, XLA and TensorFlow."""
    for name in _THREADS:
        os.environ[name] = str(threads)


def fix_cublas() -> None:
    """Give cuBLAS a workspace of a fixed size, with which its results have equal bits in each run.
    It reads the setting when it is first used."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def has_threads(threads: int) -> bool:
    """Whether such libraries were to start with so many threads, if they have started already."""
    return all(os.environ.get(name) == str(threads) for name in _THREADS)


def threads() -> str:
    """Of XLA and TensorFlow."""
    return os.environ.get("NPROC", "one for each core")


_THREADS = ("OMP_NUM_THREADS", "NPROC", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

# Settings on which the bits of numerical libraries depend.
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
    """Those that are set."""
    return {name: os.environ[name] for name in _SETTINGS if name in os.environ}


def processor() -> dict[str, str]:
    """Its kind, and the Python that runs on it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    kind = f"{platform.machine()} {found[1] if found else ''}".strip()
    return {"Python": platform.python_version(), "processor": kind}


def has_agent() -> bool:
    """Whether an agent has started this process, as `ddl elastic run` does."""
    return _AGENT in os.environ


def give_agent(descriptor: int, member: int, secret: str) -> None:
    """To the program that this worker runs, which joins its job by `take_agent`."""
    global _taken
    _taken = mmap.mmap(-1, 1)
    os.environ[_AGENT] = f"{descriptor} {member}"
    os.environ["DDL_SECRET"] = secret


def give_variables(variables: Mapping[str, str]) -> None:
    """To programs that this process runs."""
    os.environ.update(variables)


def with_checkpoints(variables: Mapping[str, str], checkpoints: Path) -> dict[str, str]:
    """The variables of a program that is run for somebody else; a job that names no folder for its
    checkpoints has them below this one."""
    return {**variables, _CHECKPOINTS: str(checkpoints)}


def checkpoint_folder(number: int) -> str | None:
    """For this process's job of this number, if it names none itself."""
    return str(Path(os.environ[_CHECKPOINTS], str(number))) if _CHECKPOINTS in os.environ else None


def with_recording(text: str, hash_seed: int) -> dict[str, str]:
    """The environment of a run whose workers record what they compute, as `recording` returns it.
    libddl's own settings stay."""
    return {**os.environ, _RECORDING: text, "PYTHONHASHSEED": str(hash_seed)}


def record(text: str) -> None:
    """Have the workers that this process starts record what they compute."""
    os.environ[_RECORDING] = text


def recording() -> str:
    """Return how this worker is to record what it computes; "" if it is not."""
    return os.environ.get(_RECORDING, "")


def use_cores(count: int) -> None:
    """Let this process, and those that it starts, run on this many of its cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def with_audit(variables: Mapping[str, str], rate: float, action: str) -> dict[str, str]:
    """Return the variables of a program whose job has these audits unless it names others."""
    return {**variables, _AUDIT: f"{rate} {action}"}


def audit() -> tuple[float, str] | None:
    """Return the fraction of shares to audit and what follows from a finding, if both are set.
    Raises ValueError."""
    if _AUDIT not in os.environ:
        return None
    rate, action = os.environ[_AUDIT].split()
    return float(rate), action


def is_agent_taken() -> bool:
    """Return True if the program, or a process that it has forked, has joined the job."""
    return bool(_taken and _taken[0])


def take_agent() -> tuple[int, int] | None:
    """The descriptor of the channel to the job, and the number of this worker; None if no agent has
    started this process. Its children are no workers, so it is there once."""
    text = os.environ.pop(_AGENT, "")
    if not text:
        return None
    if _taken:
        _taken[0] = 1
    descriptor, member = map(int, text.split())
    return descriptor, member


def collect_traces(folder: Path | None) -> None:
    """Comms of this process that fail leave their operations there."""
    if folder:
        os.environ[_TRACES] = str(folder)


def traces() -> Path | None:
    """Where they are collected, if they are."""
    return Path(os.environ[_TRACES]) if _TRACES in os.environ else None


def with_token(token: str) -> dict[str, str]:
    """The environment of agents that are started here, with what proves that they may join."""
    return {**os.environ, _TOKEN: token}


def take_token() -> str:
    """What `with_token` has given; "" if nothing. Workers do not get it."""
    return os.environ.pop(_TOKEN, "")


def remote_shell() -> str | None:
    """What reaches other hosts instead of ssh."""
    return os.environ.get("DDL_RSH")


def scheduler() -> str | None:
    """Whose allocation this process runs in."""
    return "slurm" if "SLURM_JOB_ID" in os.environ else None


def server() -> dict[str, str]:
    """What is set of the scheduler's address, token and certificate authority."""
    names = {"address": "DDL_SERVER", "token": "DDL_TOKEN", "ca": "DDL_SERVER_CA"}
    return {each: os.environ[name] for each, name in names.items() if os.environ.get(name)}


def server_file() -> Path:
    """Which has what is not set."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(os.environ.get("DDL_SERVER_FILE") or Path(base, "ddl", "server.toml"))
