# SPDX-License-Identifier: Apache-2.0
"""Programs of another architecture, under qemu-user, with Debian's Python."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[1] / "build" / "wheels"
NATIVE = platform.machine()
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64el"}
ARCHITECTURES = list(DEBIAN)
PACKAGES = "python3,python3-numpy,python3-cffi"


class Foreign:
    """An architecture. Skips the test where it cannot be run."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.root = CACHE / f"root-{arch}"
        if os.geteuid():
            pytest.skip("debootstrap needs root")
        for tool in (f"qemu-{arch}", "debootstrap"):
            if not shutil.which(tool):
                pytest.skip(f"there is no {tool}")
        if not (self.root / "ready").exists():
            self._make_root()

    def _make_root(self) -> None:
        """Unpack Debian's packages, without running a program of theirs."""
        shutil.rmtree(self.root, ignore_errors=True)
        options = [f"--arch={DEBIAN[self.arch]}", "--variant=minbase", f"--include={PACKAGES}"]
        subprocess.run(["debootstrap", "--foreign", *options, "bookworm", self.root], check=True)
        for package in (self.root / "var" / "cache" / "apt" / "archives").glob("*.deb"):
            files = subprocess.run(
                ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE, check=True
            ).stdout
            unpack = ["tar", "-x", "--keep-directory-symlink", "-C", self.root]
            subprocess.run(unpack, input=files, check=True)
        self._make_links_relative()
        (self.root / "ready").touch()

    def _make_links_relative(self) -> None:
        """Otherwise they would point out of the root, which is not this process's own."""
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                link = Path(folder, name)
                if link.is_symlink() and (target := os.readlink(link))[0] == "/":
                    inside = self.root / target[1:]
                    if inside.exists():
                        link.unlink()
                        link.symlink_to(os.path.relpath(inside.resolve(), link.parent.resolve()))

    def run(self, program: Path) -> None:
        """Run a program of this architecture, which must succeed."""
        command = [f"qemu-{self.arch}", "-L", str(self.root), str(program)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    def unpack(self, wheel: Path, folder: Path) -> None:
        """Install a wheel by unpacking it, because pip is slow under emulation."""
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)

    def libraries(self) -> str:
        """Return the folders of NumPy's libraries, for which no script of Debian has created
        links."""
        folders = (self.root / "usr" / "lib").glob("*-linux-gnu/*/lib*.so.3")
        return ":".join(sorted({str(file.parent) for file in folders}))

    def python(self) -> list[str]:
        """Return the command of its Python."""
        (python,) = (self.root / "usr" / "bin").glob("python3.[0-9]*[0-9]")
        return [f"qemu-{self.arch}", "-L", str(self.root), str(python)]

    def ranks(
        self, program: Path, site: Path, kinds: list[str], native_site: Path | None = None
    ) -> list[str]:
        """Run a rank of each kind; return the line of each."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        started = []
        for rank, kind in enumerate(kinds):
            foreign = kind != NATIVE
            env = {
                "PATH": os.environ["PATH"],
                "LD_LIBRARY_PATH": self.libraries() if foreign else "",
                "PYTHONPATH": str(site if foreign else native_site),
                "DDL_RANK": str(rank),
                "DDL_SIZE": str(len(kinds)),
                "DDL_RENDEZVOUS": f"tcp://127.0.0.1:{port}",
                "DDL_DEAD_MS": "-1",  # emulated, a rank may be silent for long
                "DDL_SUSPECT_MS": "-1",
            }
            command = [*(self.python() if foreign else [sys.executable]), str(program)]
            started.append(
                subprocess.Popen(
                    command,
                    env=env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        out = [rank.communicate(timeout=300) for rank in started]
        assert not any(rank.returncode for rank in started), out
        return [said for said, _ in out]
