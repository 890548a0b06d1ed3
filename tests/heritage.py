# SPDX-License-Identifier: Apache-2.0
"""Test the adapters of the frameworks that need environments of their own: `make test-heritage`.

    python tests/heritage.py                     all
    python tests/heritage.py chainer theano      only these

Each framework gets an environment in build/heritage, which is kept, with this tree's libddl. There
its contract suite and its own tests run, what docs/heritage.md shows of it, and its digits example:
alone, with ddlrun, with mpirun.
Caffe is compiled, from the source package that PyPI has, if Debian's packages for it are
installed; that takes ten minutes.

The exit code is 0 if all have passed, 1 if one has failed, and 77 if one was skipped, because a
program is missing, and none has failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from adapter_list import ADAPTER_OF, Framework

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "heritage"
TESTS = ROOT / "tests" / "adapters"
ALL = ("contract", "test_small_digits.py", "test_small_training.py", "test_small_snippets.py")
COMMON = ("pytest>=8", "scikit-learn", "cffi>=1.17", "ml_dtypes", "mpi4py>=4.1")
CAFFE_SOURCE = "brocolli-caffe==9.0.2"  # BVLC's sources with SSD's layers
ENVIRONMENTS = {name: adapter.frameworks[name] for name, adapter in ADAPTER_OF.items()}
LIMIT = 3600  # seconds for one command
SKIPPED = 77
# Theano looks for NumPy's BLAS in a place where newer versions do not write it down.
SETTINGS = {"THEANO_FLAGS": "blas__ldflags=", "DDL_TEST_CACHE": sys.prefix}


def run(*command: str | Path, cwd: Path = ROOT) -> bool:
    """Whether it ended without an error."""
    print("$", *command, flush=True)
    environment = {**os.environ, **SETTINGS}
    return subprocess.run(command, cwd=cwd, env=environment, timeout=LIMIT).returncode == 0


def prepare(name: str, environment: Framework, wheel: Path) -> bool:
    """Make the environment, or bring libddl in it up to date."""
    folder = FOLDER / name
    pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q")
    asked = repr((COMMON, environment.packages, environment.built))
    stamp = folder / "stamp"
    if not stamp.exists() or stamp.read_text() != asked:
        made = run(sys.executable, "-m", "venv", "--clear", folder)
        made = made and run(*pip, *COMMON, *environment.packages)
        for package in environment.built:
            made = made and run(*pip, "--no-build-isolation", package)
        if name == "caffe":
            made = made and build_caffe(folder)
        if not made:
            return False
        stamp.write_text(asked)
    return run(*pip, "--no-deps", "--force-reinstall", wheel)


def build_caffe(folder: Path) -> bool:
    """Compile Caffe for CPUs, with its Python interface, into the environment."""
    source, python = FOLDER / "caffe-source", folder / "bin" / "python"
    shutil.rmtree(source, ignore_errors=True)
    pip = (python, "-m", "pip", "download", "-q", "--no-deps")
    if not run(*pip, "--no-binary", ":all:", CAFFE_SOURCE, "-d", source):
        return False
    (archive,) = source.glob("*.tar.gz")
    if not run("tar", "-xf", archive, "-C", source):
        return False
    (tree,) = (path for path in source.iterdir() if path.is_dir())
    return compile_caffe(tree, folder)


def compile_caffe(tree: Path, folder: Path) -> bool:
    """In its own tree, which is made to fit Debian's names."""
    net = tree / "src" / "caffe" / "net.cpp"
    net.write_text(net.read_text().replace('#include "caffe/test/test_caffe_main.hpp"', ""))
    (tree / "src" / "caffe" / "proto" / "caffe.pb.cc").unlink()  # of another protoc
    python = folder / "bin" / "python"
    code = (
        "import numpy, sysconfig as s; print(numpy.get_include(), s.get_path('include'), "
        "'%d%d' % __import__('sys').version_info[:2], s.get_config_var('MULTIARCH'))"
    )
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    numpy, headers, version, machine = asked.stdout.split()
    libraries = Path("/usr/lib") / machine
    links = tree / "links"
    links.mkdir()
    (links / "libboost_python.so").symlink_to(libraries / f"libboost_python{version}.so")
    flags = f"-w -I{numpy} -I{headers} -I/usr/include/hdf5/serial"
    linked = f"-L{links} -L{libraries}/hdf5/serial"
    configure = ("cmake", "-S", tree, "-B", tree / "build", "-DCMAKE_BUILD_TYPE=Release")
    settings = ("-DANACONDA_HOME=/usr", f"-DCMAKE_CXX_FLAGS={flags}")
    last = (f"-DCMAKE_SHARED_LINKER_FLAGS={linked}", "--log-level=WARNING")
    build = ("cmake", "--build", tree / "build", "--target", "pycaffe", "--parallel", "2")
    if not (run(*configure, *settings, *last) and run(*build)):
        return False
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    (packages / "caffe").symlink_to(tree / "python" / "caffe")
    return True


def missing(name: str) -> str:
    """What keeps an environment from being made here."""
    needed = ENVIRONMENTS[name]
    if not needed.program or shutil.which(needed.program):
        return ""
    return f"there is no {needed.program} (Debian: {' '.join(needed.debian)})"


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(ENVIRONMENTS))
    if unknown:
        print(f"no such framework: {', '.join(unknown)}; there is: {', '.join(ENVIRONMENTS)}")
        return 2
    with tempfile.TemporaryDirectory() as wheels:
        return test(names or list(ENVIRONMENTS), Path(wheels))


def test(names: list[str], wheels: Path) -> int:
    """Of each framework, with a wheel that is built now."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps")
    if not run(*pip, ROOT, "-w", wheels):
        return 1
    (wheel,) = wheels.glob("*.whl")
    results, lines = {}, []
    for name in names:
        start, reason = time.monotonic(), missing(name)
        environment = ENVIRONMENTS[name]
        passed = False
        if not reason and prepare(name, environment, wheel):
            pytest = (FOLDER / name / "bin" / "pytest", "-q", "-rPs", "-c", ROOT / "pyproject.toml")
            own = TESTS / f"test_{ADAPTER_OF[name].name}.py"
            files = [*(TESTS / file for file in ALL), *([own] if own.exists() else [])]
            passed = run(*pytest, "-p", "no:cacheprovider", "-k", name, *files, cwd=FOLDER)
        outcome = f"skipped: {reason}" if reason else "passed" if passed else "failed"
        results[name] = outcome
        lines.append(f"{name:10} {outcome}  {time.monotonic() - start:.0f} s")
    print("\n".join(lines))
    if "failed" in results.values():
        return 1
    if skipped := [name for name, outcome in results.items() if outcome.startswith("skipped")]:
        print(f"{len(skipped)} of {len(names)} frameworks were not tested: {', '.join(skipped)}")
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
