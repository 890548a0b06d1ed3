"""What a job shows: one bar, and a line for each event."""

from __future__ import annotations

import math
import sys
from typing import Any


class Progress:
    """On stderr, with tqdm where that is installed. A context manager."""

    def __init__(self, steps: int, *, shown: bool = True) -> None:
        self._shown = shown
        self._bar: Any = None
        if shown:
            try:
                from tqdm import tqdm
            except ImportError:
                return

            class Bar(tqdm):  # type: ignore[misc]
                monitor_interval = 0  # no thread: the process may fork again

            self._bar = Bar(total=steps, unit="step", file=sys.stderr)

    def step(self, committed: int, loss: float) -> None:
        if self._bar is not None:
            if math.isfinite(loss):
                self._bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
            self._bar.update(committed - self._bar.n)

    def line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
