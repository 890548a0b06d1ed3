# SPDX-License-Identifier: Apache-2.0
"""The description of a cluster: its levels, and the host of each rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ddl_launch.base.quantities import parse_bytes, parse_rate, parse_seconds
from ddl_launch.commands.description import Table, positive, read, share, text

RANKS_MAX = 4096
_WIRES_MAX = 3  # the most levels of wires


@dataclass(frozen=True)
class Level:
    """A level of a cluster. It connects groups of the level below by shared memory or wires."""

    name: str
    bandwidth: float  # payload bytes per second of a wire, in each direction
    latency: float


@dataclass(frozen=True)
class Cores:
    """The core time that a message over wires costs, sender and receiver together, and the number
    of cores."""

    message: float = 0.0  # seconds for each message
    byte: float = 0.0  # seconds for each byte
    number: int = 0  # cores of each machine; 0: one for each rank
    hosts: int = 1  # hosts that share one machine and its cores


@dataclass(frozen=True)
class Measurement:
    """A measured or published time, for comparison."""

    bytes: int
    plan: str
    seconds: float


@dataclass(frozen=True)
class Cluster:
    """The description of a cluster. Ranks are numbered host by host."""

    name: str
    hosts: tuple[int, ...]  # ranks of each host
    fanout: tuple[int, ...]  # hosts in a rack, racks in an aisle, aisles
    memory: float  # bytes per second with which a rank reads or writes its own memory
    shared: Level | None  # None: one rank on each host
    wires: tuple[Level, ...]
    cores: Cores
    measured: tuple[Measurement, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(self.hosts)

    @property
    def levels(self) -> tuple[Level | None, ...]:
        """The levels from the innermost on. The first is shared memory, or None."""
        return (self.shared, *self.wires)

    def first_hosts(self, number: int) -> Cluster:
        """Return the cluster reduced to its first `number` hosts."""
        return replace(self, hosts=self.hosts[:number])

    def groups(self) -> list[int]:
        """Return in one list the host number of each rank, then the rack number of each rank, then
        the aisle number of each rank."""
        hosts = [h for h, ranks in enumerate(self.hosts) for _ in range(ranks)]
        per_rack = self.fanout[0] if len(self.wires) > 1 else len(self.hosts)
        per_aisle = per_rack * self.fanout[1] if len(self.wires) > 2 else len(self.hosts)
        return hosts + [h // per_rack for h in hosts] + [h // per_aisle for h in hosts]


def read_cluster(path: Path) -> Cluster:
    """Read a cluster's description. Raises DescriptionError."""
    file = read(path)
    tables = list(file.tables("level"))
    if not tables:
        raise file.error("level", "is missing: write [[level]] for each level, the innermost first")
    kinds = [table.get("kind", _kind) for table in tables]
    has_shared = kinds[0] == "shared"
    if "shared" in kinds[1:]:
        raise tables[kinds.index("shared", 1)].error("kind", "only the first level can be shared")
    if len(tables) - has_shared > _WIRES_MAX:
        raise file.error("level", f"has more than {_WIRES_MAX} levels of wires")
    fanout = tuple(table.get("count", positive) for table in tables[has_shared:])
    number = 1
    for count in fanout:
        number *= count
    hosts = _hosts(tables[0], number) if has_shared else (1,) * number
    if sum(hosts) > RANKS_MAX:
        raise file.error("level", f"has {sum(hosts)} ranks; the limit is {RANKS_MAX}")
    levels = [_level(table, kind == "wire") for table, kind in zip(tables, kinds, strict=True)]
    shared = levels[0] if has_shared else None
    default = shared.bandwidth if shared else float("inf")
    cluster = Cluster(
        file.get("name", text, path.stem),
        hosts,
        fanout,
        file.get("memory", parse_rate, default),
        shared,
        tuple(levels[has_shared:]),
        _cores(file),
        tuple(_measurement(table) for table in file.tables("measured")),
    )
    file.end()
    return cluster


def _kind(value: object) -> str:
    if value not in ("shared", "wire"):
        raise ValueError(f"{value!r} is not 'shared' or 'wire'")
    return str(value)


def _hosts(table: Table, number: int) -> tuple[int, ...]:
    def convert(value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            return (positive(value),) * number
        if len(value) != number:
            raise ValueError(
                f"{value!r} has the ranks of {len(value)} hosts, but there are {number}"
            )
        return tuple(positive(ranks) for ranks in value)

    return table.get("count", convert)


def _level(table: Table, is_wire: bool) -> Level:
    payload = table.get("payload", share, 1.0) if is_wire else 1.0
    level = Level(
        table.get("name", text),
        table.get("bandwidth", parse_rate) * payload,
        table.get("latency", parse_seconds),
    )
    table.end()
    return level


def _cores(file: Table) -> Cores:
    found = list(file.tables("cores"))
    if not found:
        return Cores()
    if len(found) > 1:
        raise file.error("cores", "appears more than once")
    table = found[0]
    none = Cores()
    rate = table.get("rate", parse_rate, float("inf"))
    cores = Cores(
        table.get("message", parse_seconds, none.message),
        1 / rate,
        table.get("number", positive),
        table.get("hosts", positive, none.hosts),
    )
    table.end()
    return cores


def _measurement(table: Table) -> Measurement:
    nbytes, plan = table.get("bytes", parse_bytes), table.get("plan", text)
    measurement = Measurement(nbytes, plan, table.get("time", parse_seconds))
    table.end()
    return measurement
