# SPDX-License-Identifier: Apache-2.0
"""The program `python -m ddl_core`: prints the installed versions, or the options for building a C,
C++, Fortran, Rust or Go program. Imports no framework."""

from __future__ import annotations

import argparse
import sys
from importlib import metadata

from ddl_core import native
from ddl_core.base import paths

# The packages for each printed line. The first installed package counts.
_PARTS = {
    "PyTorch": ("torch",),
    "TensorFlow": ("tensorflow", "tensorflow-cpu"),
    "Keras": ("keras",),
    "JAX": ("jax",),
    "mpi4py": ("mpi4py",),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ddl_core",
        description="Print the installed versions of libddl and of packages that it works with, or "
        "the options that compile a program: "
        "cc program.c $(python -m ddl_core --cflags --libs) -o program",
    )
    for option, text in (
        ("--version", "print the version of libddl"),
        ("--cflags", "print the compiler's flags"),
        ("--libs", "print the linker's flags; the program finds this libddl when it runs"),
        ("--cmake-dir", "print the folder of the CMake package, for -Dddl_DIR="),
        ("--pkgconfig-dir", "print the folder of libddl.pc, for PKG_CONFIG_PATH"),
    ):
        parser.add_argument(option, action="store_true", help=text)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Print what the arguments request: compiler options and folders, or the installed versions.
    Return the exit code."""
    options = parser().parse_args(arguments)
    wanted = []
    if options.version:
        wanted.append(paths.header_version())
    if options.cmake_dir:
        wanted.append(str(paths.library_folder() / "cmake" / "ddl"))
    if options.pkgconfig_dir:
        wanted.append(str(paths.library_folder() / "pkgconfig"))
    flags = []
    if options.cflags:
        flags.append(f"-I{paths.get_include()}")
    if options.libs:
        folder = paths.library_folder()
        flags += [f"-L{folder}", "-lddl", f"-Wl,-rpath,{folder}"]
    if flags:
        wanted.append(" ".join(flags))
    if wanted:
        print(*wanted, sep="\n")
        return 0
    return _show()


def _show() -> int:
    import ddl_core

    print(f"libddl        {ddl_core.version()}  {ddl_core.library_path()}")
    print(f"header        {ddl_core.get_include()}")
    print(f"Python        {sys.version.split()[0]}  {sys.executable}")
    for name, packages in _PARTS.items():
        print(f"{name:13} {_version(packages)}")
    try:
        found = " ".join(native.compiler())
    except native.BuildError as error:
        found = str(error)
    print(f"compiler      {found}")
    try:
        print(f"cache         {native.cache_folder()}")
    except native.BuildError as error:
        print(f"cache         {error}")
    return 0


def _version(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


if __name__ == "__main__":
    sys.exit(main())
