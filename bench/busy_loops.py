# SPDX-License-Identifier: Apache-2.0
"""Busy loops beside the ranks, as data loaders and other users of the machine are."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class BusyLoops:
    """`count` processes that compute until the end of the context. The system places them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "BusyLoops":
        for _ in range(self._count):
            self._processes.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        if self._count:
            time.sleep(0.5)  # until they compute
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def processor_seconds(self) -> float:
        """Return the processor time that the loops have used."""
        ticks = 0
        for process in self._processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")
