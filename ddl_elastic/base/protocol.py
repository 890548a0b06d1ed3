# SPDX-License-Identifier: Apache-2.0
"""The protocol between the workers and the coordinator of a job, and of `ddl elastic scale`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from msgspec import Meta
from msgspec.msgpack import Decoder

from ddl_elastic.base.messages import Channel, Message
from ddl_elastic.base.states import WorkerState

Member: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 16)]  # a worker's number in its job


@dataclass(frozen=True)
class Fingerprint:
    """The digests and settings by which a rank shows that it computes the same bits as rank 0."""

    member: int
    host: str
    state: str  # digest of the initial state
    share: str  # digest of the computed reference share
    environment: dict[str, str]  # settings that the bits may depend on, the likeliest first
    parts: dict[str, str] = field(default_factory=dict)  # digests of the state's parts, see Digest
    # settings of the job, equal on all ranks
    job: dict[str, int | str | None] = field(default_factory=dict)
    checkpoint: str = ""  # name of the checkpoint to resume from; "" if there is none

    @property
    def name(self) -> str:
        return f"rank {self.member} on {self.host}"


# ---- from a worker ----


class WorkerReady(Message):
    address: bytes  # of its endpoint
    pid: int


class TrainingBegun(Message):
    steps: int
    batch: int
    logical: int
    watchdog: float


class StepCommitted(Message):
    step: int
    loss: float
    shares: int
    busy: float
    audited: int


class RanksRecovered(Message):
    step: int
    died: list[Member]
    adopted: int
    seconds: float


class AuditFinding(Message):
    """The result of an audit that found different bits.

    step     the training step, which is not committed yet
    share    the logical worker of the share; SUM if the sum of all shares differs; STATE if the
             state differs
    members  the members that compute wrongly, or that disagree with each other
    first    the first step whose result may be wrong
    stops    True if the job cannot continue
    """

    step: int
    share: int
    members: Sequence[Member]
    tensor: str
    first: int
    stops: bool
    text: str


class RolledBack(Message):
    """The job continues from the checkpoint after `step`."""

    step: int
    first: int
    text: str


class OutputLine(Message):
    text: str


class TrainingDone(Message):
    steps: int
    loss: float
    digest: str
    parts: dict[str, str]


class ProgramFailed(Message):
    error: str
    trace: str = ""


class ReferenceBits(Message):
    """The results of an initial worker, with which the results of joining workers are compared."""

    bits: Fingerprint


class WarmedUp(Message):
    """The results of a joining worker."""

    bits: Fingerprint


class PositionReached(Message):
    """A joining worker waits for the others to switch to the plan. In a sharded job, its program
    has reached their position."""

    plan: int


class PlanCancelled(Message):
    plan: int
    failed: list[Member]  # members that were lost in the plan's comm


class GroupSwitched(Message):
    plan: int
    step: int
    seconds: float
    members: list[Member]
    died: list[Member]


class LeaveRequested(Message):
    """The worker was asked to leave."""


class WorkerLeft(Message):
    pass


class QuorumRequest(Message):
    """A request to continue without a majority of the group, see quorum.py."""

    members: list[Member]
    missing: list[Member]


class TensorHeader(Message):
    """A tensor of the final state. Its data follows in messages of type TensorData."""

    name: str
    dtype: str
    shape: list[int]
    size: int  # bytes


class TensorData(Message):
    data: memoryview


class StateEnd(Message):
    """All tensors of the state were sent."""


# Messages of a worker of which a new coordinator needs the last one of each type.
Kept: TypeAlias = (
    WorkerReady
    | TrainingBegun
    | ReferenceBits
    | WarmedUp
    | StepCommitted
    | TrainingDone
    | ProgramFailed
    | LeaveRequested
    | WorkerLeft
)


class WorkerSnapshot(Message):
    """An agent's snapshot of a worker, for a new coordinator; see worker_record.py."""

    state: WorkerState
    epoch: int
    group: int
    members: list[Member]
    plan: int
    planned: list[Member]
    trainings: int
    kept: list[Kept]


FromWorker: TypeAlias = (
    Kept
    | RanksRecovered
    | AuditFinding
    | RolledBack
    | OutputLine
    | PositionReached
    | PlanCancelled
    | GroupSwitched
    | QuorumRequest
    | TensorHeader
    | TensorData
    | StateEnd
    | WorkerSnapshot
)
FROM_WORKER: Decoder[FromWorker] = Decoder(FromWorker)
WorkerChannel: TypeAlias = Channel[FromWorker]  # the coordinator's end of a channel


# ---- to a worker ----


class ConnectGroup(Message):
    members: list[Member]
    addresses: list[bytes]
    epoch: int


class WarmUp(Message):
    """The job is running: compute the reference share, then send WarmedUp."""


class WorkerRefused(Message):
    why: str


class GroupPlan(Message):
    """A plan for the group: its members by rank, and the addresses that the worker may not know."""

    plan: int
    members: list[Member]
    newcomers: list[Member]
    addresses: dict[Member, bytes]
    speeds: list[float]


class QuorumReply(Message):
    why: str  # why the worker may not continue; "" means that it may


class SendState(Message):
    pass


class ExitWorker(Message):
    pass


ToWorker: TypeAlias = (
    ConnectGroup | WarmUp | WorkerRefused | GroupPlan | QuorumReply | SendState | ExitWorker
)
TO_WORKER: Decoder[ToWorker] = Decoder(ToWorker)
JobChannel: TypeAlias = Channel[ToWorker]  # the worker's end of a channel


# ---- between `ddl elastic scale` and the job ----


class ScaleRequest(Message):
    secret: str
    workers: int


class ScaleReply(Message):
    error: str


SCALE_REQUEST, SCALE_REPLY = Decoder(ScaleRequest), Decoder(ScaleReply)
