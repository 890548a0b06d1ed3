# SPDX-License-Identifier: Apache-2.0
"""Samples that take long until the working directory has the file `go`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def wait() -> None:
    if not Path("go").exists():
        time.sleep(0.05)


class PatientSamples:
    def __init__(self, data: Sequence[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        wait()
        return self.data[index]
