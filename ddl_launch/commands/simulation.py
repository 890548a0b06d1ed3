# SPDX-License-Identifier: Apache-2.0
"""A simulation of the plans of all ranks, by the extension module _plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ddl_launch import _plans
from ddl_launch.commands.cluster import Cluster, Cores
from ddl_launch.errors import CommandError

# The ddl__kind in plan.h and the possible algorithms of each operation.
OPERATIONS = {
    "allreduce": (1, ("hierarchical", "halving", "tree", "direct", "ring", "one-shot")),
    "reduce_scatter": (2, ("hosts", "direct", "ring")),
    "allgather": (3, ("hosts", "direct", "ring")),
    "broadcast": (4, ("direct", "tree", "leaders", "chain")),
    "reduce": (6, ("direct", "tree", "leaders", "chain", "one-shot")),
    "gather": (7, ("pairwise", "tree")),
    "scatter": (8, ("pairwise", "tree")),
    "alltoall": (9, ("pairwise", "hosts")),
    "ordered": (1, ("ordered",)),
}
WIRES = {"f32": 0, "bf16": 4, "int8": 2, "int4": 3}  # the ddl_wire in ddl.h; 0: packs nothing
_WHOLE = {
    "allreduce",
    "broadcast",
    "reduce",
    "ordered",
}  # for other operations, count is the length of one of the `size` blocks
_ELEMENT = 4
SPANS_MAX = 20_000_000  # simulated within about a minute


def split_operation(operation: str) -> tuple[str, int]:
    """Return the name in OPERATIONS and the number of logical workers, or 0 if none is given.

    "ordered:16" adds the operands of 16 logical workers. Raises ValueError for any other text.
    """
    name, colon, workers = operation.partition(":")
    if name not in OPERATIONS:
        raise ValueError(f"{operation!r} is not one of {', '.join(OPERATIONS)}")
    if colon and (name != "ordered" or not workers.isdecimal() or not 1 <= int(workers) <= 4096):
        raise ValueError(
            f"{operation!r} is not of the form ordered:V with 1 to 4096 logical workers"
        )
    return name, int(workers or 0)


def headline(operation: str) -> str:
    """Return the description of an operation for the head of a table."""
    return f"{operation}, f32, {'out of' if operation.startswith('ordered') else 'in'} place"


class SimulationError(CommandError):
    """The error for a prediction that is impossible. The message has the reason."""


class TooLongError(SimulationError):
    """An error: the plan has too many messages to simulate."""

    def __init__(self, message: str, plan: str) -> None:
        super().__init__(message)
        self.plan = plan


class Busy(NamedTuple):
    """An interval in which the wire of a level's group carried data."""

    level: int
    group: int
    inward: bool
    start: float
    end: float


class Sent(NamedTuple):
    """A message: a part of the buffer that one rank sends to another. Shared memory delivers it at
    once."""

    sender: int
    receiver: int
    bytes: int
    start: float
    end: float


@dataclass(frozen=True)
class Prediction:
    """The predicted time of an operation, and the messages of all ranks."""

    plan: str
    piece: int  # bytes of the longest part that is sent at once
    seconds: float
    estimated: float  # seconds by the formulas with which libddl chooses
    spans: int
    sent: tuple[int, ...]  # total bytes at each level
    # Bytes of the busiest rank through shared memory, and on the busiest wire in one direction.
    busiest: tuple[int, ...]
    busy: tuple[Busy, ...]
    messages: tuple[Sent, ...] = ()


def simulate(
    cluster: Cluster,
    operation: str,
    nbytes: int,
    plan: str | None = None,
    *,
    wire: str = "f32",
    busy_max: int = 0,
    sent_max: int = 0,
    spans_max: int = SPANS_MAX,
) -> Prediction:
    """Simulate `operation` on f32 buffers of `nbytes` (all blocks together), with the named plan or
    libddl's choice. Hosts send each other data in the wire format `wire` if libddl packs such a
    buffer. Raises SimulationError if the operation cannot be simulated."""
    levels = [*cluster.levels, *[None] * (4 - len(cluster.levels))]
    bandwidth = [level.bandwidth if level else 1.0 for level in levels]
    latency = [level.latency if level else 0.0 for level in levels]
    speeds = (bandwidth, latency, cluster.memory, cluster.cores)
    return _ask(cluster, operation, nbytes, plan, speeds, busy_max, spans_max, sent_max, wire)


def hops(cluster: Cluster, operation: str, plan: str, spans_max: int = SPANS_MAX) -> int:
    """Return the number of sequential messages in a plan: its time if only messages cost time."""
    endless = ([1e30] * 4, [1.0] * 4, 1e30, Cores())
    smallest = _ELEMENT * cluster.size
    return round(_ask(cluster, operation, smallest, plan, endless, 0, spans_max).seconds)


def _ask(
    cluster: Cluster,
    operation: str,
    nbytes: int,
    plan: str | None,
    speeds: tuple[list[float], list[float], float, Cores],
    busy_max: int,
    spans_max: int,
    sent_max: int = 0,
    wire: str = "f32",
) -> Prediction:
    ffi = _plans.ffi
    name, workers = split_operation(operation)
    parts = 1 if name in _WHOLE else cluster.size
    workers = (workers or cluster.size) if name == "ordered" else 0
    owners = ffi.new("int[]", [v * cluster.size // workers for v in range(workers)])
    groups = ffi.new("int[]", cluster.groups())
    asked = ffi.NULL if plan is None else ffi.new("char[]", plan.encode())
    busy, sent = ffi.new("ddl_busy[]", busy_max), ffi.new("ddl_sent[]", sent_max)
    bandwidth, latency, memory, cores = speeds
    costs = [cores.message, cores.byte, cores.number, cores.hosts]
    machine = ffi.new("ddl_machine *", [cluster.size, groups, bandwidth, latency, memory, *costs])
    count = -(-nbytes // (_ELEMENT * parts))
    question = ffi.new(
        "ddl_question *",
        {
            "kind": OPERATIONS[name][0],
            "count": count,
            "element": _ELEMENT,
            "wire": WIRES[wire],
            "owners": owners if workers else ffi.NULL,
            "workers": workers,
            "algorithm": asked,
            "spans_max": spans_max,
            "busy_max": busy_max,
            "sent_max": sent_max,
        },
    )
    answer = ffi.new("ddl_answer *", {"busy": busy, "sent": sent})
    error = _plans.lib.ddl_simulate(machine, question, answer)
    if error != ffi.NULL:
        problem, found = ffi.string(error).decode(), ffi.string(answer.name).decode()
        message = f"{operation} of {nbytes} bytes on {cluster.size} ranks, plan {plan or found}"
        if problem.endswith("too long"):
            raise TooLongError(f"{message}: {problem}", found)
        raise SimulationError(f"{message}: {problem}")
    n = len(cluster.levels)
    return Prediction(
        ffi.string(answer.name).decode(),
        answer.piece,
        answer.seconds,
        answer.estimated,
        answer.spans,
        tuple(answer.bytes[i] for i in range(n)),
        tuple(answer.busiest[i] for i in range(n)),
        tuple(
            Busy(b.level, b.group, bool(b.inward), b.start, b.end)
            for b in (busy[i] for i in range(answer.n_busy))
        ),
        tuple(
            Sent(getattr(each, "from"), each.to, each.bytes, each.start, each.end)
            for each in (sent[i] for i in range(answer.n_sent))
        ),
    )
