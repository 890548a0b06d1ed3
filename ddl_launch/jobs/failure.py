# SPDX-License-Identifier: Apache-2.0
"""The end of a rank."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """The end of a rank: an exit code, the number of a signal, or a description in `lost`.

    said   the last line of the exception that ended it, if known
    name   the name of the rank in messages; "" means its number, host and process
    """

    rank: int
    pid: int
    code: int
    by_signal: bool
    host: str = ""
    lost: str = ""
    said: str = ""
    name: str = ""

    def __str__(self) -> str:
        if self.lost:
            return f"{self.who} {self.lost}"
        how = f"ended with exit code {self.code}"
        if self.by_signal:
            names = {number.value: number.name for number in signal.Signals}
            how = f"was killed by {names.get(self.code, f'signal {self.code}')}"
        return f"{self.who} {how}" + (f": {self.said}" if self.said else "")

    @property
    def who(self) -> str:
        """The rank's name in messages: "rank 1 on a (pid 812)"."""
        where = f" on {self.host}" if self.host else ""
        return self.name or f"rank {self.rank}{where}" + (f" (pid {self.pid})" if self.pid else "")

    @property
    def failed(self) -> bool:
        return bool(self.code or self.lost)

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 + N after signal N."""
        return 128 + self.code if self.by_signal else self.code
