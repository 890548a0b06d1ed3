# SPDX-License-Identifier: Apache-2.0
"""Programs in C compile with the files of the installed package, in each documented way, and find
its library when they run."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ddl_core

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "libddl" / "examples"
RIGHT = "rank 0 of 1: every sum is 1, rank 0 says 42, right\n"


def ddl(*options: str) -> str:
    """Return the output of `python -m ddl_core`."""
    command = [sys.executable, "-m", "ddl_core", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


def run(command: list[str], **variables: str) -> str:
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"} | variables
    ended = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def test_by_flags(tmp_path: Path) -> None:
    program = str(tmp_path / "allreduce")
    flags = ddl("--cflags", "--libs").split()
    run(["cc", str(EXAMPLES / "c" / "allreduce.c"), *flags, "-o", program])
    assert run([program]) == RIGHT


def test_in_cpp_by_flags(tmp_path: Path) -> None:
    program = str(tmp_path / "allreduce")
    flags = ddl("--cflags", "--libs").split()
    run(["c++", "-std=c++11", str(EXAMPLES / "cpp" / "allreduce.cpp"), *flags, "-o", program])
    assert run([program]) == RIGHT


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="there is no pkg-config")
def test_by_pkg_config(tmp_path: Path) -> None:
    program = str(tmp_path / "allreduce")
    path = {"PKG_CONFIG_PATH": ddl("--pkgconfig-dir").strip()}
    flags = run(["pkg-config", "--cflags", "--libs", "libddl"], **path).split()
    run(["cc", str(EXAMPLES / "c" / "allreduce.c"), *flags, "-o", program])
    assert run([program]) == RIGHT
    version = run(["pkg-config", "--modversion", "libddl"], **path)
    assert version == ddl("--version") == f"{ddl_core.version()}\n"


def test_by_cmake(tmp_path: Path) -> None:
    folder = f"-Dddl_DIR={ddl('--cmake-dir').strip()}"
    quiet = "--log-level=WARNING"
    run(["cmake", "-S", str(EXAMPLES / "cmake"), "-B", str(tmp_path), folder, quiet])
    run(["cmake", "--build", str(tmp_path)])
    assert run([str(tmp_path / "allreduce")]) == RIGHT


def test_it_is_one_library(tmp_path: Path) -> None:
    """libddl.so stands for libddl.so.1: the program loads the same file as Python."""
    program = str(tmp_path / "allreduce")
    flags = ddl("--cflags", "--libs").split()
    run(["cc", str(EXAMPLES / "c" / "allreduce.c"), *flags, "-o", program])
    (line,) = [line for line in run(["ldd", program]).splitlines() if "libddl" in line]
    library = Path(ddl_core.library_path())
    assert library.samefile(line.split()[2])
    linked = library.with_name("libddl.so").read_bytes()
    assert linked.startswith(b"\x7fELF") and b"$ORIGIN/libddl.so.1" in linked  # a filter of it


def test_moved(tmp_path: Path) -> None:
    """The files of pkg-config and CMake contain no folder of the machine that built them."""
    moved = tmp_path / "elsewhere"
    lib = Path(ddl_core.library_path()).parent
    shutil.copytree(lib, moved / "lib")
    shutil.copytree(ddl_core.get_include(), moved / "include")
    for file in (*moved.rglob("*.pc"), *moved.rglob("*.cmake")):
        assert str(lib) not in file.read_text(), file


def test_no_c_compiler_names_the_package(tmp_path: Path) -> None:
    """Configure with a PATH that has CMake but no compiler."""
    for tool in ("cmake", "make"):
        path = shutil.which(tool)
        assert path, tool
        (tmp_path / tool).symlink_to(os.path.realpath(path))
    for source in ("libddl", "ddl_core"):
        ended = subprocess.run(
            ["cmake", "-S", str(ROOT / source), "-B", str(tmp_path / source)],
            capture_output=True,
            text=True,
            timeout=120,
            env={"PATH": str(tmp_path), "CMAKE_C_COMPILER_LAUNCHER": ""},
        )
        assert ended.returncode != 0
        assert "apt install gcc libc6-dev" in " ".join(ended.stderr.split()), ended.stderr


def test_static_library_is_refused(tmp_path: Path) -> None:
    command = ["cmake", "-S", ROOT / "libddl", "-B", tmp_path, "-DBUILD_SHARED_LIBS=OFF"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0
    assert "libddl is a shared library only" in " ".join(ended.stderr.split())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="prebuilt parts are for x86-64")
def test_prebuilt_torch_part_needs_no_newer_glibc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A source of ddl_torch that does not include PyTorch needs symbols of old systems only."""
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    parts = importlib.import_module("torch_parts")
    monkeypatch.setattr(parts, "WORK", tmp_path)
    source, compiled, linked = (tmp_path / f"part.{suffix}" for suffix in ("cpp", "o", "so"))
    names = (ROOT / "packaging" / "portable.hpp", parts.ADAPTER / "csrc" / "executor.cpp")
    source.write_text("".join(f'#include "{name}"\n' for name in names))
    flags = ["-c", "-std=c++17", *parts.RECIPE["COMPILE_FLAGS"]]
    run(["g++", *flags, str(source), "-o", str(compiled)])
    parts.link_part(compiled, linked, parts.stubs())
    parts.check_symbols(linked)


def test_folder_alone(tmp_path: Path) -> None:
    """libddl/ needs no other folder of the repository."""
    shutil.copytree(ROOT / "libddl", tmp_path / "libddl")
    run(["cmake", "-S", str(tmp_path / "libddl"), "-B", str(tmp_path / "build")])
