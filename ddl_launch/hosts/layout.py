# SPDX-License-Identifier: Apache-2.0
"""The hosts and the number of ranks on each, from the user or a scheduler."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddl_launch.errors import USAGE, LaunchError

_MOST = 1 << 20


@dataclass(frozen=True)
class Host:
    """A host, and the number of ranks that it may have (None: not given)."""

    name: str
    ranks: int | None = None


@dataclass(frozen=True)
class Layout:
    """The layout of a job: the host of each rank."""

    host_of: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.host_of)

    @property
    def hosts(self) -> list[str]:
        """The hosts in the order of their first ranks."""
        return list(dict.fromkeys(self.host_of))

    def ranks(self, host: str) -> list[int]:
        """Return the ranks on a host, in order."""
        return [rank for rank, name in enumerate(self.host_of) if name == host]

    @property
    def blocks(self) -> list[tuple[str, int]]:
        """The runs of ranks on one host, such as [("h1", 2), ("h2", 2)]."""
        runs: list[tuple[str, int]] = []
        for host in self.host_of:
            if runs and runs[-1][0] == host:
                runs[-1] = (host, runs[-1][1] + 1)
            else:
                runs.append((host, 1))
        return runs

    @property
    def in_blocks(self) -> bool:
        """True if the ranks of each host follow each other."""
        return len(self.blocks) == len(self.hosts)

    @property
    def text(self) -> str:
        """The layout in the form of DDL_HOST_LIST, such as "h1:0,1;h2:2,3"."""
        return ";".join(f"{h}:{','.join(map(str, self.ranks(h)))}" for h in self.hosts)


def parse_hosts(text: str, option: str) -> list[Host]:
    """Parse "h1:2,h2:2" or "h1,h2". The ranks of a repeated host are added up."""
    return _merge([_host(word, option) for word in text.split(",")])


def read_hostfile(path: Path, option: str = "-hostfile") -> list[Host]:
    """Read a file of lines "h1", "h1:2" or "h1 slots=2", with comments after #.

    A host on several lines has that many ranks. Schedulers write such files.
    """
    hosts = []
    for number, line in _lines(path, option):
        words = line.split()
        slots = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
        if any(not re.fullmatch(r"(max[-_])?slots=\d+", word) for word in words[1:]):
            raise LaunchError(
                USAGE, f"{option} {path}: line {number}: {line!r} is not of the form HOST slots=N"
            )
        name = f"{words[0]}:{slots[0]}" if slots else words[0]
        hosts.append(_host(name, f"{option} {path}: line {number}:"))
    if not hosts:
        raise LaunchError(USAGE, f"{option} {path}: the file lists no hosts")
    return _merge(hosts)


def read_rankfile(path: Path) -> tuple[Layout, dict[int, str]]:
    """Read a file of lines "rank 0=h1 slot=0-3". Return the hosts, and the cores of ranks with a
    slot."""
    option, host_of, cores = "-rankfile", {}, {}
    for number, line in _lines(path, option):
        found = re.fullmatch(r"rank\s+(\d+)\s*=\s*([^\s=:,]+)(?:\s+slots?\s*=\s*(\S+))?", line)
        if not found or int(found[1]) in host_of:
            raise LaunchError(
                USAGE,
                f"{option} {path}: line {number}: {line!r} is not of the form rank N=HOST"
                " slot=CORES, or repeats a rank",
            )
        rank = int(found[1])
        host_of[rank] = found[2]
        if found[3]:
            if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", found[3]):
                raise LaunchError(
                    USAGE,
                    f"{option} {path}: line {number}: slot={found[3]}: write the numbers of"
                    " the host's cores, such as 0-3,8; socket:core is not supported",
                )
            cores[rank] = found[3]
    if sorted(host_of) != list(range(len(host_of))) or not host_of:
        raise LaunchError(USAGE, f"{option} {path}: the ranks must be 0, 1 and so on, without gaps")
    return Layout(tuple(host_of[rank] for rank in range(len(host_of)))), cores


def lay_out(hosts: Sequence[Host], ranks: int | None, per_host: int | None) -> Layout:
    """Place the ranks in blocks, host after host, so that neighbours are near.

    ranks      the number of ranks (-n); None: as many as the hosts have
    per_host   ranks on each host (-accelerators); None: the host's number, or an equal share of
               `ranks`
    """
    counts = []
    unknown = [host for host in hosts if host.ranks is None]
    for host in hosts:
        if per_host and host.ranks and per_host > host.ranks:
            raise LaunchError(
                USAGE, f"-accelerators {per_host}: {host.name} has only {host.ranks} slots"
            )
        counts.append(per_host or host.ranks)
    if unknown and not per_host:
        taken = sum(host.ranks or 0 for host in hosts)
        left = len(unknown) if ranks is None else ranks - taken
        if left < len(unknown) or left % len(unknown):
            raise LaunchError(
                USAGE,
                f"-n {ranks} cannot be divided equally among {len(hosts)} hosts; give the"
                " number for"
                f" each: -H {hosts[0].name}:N,...",
            )
        counts = [left // len(unknown) if count is None else count for count in counts]
    host_of = [host.name for host, n in zip(hosts, counts, strict=True) for _ in range(n or 0)]
    if ranks is not None and ranks > len(host_of):
        said = ", ".join(f"{host.name}:{n}" for host, n in zip(hosts, counts, strict=True))
        raise LaunchError(USAGE, f"-n {ranks}: the hosts have only {len(host_of)} slots ({said})")
    return Layout(tuple(host_of[:ranks]))


def _lines(path: Path, option: str) -> list[tuple[int, str]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise LaunchError(USAGE, f"{option} {path}: {why}") from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [(number, line) for number, line in enumerate(lines, 1) if line]


def _host(word: str, option: str) -> Host:
    found = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?::(\d+))?", word)
    if not found or not 0 < int(found[2] or 1) <= _MOST:
        raise LaunchError(USAGE, f"{option} {word!r} is not of the form HOST or HOST:RANKS")
    return Host(found[1], int(found[2]) if found[2] else None)


def _merge(hosts: Sequence[Host]) -> list[Host]:
    """Merge the entries of each host. The ranks of a repeated host are added up; an entry without a
    number counts as one rank."""
    times: dict[str, list[int | None]] = {}
    for host in hosts:
        times.setdefault(host.name, []).append(host.ranks)
    merged = []
    for name, counts in times.items():
        alone = len(counts) == 1
        merged.append(Host(name, counts[0] if alone else sum(n or 1 for n in counts)))
    return merged
