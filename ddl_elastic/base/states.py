# SPDX-License-Identifier: Apache-2.0
"""The states of workers, as enumerations with a text for messages and reports."""

from __future__ import annotations

from enum import Enum


class State(str, Enum):
    """A state that equals its text, and is sent and printed as this text."""

    def __str__(self) -> str:
        return str(self.value)


class WorkerState(State):
    """The state of a worker, as its coordinator and its agent know it.

    Initial workers are STARTING, READY, RUNNING and DONE. A worker that joins others is WARMING,
    WARMED and ADMITTED before it is RUNNING.
    """

    STARTING = "starting"
    READY = "ready"  # it has reported its address
    WARMING = "warming"  # it computes the reference share
    WARMED = "warmed"
    ADMITTED = "admitted"  # it may be in the next plan
    REFUSED = "refused"  # it computes other bits than the job's workers
    DISMISSED = "dismissed"  # it was stopped before it joined
    RUNNING = "running"
    DONE = "done"  # it has trained to the end
    LEFT = "left"  # a plan has removed it from the group
    RETURNING = "returning"  # its agent has reconnected, and has not sent its snapshot yet
    ENDED = "ended"  # its process has exited
