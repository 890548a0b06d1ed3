# SPDX-License-Identifier: Apache-2.0
"""Build the native parts of ddl_torch that the x86-64 wheel carries, into build/torch-parts.

    python packaging/torch_parts.py [--torch 2.13.0 ...] [--python python3.11 ...] [--jobs N]

There is one part for each release of PyTorch and each Python. A part needs PyTorch's headers, which
are the same for all Pythons and for CPU and GPU builds, and Python's headers. `--torch` takes a
release, whose wheel pip downloads (up to 1 GB), or the folder of an installed PyTorch.
`python packaging/wheels.py` adds all parts that fit the present sources to the wheel.

g++ compiles a part for older systems than its own (portable.hpp). It links stubs in place of
PyTorch's libraries and libddl, whose symbols the loader finds when the part is loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "torch-parts"
ADAPTER = ROOT / "adapters" / "ddl_torch"
HEADER = ROOT / "libddl" / "include" / "ddl" / "ddl.h"
RECIPE = runpy.run_path(str(ROOT / "ddl_core" / "frameworks" / "native_recipe.py"))
RELEASES = ["2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1"]
PYTHONS = ["python3.10", "python3.11", "python3.12", "python3.13"]
LIBRARIES = ["libtorch_python.so", "libtorch_cpu.so", "libc10.so", "libddl.so.1"]
# Functions of newer libstdc++ that PyTorch's own wheels carry for older systems, by library.
STRING = "7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv"
EXPORTED = {
    "libc10.so": [
        f"_ZNKRSt{STRING}",
        f"_ZNOSt{STRING}",
        "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev",
        "_ZSt28__throw_bad_array_new_lengthv",
    ],
    "libtorch_cpu.so": [
        "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv",
        "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv",
    ],
}
RPATH = "$ORIGIN/../../../ddl_core/lib"
# PyTorch's own wheels need no newer ones.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}
PYTHON_FACTS = """
import json, sys, sysconfig
suffix = sysconfig.get_config_var("EXT_SUFFIX")
print(json.dumps([sysconfig.get_path("include"), suffix.split(".")[1]]))
"""


class Torch(NamedTuple):
    """A release of PyTorch: its version, the commit it was made from, and the folder torch."""

    version: str
    commit: str
    folder: Path


class Python(NamedTuple):
    """A Python: the folder of its headers, and the name of its ABI."""

    include: Path
    abi: str


def run(*command: str | Path) -> str:
    """Run a command and return its output. If it fails, exit with the output."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        words = " ".join(str(word) for word in command)
        sys.exit(f"{done.stdout}\ntorch_parts.py: exit code {done.returncode} of: {words}")
    return done.stdout


def find_torch(what: str) -> Torch:
    """Return the release, downloaded if `what` is not a folder."""
    folder = Path(what)
    if not (folder / "version.py").exists():
        folder = download("torch", what, WORK / "headers" / what)
    text = (folder / "version.py").read_text()
    fields = {}
    for name in ("__version__", "git_version"):
        found = re.search(rf"^{name} = '([^']+)'", text, re.M)
        assert found, f"{folder}/version.py has no {name}"
        fields[name] = found[1]
    return Torch(fields["__version__"].partition("+")[0], fields["git_version"], folder)


def download(package: str, version: str, into: Path) -> Path:
    """Download a wheel of PyTorch or jaxlib and keep its headers. The wheel of any Python has them.
    Return the package's folder."""
    folder = into / package
    if (folder / "version.py").exists():
        return folder
    temporary = WORK / f"download-{package}-{version}"
    run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
        "--python-version=3.11", f"--dest={temporary}", f"{package}=={version}")  # fmt: skip
    (wheel,) = temporary.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(f"{package}/include/"):
                archive.extract(name, into)
        archive.extract(f"{package}/version.py", into)  # last: the folder is complete
    shutil.rmtree(temporary)
    return folder


def find_python(command: str) -> Python | None:
    """Return the Python, or None if it is not installed or has no headers."""
    if not shutil.which(command):
        return None
    try:
        done = subprocess.run([command, "-c", PYTHON_FACTS], capture_output=True, text=True)
        include, abi = json.loads(done.stdout)
    except ValueError:
        return None
    return Python(Path(include), abi) if Path(include, "Python.h").exists() else None


def stubs() -> Path:
    """Return a folder of libraries with the names of those that a part needs. They are empty but
    for EXPORTED."""
    folder = WORK / "stubs"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "stub.c"
    for name in LIBRARIES:
        symbols = EXPORTED.get(name, [])
        source.write_text("".join(f"void {symbol}(void) {{}}\n" for symbol in symbols))
        run("g++", "-shared", f"-Wl,-soname,{name}", "-o", folder / name, "-x", "c", source)
    return folder


def digest() -> str:
    """Return the digest of the present sources."""
    return str(RECIPE["source_digest"](ADAPTER / "csrc", HEADER))


def built() -> list[Path]:
    """Return the parts that fit the present sources."""
    return sorted((WORK / "parts").glob(f"torch-*-{digest()[:12]}/_ddl_torch.so"))


def compile_part(torch: Torch, python: Python, stub_folder: Path) -> Path:
    """Compile a part unless it exists, and return its file."""
    name = f"torch-{torch.version}-{torch.commit[:12]}-{python.abi}-{digest()[:12]}"
    result = WORK / "parts" / name / "_ddl_torch.so"
    if result.exists():
        return result
    result.parent.mkdir(parents=True, exist_ok=True)
    portable = Path(__file__).with_name("portable.hpp")
    sources = sorted((ADAPTER / "csrc").glob("*.cpp"))
    unit = RECIPE["one_unit"](result.with_suffix(".cpp"), [portable, *sources])
    compiled, linked = result.with_suffix(".o"), result.with_suffix(".tmp")
    include = torch.folder / "include"
    standard = 20 if tuple(int(each) for each in torch.version.split(".")[:2]) >= (2, 13) else 17
    run(
        *("g++", "-c", f"-std=c++{standard}", *RECIPE["COMPILE_FLAGS"], unit, "-o", compiled),
        *("-DUSE_DISTRIBUTED", "-D_GLIBCXX_USE_CXX11_ABI=1", f"-ffile-prefix-map={ROOT}=."),
        *(f"-I{folder}" for folder in (ADAPTER / "csrc", HEADER.parent.parent)),
        *(f"-isystem{include}", f"-isystem{include / 'torch/csrc/api/include'}"),
        f"-isystem{python.include}",
    )
    link_part(compiled, linked, stub_folder)
    check_symbols(linked)
    linked.rename(result)
    unit.unlink()
    compiled.unlink()
    return result


def link_part(compiled: Path, linked: Path, stub_folder: Path) -> None:
    """Link an object file."""
    run(
        *("g++", "-shared", "-s", "-pthread", compiled, "-o", linked, "-Wl,--no-as-needed"),
        *(stub_folder / library for library in LIBRARIES),
        *(f"-Wl,-rpath,{RPATH}", "-Wl,--build-id=none"),
    )


def check_symbols(file: Path) -> None:
    """Exit if the part needs a newer system than PyTorch's wheels do."""
    for line in run("objdump", "-T", file).splitlines():
        found = re.search(r"\*UND\*.*\((GLIBC|GLIBCXX|CXXABI)_([\d.]+)\)\s+(\S+)", line)
        if found:
            version = tuple(int(each) for each in found[2].split("."))
            if version > NEWEST[found[1]]:
                sys.exit(f"{file} needs {found[3]} of {found[1]}_{found[2]}: see portable.hpp")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the prebuilt parts of ddl_torch.")
    parser.add_argument("--torch", nargs="+", default=RELEASES, help="releases, or folders")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="commands")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at once")
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    pythons = []
    for command in arguments.python:
        found = find_python(command)
        if found is None:
            print(f"{command} is missing or has no headers: no parts for it", flush=True)
        else:
            pythons.append(found)
    releases = [find_torch(what) for what in arguments.torch]
    stub_folder = stubs()
    pairs = [(torch, python) for torch in releases for python in pythons]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for file in pool.map(lambda pair: compile_part(*pair, stub_folder), pairs):
            print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    main()
