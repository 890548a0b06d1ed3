# SPDX-License-Identifier: Apache-2.0
"""The terminal output of a job: a progress bar, a line for each event, and the workers' output."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from ddl_elastic.coordinator.coordinator import EventListener

_LAST_LINES = 50


class Progress(EventListener):
    """A listener that shows events and, if tqdm is installed, a bar on stderr. A context manager.

    steps    the number of steps of the job; 0 if only the workers know it
    shown    True to show the bar and the events
    on_step  called with the job's report after each step
    output   the stream for the workers' output; None means stderr if `shown`, and otherwise no
             output
    """

    def __init__(
        self,
        steps: int = 0,
        *,
        shown: bool = True,
        on_step: Callable[[dict[str, Any]], None] | None = None,
        output: TextIO | None = None,
    ) -> None:
        self._shown, self._on_step = shown, on_step
        self._output = output or (sys.stderr if shown else None)
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._bar: Any = None
        if shown:
            try:
                from tqdm import tqdm
            except ImportError:
                self.event("no progress bar: tqdm is missing; pip install 'libddl[elastic]'")
                return

            class Bar(tqdm):  # type: ignore[misc]
                monitor_interval = 0  # start no thread, because the process may fork again

            self._bar = Bar(total=steps or None, unit="step", file=sys.stderr)

    def step(self, report: dict[str, Any]) -> None:
        if self._bar is not None:
            workers = sum(w["state"] in ("running", "done") for w in report["workers"].values())
            told = {"workers": workers, "samples/s": f"{report['samples_per_second']:.0f}"}
            if math.isfinite(report["loss"]):
                told = {"loss": f"{report['loss']:.4f}", **told}
            self._bar.total = report["steps_total"]
            self._bar.set_postfix(told, refresh=False)
            self._bar.update(report["steps"] - self._bar.n)
        if self._on_step:
            self._on_step(report)

    def event(self, text: str) -> None:
        if self._shown:
            self._write(text, sys.stderr)

    @property
    def last_words(self) -> str:
        """The last lines of the workers' output."""
        return "\n".join(self._last)

    def output(self, text: str) -> None:
        self._last.append(text)
        if self._output:
            self._write(text, self._output)

    def _write(self, text: str, to: TextIO) -> None:
        if self._bar is not None:
            self._bar.write(text, file=to)
        else:
            print(text, file=to)
        to.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
