# SPDX-License-Identifier: Apache-2.0
"""Laboratories: creates them, runs programs on their hosts, and removes them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ddl_launch.errors import CommandError

_ROOT = Path("/run/ddl-lab")
_HERE = Path(__file__).parent
_MOST_HOSTS, _MOST_NICS = 128, 8
_LIMIT = 60.0  # seconds to create or remove a laboratory


class LabError(CommandError):
    """A failed call to a laboratory."""


@dataclass(frozen=True)
class LabHost:
    """A host of a laboratory: its name, the address of each interface, and the id that its process
    1 has outside the laboratory."""

    name: str
    addresses: list[str]
    process: int


def missing() -> str:
    """Return the reason why this machine cannot have a laboratory, or ""."""
    if os.geteuid() != 0:
        return "a lab needs root, for namespaces"
    programs = {
        "ip": "iproute2",
        "tc": "iproute2",
        "unshare": "util-linux",
        "nsenter": "util-linux",
    }
    for program, package in programs.items():
        if not shutil.which(program):
            return f"a lab needs {program} (Debian: {package})"
    return ""


class Lab:
    """A laboratory: hosts h1, h2, ... on one machine, connected only by wires; a context manager.

    hosts   the number of hosts
    rate    the rate of each interface in each direction, in tc's notation ("1gbit"); None:
            unlimited
    nics    interfaces of each host, eth0, eth1, ..., each on its own network
    name    the name for `ddl lab --name` and `Lab.find`; None: a name of this process
    keep    the laboratory stays when this process ends, until `down`

    Raises LabError if there cannot be one (see `missing`) or the name exists already.
    """

    def __init__(
        self,
        hosts: int,
        *,
        rate: str | None = None,
        nics: int = 1,
        name: str | None = None,
        keep: bool = False,
    ) -> None:
        if reason := missing():
            raise LabError(reason)
        if not 1 <= hosts <= _MOST_HOSTS or not 1 <= nics <= _MOST_NICS:
            raise LabError(
                f"{hosts} hosts with {nics} interfaces each; must be 1 to {_MOST_HOSTS} hosts"
                f" with 1 to {_MOST_NICS} interfaces"
            )
        self._folder = _folder(name or f"p{os.getpid()}-{time.monotonic_ns() % 10**6}")
        with self._lock() as lock:
            shutil.rmtree(self._folder, ignore_errors=True)  # left by a daemon that was killed
            self._folder.mkdir()
            life = "free" if keep else "tied"
            self._start([str(self._folder), str(hosts), str(nics), rate or "", life], lock)

    def _lock(self) -> IO[bytes]:
        """Lock the name. The daemon inherits the lock, and holds it until all hosts are removed."""
        path = self._folder.with_suffix(".lock")
        _ROOT.mkdir(parents=True, exist_ok=True)
        while True:
            lock = open(path, "wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is(lock, path):
                    return lock
            except BlockingIOError:
                if self._folder.exists():
                    lock.close()
                    raise LabError(
                        f"the lab {self._folder.name!r} already exists: ddl lab down removes it"
                    ) from None
            lock.close()  # the holder is just starting or ending
            time.sleep(0.01)

    def _start(self, arguments: list[str], lock: IO[bytes]) -> None:
        keep = arguments[-1] == "free"
        self._daemon: subprocess.Popen[str] | None = subprocess.Popen(
            [sys.executable, "-m", "ddl_launch.lab.daemon", *arguments],
            cwd="/",
            stdin=subprocess.DEVNULL if keep else subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Otherwise the reader of stderr would wait for the daemon.
            stderr=subprocess.DEVNULL if keep else None,
            text=True,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )
        assert self._daemon.stdout
        with self._daemon.stdout as stdout:
            said = stdout.readline().strip()
        if said != "ready":
            if self._daemon.stdin:
                self._daemon.stdin.close()
            self._daemon.wait()
            path = self._folder.with_suffix(".lock")
            if _is(lock, path):  # otherwise the name may be another laboratory's
                shutil.rmtree(self._folder, ignore_errors=True)
                path.unlink()
            raise LabError(said or "the lab's daemon could not start")

    @classmethod
    def find(cls, name: str) -> Lab:
        """Return the laboratory of that name, created by another process. Raises LabError."""
        lab = cls.__new__(cls)
        lab._folder, lab._daemon = _folder(name), None
        if not _answers(lab._folder):
            raise LabError(
                f"the lab {name!r} does not exist: ddl lab up N creates one with N hosts"
            )
        return lab

    @property
    def hosts(self) -> list[LabHost]:
        """All hosts, in order."""
        return [LabHost(**host) for host in self._ask({"do": "show"})["hosts"]]

    def at(self, host: str, *command: str | Path) -> list[str]:
        """Return the command line that runs `command` on a host, in the caller's folder and
        environment. Its exit code is the command's. If its process is killed, the command is
        ended."""
        reach = [sys.executable, "-I", "-S", str(_HERE / "reach.py"), str(self._folder / "socket")]
        return [*reach, "exec", host, *map(str, command)]

    def run(
        self,
        host: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host and wait until it exits. Return its output as text. The command
        gets the environment of this process and the variables of `env`."""
        return subprocess.run(
            self.at(host, *command),
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def connect(self, host: str, on: bool, nic: int = 0) -> None:
        """Cut the link of a host's interface, or restore it."""
        self._ask({"do": "connect", "host": host, "nic": nic, "on": on})

    def sent(self, host: str, nic: int = 0) -> int:
        """Return the bytes that a host has sent on an interface so far, including headers."""
        path = f"/sys/class/net/eth{nic}/statistics/tx_bytes"
        done = self.run(host, ["cat", path], timeout=_LIMIT)
        if done.returncode:
            raise LabError(f"{host}: {done.stderr.strip()}")
        return int(done.stdout)

    def down(self) -> None:
        """End all processes on all hosts and remove the hosts. A second call does nothing."""
        with contextlib.suppress(LabError):
            self._ask({"do": "down"})
        if self._daemon is not None:
            if self._daemon.stdin:
                self._daemon.stdin.close()
            self._daemon.wait(_LIMIT)
            self._daemon = None
        deadline = time.monotonic() + _LIMIT
        while self._folder.exists():
            if time.monotonic() > deadline:
                raise LabError(f"the lab {self._folder.name!r} did not exit within {_LIMIT:.0f} s")
            time.sleep(0.01)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        self.down()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(request).encode()
        answer = b""
        with socket.socket(socket.AF_UNIX) as daemon:
            try:
                daemon.connect(str(self._folder / "socket"))
                daemon.sendall(struct.pack("!I", len(text)) + text)
                while piece := daemon.recv(65536):
                    answer += piece
            except OSError:
                answer = b""
        if not answer:
            raise LabError(f"the lab {self._folder.name!r} has exited")
        said: dict[str, Any] = json.loads(answer)
        if "error" in said:
            raise LabError(said["error"])
        return said


def _is(file: IO[bytes], path: Path) -> bool:
    """Return True if `path` still names this file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _folder(name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", name):
        raise LabError(
            f"{name!r} is not a valid name of a lab; use up to 32 letters, digits, - and _"
        )
    return _ROOT / name


def _answers(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as daemon:
        return daemon.connect_ex(str(folder / "socket")) == 0
