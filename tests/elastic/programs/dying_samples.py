# SPDX-License-Identifier: Apache-2.0
"""Samples that kill the process that reads them, in the middle of a job."""

import os
import signal
from collections.abc import Sequence
from typing import Any

LIMIT = 30  # samples that a process reads before


class DyingSamples:
    """`data`. If `dies`, it kills the process when it reads more than the limit."""

    def __init__(self, data: Sequence[Any], dies: bool) -> None:
        self.data, self.dies, self.read = data, dies, 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        if self.dies and self.read > LIMIT:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.data[index]
