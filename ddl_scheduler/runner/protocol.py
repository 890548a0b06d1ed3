# SPDX-License-Identifier: Apache-2.0
"""The protocol between `ddl serve` and the runs of jobs, from their start on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.msgpack import Decoder

from ddl_elastic.base.messages import Message
from ddl_scheduler.base.folder import JobFolder


class RunSpec(Message):
    """The description of a run, which the starter receives.

    store    the service's file
    spec     the specification, as the store has it
    slots    the names of all slots of this host, by the engine's ids; empty if agents have the
             slots
    granted  the slots with which the job begins
    run      the name of this run for agents; "" without agents
    token    the secret with which agents authenticate
    user     the user that runs the workers; "" means the service's user
    """

    store: str
    job: int
    spec: Mapping[str, Any]
    slots: Sequence[str]
    granted: Sequence[str]
    run: str = ""
    token: str = ""
    user: str = ""

    @property
    def job_folder(self) -> JobFolder:
        return JobFolder(Path(self.store), self.job)


RUN_SPEC = Decoder(RunSpec)


# ---- to a run ----


class GrantSlots(Message):
    number: int
    slots: list[str]  # all slots that the job may use from now on


class PauseRun(Message):
    pass


class CancelRun(Message):
    pass


ToRun: TypeAlias = GrantSlots | PauseRun | CancelRun
TO_RUN: Decoder[ToRun] = Decoder(ToRun)


# ---- from a run ----


class RunListens(Message):
    """A message: the run listens for agents at this port.

    number, held  as in RunStatus
    """

    run: str
    port: int
    number: int
    held: list[str]


class RunStatus(Message):
    """A message: the state of a run.

    number    the number of the last grant
    held      the slots that the job still holds
    report    see Job.report
    measured  the arguments of planning.model.StepTiming, for each measured size
    logical   the number of logical workers; 0 means unknown
    """

    number: int
    held: list[str]
    report: dict[str, Any]
    measured: list[tuple[int, int, float, float]]
    logical: int


FromRun: TypeAlias = RunListens | RunStatus
FROM_RUN: Decoder[FromRun] = Decoder(FromRun)
