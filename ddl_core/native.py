"""Compiles an adapter's native module once per user, also if many processes ask at the same
time."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ddl_core

_LIMIT = 900  # seconds that a compiler may take
_SHOWN = 40  # lines of a compiler's output in an error


class BuildError(RuntimeError):
    """There is no usable compiler, or it failed. The message says what to install."""


class NoCompiler(BuildError):
    """There is no compiler."""


def cache_folder() -> Path:
    """Where built modules are kept: $DDL_CACHE, else libddl in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get("DDL_CACHE") or f"{base}/libddl")
    try:
        return folder.expanduser()
    except RuntimeError as error:  # there is no home folder
        raise BuildError(f"{folder}: {error}; set DDL_CACHE to a folder") from error


def compiler() -> list[str]:
    """The C++ compiler to run: $CXX, else c++, g++ or clang++. Raises NoCompiler if there is
    none."""
    own = os.environ.get("CXX", "").split()
    for command in [own] if own else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    tried = f"CXX is {' '.join(own)!r}, which is not there" if own else "tried c++, g++, clang++"
    raise NoCompiler(f"there is no C++ compiler ({tried}); install one (Debian: apt install g++)")


def run(command: list[str]) -> None:
    """Run a compiler. If it fails, raises BuildError with the command and the end of its output."""
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
        raise BuildError(f"the compiler took more than {_LIMIT} s: {' '.join(command)}") from None
    except OSError as error:
        raise BuildError(f"the compiler {command[0]} does not run: {error.strerror}") from None
    if done.returncode != 0:
        lines = done.stdout.rstrip().splitlines()
        if len(lines) > _SHOWN:
            lines = [f"... {len(lines) - _SHOWN} lines more", *lines[-_SHOWN:]]
        output = "\n  ".join(lines) or "it printed nothing"
        raise BuildError(
            f"the compiler ended with exit code {done.returncode}:\n  {output}\n"
            f"  the command was: {' '.join(command)}"
        )


def answer(
    command: str, adapter: str, framework: str, parts: Iterable[tuple[Path, Callable[[], Path]]]
) -> int:
    """`build` or `info` of an adapter's command line; the exit code.

    framework is its name and version; parts are the native modules' files, and what builds each.
    """
    if command == "build":
        try:
            for _file, build in parts:
                print(build())
        except BuildError as error:
            print(f"{adapter}: {error}", file=sys.stderr)
            return 1
        return 0
    try:
        found = " ".join(compiler())
    except BuildError as error:
        found = str(error)
    name, version = framework.split(" ", 1)
    print(f"{name:13} {version}")
    print(f"libddl        {ddl_core.version()}  {ddl_core.library_path()}")
    print(f"compiler      {found}")
    print(f"cache         {cache_folder()}")
    for file, _build in parts:
        print(f"native part   {file}  {'built' if file.exists() else 'not built yet'}")
    return 0


def once(target: Path, what: str, build: Callable[[Path], None]) -> None:
    """Make the file `target` by `build(path)` unless it exists. One process builds, the others wait
    for it. Progress goes to stderr, with `what`.

    Raises BuildError if building fails, also in the processes that waited.
    """
    if target.exists():
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock"), what) as waited:
            _build(target, what, build, waited)
    except OSError as error:
        raise BuildError(
            f"cannot write {error.filename or target.parent}: {error.strerror};"
            " set DDL_CACHE to a folder that can be written"
        ) from error


def _build(target: Path, what: str, build: Callable[[Path], None], waited: bool) -> None:
    """`once`, with the lock held."""
    if target.exists():
        return
    failure = target.with_suffix(".failed")
    if waited and failure.exists():  # another process has just failed; trying again gives the same
        raise BuildError(failure.read_text())
    failure.unlink(missing_ok=True)
    start = time.monotonic()
    _say(f"building {what} (about 30 s), into {target.parent}")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        result = Path(scratch, target.name)
        try:
            build(result)
        except BuildError as error:
            failure.write_text(str(error))
            raise
        result.replace(target)
    _say(f"built {what} in {time.monotonic() - start:.1f} s")


@contextmanager
def _locked(path: Path, what: str) -> Iterator[bool]:
    """Hold the file's lock. Yields whether another process had it before."""
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
