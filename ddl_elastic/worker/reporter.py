# SPDX-License-Identifier: Apache-2.0
"""The reports of a worker to its coordinator. Training steps do not wait for the coordinator."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ddl_core import Comm
from ddl_elastic.base import protocol, timeline
from ddl_elastic.frameworks.protocol import Digest
from ddl_elastic.step.step import Recovery

REPORT_EVERY = 0.1  # seconds
REPORTS = 1000  # maximum per second, of all members together
LINES = 1000  # maximum number of waiting lines; older ones are dropped

_log = logging.getLogger("ddl_elastic")


class Reporter:
    """The sender of a worker's reports. Without a channel it only logs. `traces` is the folder for
    the timeline's data."""

    def __init__(
        self, channel: protocol.JobChannel | None = None, traces: Path | None = None
    ) -> None:
        self._channel, self._traces = channel, traces
        self._jobs = 0  # number of finished jobs
        self._reported = 0.0  # time of the last progress report
        self._lines: deque[str] = deque()  # lines to be shown
        self._dropped = 0  # number of dropped lines before the first one
        self._shares, self._busy = 0, 0.0
        self._audited = 0  # shares computed for audits, not counted in `_shares`
        self.recomputed = 0  # shares of dead ranks, recomputed by all ranks together

    def begin(self, steps: int, batch: int, logical: int, watchdog: float) -> None:
        """Report that a job of this many steps begins."""
        if self._channel:
            self._channel.send(protocol.TrainingBegun(steps, batch, logical, watchdog))

    def computed(self, seconds: float) -> None:
        """Count a computed share and its duration."""
        self._shares += 1
        self._busy += seconds

    def audited(self) -> None:
        """Count a share that was computed for an audit."""
        self._audited += 1

    def found(self, finding: protocol.AuditFinding) -> None:
        """Send the finding of an audit. This waits for the coordinator."""
        if self._channel:
            with suppress(OSError):
                self._channel.send(finding)
        else:
            _log.error(finding.text)

    def stopped(self, step: int, first: int, text: str) -> None:
        """Report that the job stops after this step because results may be wrong."""
        self.found(protocol.AuditFinding(step, -1, [], "", first, True, text))

    def rolled_back(self, step: int, first: int, text: str) -> None:
        """Report that the job has gone back to this step because results may have been wrong from
        step `first` on."""
        if self._channel:
            with suppress(OSError):
                self._channel.send(protocol.RolledBack(step, first, text))

    def recovered(self, recovery: Recovery | None, step: int) -> None:
        """Report the cost of deaths, if there were any."""
        if not recovery:
            return
        self.recomputed += recovery.adopted
        if self._channel:
            self._channel.offer(protocol.RanksRecovered(**{**vars(recovery), "step": step}))

    def committed(self, step: int, loss: float, members: int = 1) -> None:
        """Report a committed step, at a limited rate, and only if the coordinator keeps up."""
        if not self._channel:
            return
        now = time.monotonic()
        if now - self._reported >= max(REPORT_EVERY, members / REPORTS):
            self._reported = now
            self._channel.offer(self._progress(step, loss))
            self._offer_lines()

    def admitted(self, bits: protocol.Fingerprint) -> None:
        """Report the reference fingerprint that joining workers must match. Every worker sends it,
        so that the coordinator knows it as long as one worker lives."""
        if self._channel:
            self._channel.send(protocol.ReferenceBits(bits))

    def switched(
        self, plan: int, step: int, seconds: float, members: Sequence[int], died: Sequence[int]
    ) -> None:
        """Report a change of the group before this step. `seconds` is the time that the ranks
        waited for it; `died` lists the members that died during it."""
        if self._channel:
            self._channel.send(protocol.GroupSwitched(plan, step, seconds, [*members], [*died]))

    def line(self, text: str) -> None:
        """Show a line of the program's output."""
        if not self._channel:
            _log.info(text)
            return
        self._lines.append(text)
        self._offer_lines()
        if len(self._lines) > LINES:
            self._lines.popleft()
            self._dropped += 1

    def flush(self) -> None:
        """Send all lines. This waits for the coordinator. Raises OSError if it has exited."""
        while self._channel and self._lines:
            self._channel.send(protocol.OutputLine(self._next_line()))
            self._lines.popleft()
            self._dropped = 0

    def _offer_lines(self) -> None:
        """Send unsent lines to the coordinator until this would block. A pager may block the
        coordinator."""
        while (
            self._channel
            and self._lines
            and self._channel.offer(protocol.OutputLine(self._next_line()))
        ):
            self._lines.popleft()
            self._dropped = 0

    def _next_line(self) -> str:
        lost = f"({self._dropped} lines before this one are lost) " if self._dropped else ""
        return lost + self._lines[0]

    def done(self, steps: int, loss: float, comm: Comm, digest: Callable[[], Digest]) -> None:
        """Report that all steps are done, with the final loss and digests."""
        if self._traces:
            timeline.save(self._traces, comm, self._jobs)
        self._jobs += 1
        if self._channel:
            found = digest()
            self.flush()
            self._channel.send(self._progress(steps - 1, loss))
            self._channel.send(protocol.TrainingDone(steps, loss, found.whole, found.parts))

    def _progress(self, step: int, loss: float) -> protocol.StepCommitted:
        return protocol.StepCommitted(step, loss, self._shares, self._busy, self._audited)
