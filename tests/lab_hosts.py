# SPDX-License-Identifier: Apache-2.0
"""ddlrun on the hosts of a laboratory, for tests."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from conftest import clean_environment

from ddl_launch.lab import Lab

LAUNCH = [sys.executable, "-m", "ddl_launch"]


class Hosts:
    """ddlrun on host h1, in a folder of the test."""

    def __init__(self, lab: Lab, launcher: Path, folder: Path) -> None:
        self.lab, self.launcher, self.folder = lab, launcher, folder

    def command(self, *arguments: object) -> list[str]:
        own = ["--launcher", str(self.launcher)]
        return self.lab.at("h1", *LAUNCH, *own, *map(str, arguments))

    def program(self, text: str) -> Path:
        path = self.folder / "program.py"
        path.write_text(text)
        return path

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            **{
                "env": clean_environment(),
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                **options,
            },
        )

    def run(self, *arguments: object, limit: float = 60, **options: Any) -> tuple[int, str, str]:
        process = self.start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(process.communicate()) from None
        return process.returncode, out, err

    def left(self) -> str:
        """Return the processes of this test that still run on any host after some time."""
        deadline = time.monotonic() + 30
        while True:
            found = subprocess.run(
                ["ps", "-ewwo", "pid,args"], capture_output=True, text=True
            ).stdout
            mine = [line for line in found.splitlines() if str(self.folder) in line]
            if not mine or time.monotonic() > deadline:
                return "\n".join(mine)
            time.sleep(0.05)
