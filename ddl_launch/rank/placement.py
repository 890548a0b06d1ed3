# SPDX-License-Identifier: Apache-2.0
"""The cores that a rank runs on, and its number of threads.

Scripts import this module, so it imports no other module of the project. `share` is pure; `look`
reads this host.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence

# The variables that set the number of threads. Most libraries know the first: if it is set, all
# stay unchanged.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
BINDINGS = ("numa", "core", "none")


def look() -> tuple[list[list[int]], float]:
    """Return the cores of this process by NUMA node, and the number of cores whose time its cgroups
    allow, which may be lower. The hyper-threads of a core follow each other."""
    allowed = os.sched_getaffinity(0)
    nodes = []
    root = "/sys/devices/system/node"
    names = [n for n in _list(root) if re.fullmatch(r"node\d+", n)]
    for name in sorted(names, key=lambda name: int(name[4:])):
        cores = allowed & set(parse_cores(_read(f"{root}/{name}/cpulist")))
        if cores:
            nodes.append(sorted(cores, key=_physical))
    known = {core for node in nodes for core in node}
    if allowed - known:  # not in a listed NUMA node
        nodes.append(sorted(allowed - known, key=_physical))
    return nodes, min(float(len(allowed)), quota())


def share(nodes: Sequence[Sequence[int]], rank: int, size: int, binding: str) -> list[int]:
    """Return the cores of rank `rank` of `size` on a host with these cores.

    "numa"   whole NUMA nodes if there are at least `size`, else the node that the rank shares
    "core"   the rank's own part of the node's cores, or all of them if there are fewer than ranks
    "none"   all cores
    """
    everything = [core for node in nodes for core in node]
    if binding == "none":
        return everything
    if size <= len(nodes):
        mine = nodes[rank * len(nodes) // size : (rank + 1) * len(nodes) // size]
        return [core for node in mine for core in node]
    where = rank * len(nodes) // size
    here = [r for r in range(size) if r * len(nodes) // size == where]
    node = nodes[where]
    if binding == "numa" or len(here) > len(node):
        return list(node)
    i = here.index(rank)
    return list(node[i * len(node) // len(here) : (i + 1) * len(node) // len(here)])


def threads(cores: float, size: int) -> int:
    """Return the number of threads for each of `size` ranks on a host."""
    return max(1, math.floor(cores / size))


def thread_variables(env: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the variables to set for `number` threads: none if the user has set the first of
    them."""
    if THREADS[0] in env:
        return {}
    return {name: str(number) for name in THREADS if name not in env}


def parse_cores(text: str) -> list[int]:
    """Return the numbers in a text such as "0-3,8"."""
    cores: list[int] = []
    for item in filter(None, text.strip().split(",")):
        first, _, last = item.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def format_cores(cores: Sequence[int]) -> str:
    """Return the ranges of these cores as a text that `parse_cores` can read, such as "0-3,8"."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and runs[-1][-1] == core - 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _physical(core: int) -> tuple[int, int]:
    siblings = _read(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    return min(parse_cores(siblings), default=core), core


def quota(root: str = "") -> float:
    """Return the number of cores whose time the cgroups of this process allow; infinity means all.
    The system files are below `root`."""
    least = math.inf
    for line in _read(f"{root}/proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and "cpu" not in kinds.split(","):
            continue
        base = f"{root}/sys/fs/cgroup" + ("/cpu" if kinds else "")
        while True:
            limit = _read(f"{base}{path}/cpu.max").split()
            if not limit:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                limit = [_read(f"{base}{path}/{name}").strip() for name in names]
            if len(limit) == 2 and limit[0].isdecimal() and limit[1].isdecimal():
                least = min(least, int(limit[0]) / int(limit[1]))
            if path in ("/", ""):
                break
            path = path.rpartition("/")[0]
    return least


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
