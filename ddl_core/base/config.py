# SPDX-License-Identifier: Apache-2.0
"""The options of a comm, in Python's units."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, SupportsFloat, SupportsIndex

from ddl_core.base._lib import ffi
from ddl_core.errors import InvalidArgument

LINKS = {"inproc": 1, "shm": 2, "tcp": 4, "ucx": 8}
INVARIANT = {"none": -1, "size": -2}
WIRES = {"f32": 1, "bf16": 4, "int8": 2, "int4": 3}
WORKERS_MAX = 4096
INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Config:
    """The options for creating a comm. Every default is the library's own.

    links               the kinds of links allowed, of "inproc", "shm", "tcp" and "ucx". None:
                        DDL_LINKS, else all but "ucx"
    tag                 distinguishes comms over one list of addresses. 0: the members number them
    epoch               distinguishes a new comm from an older one of the same ranks; equal on all
                        members
    timeout             seconds for the creation. None: 5 minutes
    operation_timeout   seconds for each operation. An operation that runs longer kills the comm.
                        None: 30 minutes
    segment_bytes       the size of the segments of a pipeline. 0: the library chooses
    heartbeat           seconds between two heartbeats of a member, which are sent even while its
                        program holds the GIL; equal on all members. None: DDL_HEARTBEAT_MS, else
                        0.1
    suspect             seconds of silence until a warning about a member; math.inf for no warning.
                        None: DDL_SUSPECT_MS, else 1
    dead                seconds of silence until a member is declared dead, at least three
                        heartbeats; math.inf to declare no member dead. None: DDL_DEAD_MS, else 3
    stall_warn          seconds until a warning that an operation, or the creation of a comm, waits
                        for other ranks; math.inf for no warning. None: DDL_STALL_WARN_MS, else 10
    invariant           the order of additions, equal on all members. "size": the bits of a
                        reduction of floats depend only on the operands and the number of ranks.
                        "ranks:8": a sum has 8 logical workers, whose operands the ranks pass to
                        `allreduce_ordered`. "none": the fastest order. None: DDL_INVARIANT, else
                        "none"
    wire                the format of float32 all-reduces and reduce-scatters between hosts, equal
                        on all members: "f32", or rounded numbers of fewer bits, "bf16", "int8" or
                        "int4"; see docs/wire.md. None: DDL_WIRE, else "f32"
    """

    links: Iterable[str] | None = None
    tag: int = 0
    epoch: int = 0
    timeout: float | None = None
    operation_timeout: float | None = None
    segment_bytes: int = 0
    heartbeat: float | None = None
    suspect: float | None = None
    dead: float | None = None
    stall_warn: float | None = None
    invariant: str | None = None
    wire: str | None = None

    def fields(self) -> dict[str, int]:
        """Return the fields of ddl_comm_config, except struct_size. Raises InvalidArgument, which
        names the option, if a value is wrong."""
        return {
            "links": _link_bits(self.links),
            "tag": integer(self.tag, "tag", 0, 2**64 - 1),
            "epoch": integer(self.epoch, "epoch", 0, 2**64 - 1),
            "timeout_ms": milliseconds(self.timeout, "timeout"),
            "operation_timeout_ms": milliseconds(self.operation_timeout, "operation_timeout"),
            "segment_bytes": integer(self.segment_bytes, "segment_bytes", 0, 2**64 - 1),
            "heartbeat_ms": milliseconds(self.heartbeat, "heartbeat"),
            "suspect_ms": _milliseconds_or_never(self.suspect, "suspect"),
            "dead_ms": _milliseconds_or_never(self.dead, "dead"),
            "stall_warn_ms": _milliseconds_or_never(self.stall_warn, "stall_warn"),
            "invariant": _invariant(self.invariant),
            "wire": wire_number(self.wire),
        }


def native(config: Config | None) -> Any:
    """Return the config as a ddl_comm_config. None means all defaults."""
    size = {"struct_size": ffi.sizeof("ddl_comm_config")}
    return ffi.new("ddl_comm_config *", size | (config or Config()).fields())


def _link_bits(links: Iterable[str] | None) -> int:
    if links is None:
        return 0
    names = {links} if isinstance(links, str) else set(links)
    if not names or names - LINKS.keys():
        raise InvalidArgument(f"links is {links!r}; must be one or more of {', '.join(LINKS)}")
    return sum(LINKS[name] for name in names)


def _invariant(value: str | None) -> int:
    if value is None:
        return 0
    if value in INVARIANT:
        return INVARIANT[value]
    kind, _, workers = str(value).partition(":")
    if kind != "ranks" or not workers.isdecimal() or not 1 <= int(workers) <= WORKERS_MAX:
        raise InvalidArgument(
            f"invariant is {value!r}; must be 'size', 'none', or 'ranks:N' with N from 1 to"
            f" {WORKERS_MAX}"
        )
    return int(workers)


def wire_number(value: str | None) -> int:
    """Return the ddl_wire of a name, 0 for None. Raises InvalidArgument for another name."""
    if value is not None and value not in WIRES:
        raise InvalidArgument(f"wire is {value!r}; must be one of {', '.join(WIRES)}")
    return 0 if value is None else WIRES[value]


def invariant_name(number: int) -> str:
    """Return the value of `Config.invariant` for a number other than 0 in ddl_comm_config."""
    names = {value: name for name, value in INVARIANT.items()}
    return names.get(number, f"ranks:{number}")


def integer(value: SupportsIndex, argument: str, low: int, high: int) -> int:
    """Return `value` as an int. Raises InvalidArgument, which names `argument`, unless it is an
    integer from `low` to `high`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{argument} is {value!r}; must be an integer") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{argument} is {number}; must be from {low} to {high}")
    return number


def milliseconds(seconds: SupportsFloat | None, argument: str) -> int:
    """Convert seconds to whole milliseconds, at least 1. None becomes 0, which means the
    default."""
    if seconds is None:
        return 0
    try:
        value = float(seconds)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{argument} is {seconds!r}; must be a number of seconds") from None
    if not 0 < value < 1e12:
        raise InvalidArgument(f"{argument} is {seconds}; must be a positive number of seconds")
    return math.ceil(value * 1000)


def _milliseconds_or_never(seconds: SupportsFloat | None, argument: str) -> int:
    return -1 if seconds == math.inf else milliseconds(seconds, argument)
