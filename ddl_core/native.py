# SPDX-License-Identifier: Apache-2.0
"""The native parts of adapters, which are compiled once per user, even if many processes start at
once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ddl_core
from ddl_core.base import paths
from ddl_core.frameworks.native_recipe import COMPILE_FLAGS, PREBUILT, one_unit, source_digest

__all__ = [
    "COMPILE_FLAGS",
    "PREBUILT",
    "BuildError",
    "NoCompiler",
    "Part",
    "answer",
    "cache_folder",
    "compiler",
    "link_flags",
    "one_unit",
    "parser",
    "run",
]

if TYPE_CHECKING:
    from argparse import ArgumentParser

Loaded = TypeVar("Loaded")

_LIMIT = 900  # time limit for a compiler in seconds
_SHOWN = 40  # lines of a compiler's output in an error


class BuildError(RuntimeError):
    """An error: no compiler is usable, or the compiler failed. The message names the packages to
    install."""


class NoCompiler(BuildError):
    """An error: there is no compiler."""


def cache_folder() -> Path:
    """Return the folder of built modules: $DDL_CACHE, else libddl in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get("DDL_CACHE") or f"{base}/libddl")
    try:
        return folder.expanduser()
    except RuntimeError as error:  # the user has no home folder
        raise BuildError(f"{folder}: {error}; set DDL_CACHE to a folder") from error


def compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX, else c++, g++ or clang++. Raises NoCompiler if
    there is none."""
    own = os.environ.get("CXX", "").split()
    for command in [own] if own else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    tried = f"CXX is {' '.join(own)!r}, not found" if own else "tried c++, g++, clang++"
    raise NoCompiler(f"no C++ compiler was found ({tried}); install one (Debian: apt install g++)")


def link_flags() -> list[str]:
    """Return the linker's flags for the library that ddl_core has loaded."""
    library = ddl_core.library_path()
    return [library, f"-Wl,-rpath,{Path(library).parent}"]


def run(command: list[str]) -> None:
    """Run a compiler. Raises BuildError with the command and the end of its output if it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(
            f"the compiler did not exit within {_LIMIT} s: {' '.join(command)}"
        ) from None
    except OSError as error:
        raise BuildError(f"cannot run the compiler {command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        lines = done.stdout.rstrip().splitlines()
        if len(lines) > _SHOWN:
            lines = [f"... {len(lines) - _SHOWN} lines more", *lines[-_SHOWN:]]
        output = "\n  ".join(lines) or "it printed nothing"
        raise BuildError(
            f"the compiler failed with exit code {done.returncode}:\n  {output}\n"
            f"  the command was: {' '.join(command)}"
        )


class Part:
    """A native part of an adapter.

    A framework's C++ interface changes with every version. A wheel of libddl has prebuilt parts for
    some of them. For others, the part is compiled at first use: once for each version of the
    framework and of libddl, and for each change of a source.

    adapter    the name of the adapter's package
    framework  the framework and its version, for messages
    key        the framework and its version, as the beginning of the folder's name
    sources    the folder of the sources; every file in it counts
    file       the name of the compiled file
    flags      all flags of the compiler and linker
    compile    compiles the file at the given path
    prebuilt   the beginning of the name of the prebuilt part's folder; None if there is none
    """

    def __init__(
        self,
        adapter: str,
        framework: str,
        key: str,
        sources: Path,
        file: str,
        flags: list[str],
        compile: Callable[[Path], None],
        prebuilt: str | None = None,
    ) -> None:
        self.adapter = adapter
        self.framework = framework
        # Every process computes this while it joins, so it does not load the library.
        content = source_digest(sources, Path(paths.get_include(), "ddl", "ddl.h"))
        recipe = hashlib.sha256(repr(flags).encode() + content.encode()).hexdigest()
        versions = f"{key}-libddl-{paths.header_version()}-{recipe[:12]}"
        self.path = cache_folder() / adapter / versions / file
        self.prebuilt: Path | None = None
        if prebuilt is not None:
            ready = sources.parent / PREBUILT / f"{prebuilt}-{content[:12]}" / file
            self.prebuilt = ready if ready.exists() else None
        self._compile = compile

    def build(self) -> Path:
        """Return the file of the part. Compile it unless it is prebuilt or was compiled before.

        One process builds, and other processes wait for it. Progress and duration are printed to
        stderr. Raises BuildError if building fails, even in the processes that waited.
        """
        if self.prebuilt is not None:
            return self.prebuilt
        if self.path.exists():
            return self.path
        what = f"{self.adapter} for {self.framework} ({self.path.name})"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.with_suffix(".lock"), what) as waited:
                self._build(what, waited)
        except OSError as error:
            raise BuildError(
                f"cannot write {error.filename or self.path.parent}: {error.strerror};"
                " set DDL_CACHE to a writable folder"
            ) from error
        return self.path

    def _build(self, what: str, waited: bool) -> None:
        if self.path.exists():
            return
        failure = self.path.with_suffix(".failed")
        # Written by the process that built; another attempt would fail as well.
        if waited and failure.exists():
            raise BuildError(failure.read_text())
        failure.unlink(missing_ok=True)
        start = time.monotonic()
        _say(
            f"building {what} (up to half a minute), because this installation has no prebuilt"
            f" part, into {self.path.parent}"
        )
        prefix = f"{self.path.name}.tmp"
        for left in self.path.parent.glob(f"{prefix}*"):  # left by a killed build
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=self.path.parent) as scratch:
            result = Path(scratch, self.path.name)
            try:
                self._compile(result)
            except BuildError as error:
                failure.write_text(str(error))
                raise
            result.replace(self.path)
        _say(f"built {what} in {time.monotonic() - start:.1f} s")

    def load(
        self,
        load: Callable[[Path], Loaded],
        errors: tuple[type[Exception], ...] = (OSError, ImportError),
    ) -> Loaded:
        """Compile the file if necessary, and return `load(file)`. Raises BuildError if compiling
        fails, or if `load` raises one of `errors` for a compiled part."""
        file = self.build()
        try:
            return load(file)
        except errors as error:
            if file == self.prebuilt:
                _say(f"cannot load the prebuilt {file}, so it is built: {error}")
                self.prebuilt = None
                return self.load(load, errors)
            raise BuildError(
                f"cannot load {file}: {error}; delete the file to rebuild it"
            ) from error


def parser(adapter: str, framework: str) -> tuple[ArgumentParser, Any]:
    """Return the parser of `python -m ADAPTER build | info`, and its commands."""
    import argparse

    parser = argparse.ArgumentParser(
        prog=f"python -m {adapter}", description=f"The {framework} adapter of libddl."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="compile the native part now, and print its file")
    commands.add_parser("info", help="print versions and the path of the native part")
    return parser, commands


def answer(command: str, parts: list[Part]) -> int:
    """Run `build` or `info` for an adapter's native parts. Return the exit code."""
    if command == "build":
        try:
            for part in parts:
                print(part.build())
        except BuildError as error:
            print(f"{parts[0].adapter}: {error}", file=sys.stderr)
            return 1
        return 0
    try:
        found = " ".join(compiler())
    except BuildError as error:
        found = str(error)
    name, version = parts[0].framework.split(" ", 1)
    print(f"{name:13} {version}")
    print(f"libddl        {ddl_core.version()}  {ddl_core.library_path()}")
    print(f"compiler      {found}")
    print(f"cache         {cache_folder()}")
    for part in parts:
        if part.prebuilt is not None:
            print(f"native part   {part.prebuilt}  prebuilt")
            continue
        state = "built" if part.path.exists() else "not built yet"
        print(f"native part   {part.path}  {state}")
    return 0


@contextmanager
def _locked(path: Path, what: str) -> Iterator[bool]:
    """Hold the file's lock in this context. Yield True if another process held it before."""
    with path.open("a") as file:
        waited = False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            _say(f"waiting for another process to build {what}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield waited


def _say(text: str) -> None:
    print(f"libddl: {text}", file=sys.stderr, flush=True)
