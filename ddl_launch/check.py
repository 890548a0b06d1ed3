# SPDX-License-Identifier: Apache-2.0
"""`ddlrun --check`: compares the hosts and measures the network. One rank runs on each host."""

from __future__ import annotations

import argparse
import glob
import ipaddress
import json
import math
import os
import platform
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import ddl_core
from ddl_core import Comm
from ddl_launch.base.packages import FRAMEWORKS, find_version
from ddl_launch.base.pictures import logarithmic, picture
from ddl_launch.rank.library import compare_libraries, identify_library
from ddl_launch.rank.sockets import addresses_to

_ROUNDS, _SMALL, _LARGE, _REPEATS = 50, 8, 8 << 20, 3
_SKEW = 1.0  # the largest tolerated difference of two clocks, in seconds
_SLOW = 0.5  # pairs below this share of the fastest pair's bandwidth are reported


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot")
    parser.add_argument("--imports", type=lambda names: names.split(","), default=[])
    options = parser.parse_args()
    comm = ddl_core.init()
    facts = _gather(comm, _facts())
    ways = _gather(comm, _ways(facts, comm.rank))
    skews = _skews(comm)
    latency, bandwidth = _measure(comm)
    code = 0
    if comm.rank == 0:
        findings = _findings(facts, ways, skews, bandwidth, options.imports)
        _print(facts, ways, latency, bandwidth)
        for finding in findings:
            print(finding)
        names = [fact["host"] for fact in facts]
        print(heat_map("one way", "us", names, [[1e6 * t for t in row] for row in latency]))
        print(heat_map("bandwidth", "Gbit/s", names, [[8e-9 * b for b in r] for r in bandwidth]))
        if options.plot:
            plot(options.plot, names, latency, bandwidth)
        code = int(any(finding.startswith("error") for finding in findings))
        number = f"{len(findings)} finding{'s' * (len(findings) > 1)}"
        print(number if findings else "no problem was found")
    ddl_core.finalize()
    return code


def _facts() -> dict[str, Any]:
    versions = {"libddl": ddl_core.version(), "Python": platform.python_version()}
    for package in ("numpy", *FRAMEWORKS):
        versions[package] = find_version(package) or ""
    return {
        "host": socket.gethostname(),
        "versions": versions,
        "library": identify_library(),
        "cores": len(os.sched_getaffinity(0)),
        "accelerators": len(glob.glob("/dev/nvidia[0-9]*")),
        "open files": _limit_of_files(),
    }


def _limit_of_files() -> int:
    import resource

    # Libddl raises the soft limit to the hard one.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return hard if hard >= 0 else 1 << 62


def _gather(comm: Comm, value: Any) -> list[Any]:
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = np.zeros(comm.size, np.int64)
    comm.allgather(np.array([text.size], np.int64), sizes)
    everybody = np.zeros(sizes.sum(), np.uint8)
    comm.allgatherv(text, everybody, counts=sizes.tolist())
    parts = np.split(everybody, np.cumsum(sizes)[:-1])
    return [json.loads(part.tobytes()) for part in parts]


def _ways(facts: list[dict[str, Any]], rank: int) -> list[str]:
    """Return the interface through which this rank reaches each host, or "?" and the reason."""
    names = os.environ["DDL_HOST_LIST"].split(";") if "DDL_HOST_LIST" in os.environ else []
    found = []
    for other, fact in enumerate(facts):
        name = names[other].rpartition(":")[0] if names else fact["host"]
        found.append("" if other == rank else _way(name))
    return found


def _way(host: str) -> str:
    try:
        address, _ = addresses_to(host)
    except OSError as error:
        return f"?{error.strerror}"
    return f"{_interface(address)} {address}"


def _interface(address: str) -> str:
    if ":" in address:
        wanted = int(ipaddress.ip_address(address.partition("%")[0]))
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
        names = [line.split()[5] for line in lines if int(line.split()[0], 16) == wanted]
        return names[0] if names else "?"
    import fcntl
    import struct

    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                found = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()))
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return "?"


def _skews(comm: Comm) -> list[float]:
    """Return how many seconds each host's clock is ahead of rank 0's. The fastest of several
    exchanges counts."""
    skews = [0.0] * comm.size
    for rank in range(1, comm.size):
        best = float("inf")
        for _ in range(10):
            word = np.zeros(1)
            if comm.rank == 0:
                sent = time.time()
                comm.send(word, rank)
                comm.recv(word, rank)
                took = time.time() - sent
                if took < best:
                    best, skews[rank] = took, float(word[0]) - sent - took / 2
            elif comm.rank == rank:
                comm.recv(word, 0)
                word[0] = time.time()
                comm.send(word, 0)
    return skews


def _measure(comm: Comm) -> tuple[list[list[float]], list[list[float]]]:
    """Return each pair's one-way latency in seconds and bandwidth in bytes per second, measured in
    turn."""
    n = comm.size
    latency, bandwidth = ([[0.0] * n for _ in range(n)] for _ in range(2))
    small, large = np.zeros(_SMALL, np.uint8), np.zeros(_LARGE, np.uint8)
    for low in range(n):
        for high in range(low + 1, n):
            comm.barrier()
            if comm.rank not in (low, high):
                continue
            other = low + high - comm.rank
            times = [_exchange(comm, small, other, comm.rank == low) for _ in range(_ROUNDS)]
            latency[low][high] = sorted(times)[_ROUNDS // 2] / 2
            times = [_exchange(comm, large, other, comm.rank == low) for _ in range(_REPEATS)]
            bandwidth[low][high] = 2 * _LARGE / min(times)
    comm.barrier()
    rows = _gather(comm, [latency, bandwidth])
    for low in range(n):
        for high in range(low + 1, n):
            latency[low][high] = rows[low][0][low][high]
            bandwidth[low][high] = rows[low][1][low][high]
    return latency, bandwidth


def _exchange(comm: Comm, data: np.ndarray[Any, Any], other: int, first: bool) -> float:
    begun = time.perf_counter()
    for sends in (first, not first):
        if sends:
            comm.send(data, other)
        else:
            comm.recv(data, other)
    return time.perf_counter() - begun


def _findings(
    facts: list[dict[str, Any]],
    ways: list[list[str]],
    skews: list[float],
    bandwidth: list[list[float]],
    imports: list[str],
) -> list[str]:
    """Return the problems, each with the host and the remedy. `imports` are the frameworks that the
    program imports."""
    first = facts[0]
    found = [
        f"error: {fact['host']} has no {name}, which the program imports: install it there"
        for fact in facts
        for name in imports
        if not fact["versions"][name]
    ]
    for fact in facts[1:]:
        host = fact["host"]
        note = compare_libraries(first["host"], first["library"], host, fact["library"])
        if note:
            found.append(f"note: {note}")
        for name, version in fact["versions"].items():
            # ddlrun has compared the protocols of libddl already.
            own = first["versions"][name]
            if name in imports and not (own and version):
                continue
            if name != "libddl" and version != own:
                found.append(
                    f"error: {host} has {f'{name} {version}' if version else f'no {name}'},"
                    f" {first['host']} has {own or 'none'}: install the same on both"
                )
        for what in ("cores", "accelerators"):
            if fact[what] != first[what]:
                found.append(
                    f"warning: {host} has {fact[what]} {what}, {first['host']} has {first[what]}:"
                    " the slower host delays the other; choose the ranks of each with -H HOST:N"
                )
    for fact, skew in zip(facts, skews, strict=True):
        if abs(skew) > _SKEW:
            found.append(
                f"warning: the clock of {fact['host']} is {skew:+.1f} s off {first['host']}'s:"
                " run NTP there; logs and certificates need equal clocks"
            )
        if fact["open files"] < 4096 and len(facts) > 64:
            found.append(
                f"warning: {fact['host']} allows {fact['open files']} open files: ulimit -Hn"
            )
    for fact, row in zip(facts, ways, strict=True):
        for other, way in zip(facts, row, strict=True):
            if way.startswith(("?", "lo ")):
                found.append(
                    f"error: {fact['host']} reaches {other['host']} by {way}: correct"
                    f" /etc/hosts or DNS on {fact['host']}"
                )
    fastest = max(value for row in bandwidth for value in row)
    for i, speeds in enumerate(bandwidth):
        for j, value in enumerate(speeds):
            if value and value < _SLOW * fastest:
                found.append(
                    f"warning: between {facts[i]['host']} and {facts[j]['host']} only"
                    f" {value * 8 / 1e9:.2f} Gbit/s: check the cables, or leave one host out"
                )
    return found


_SHADES = " ░▒▓█"


def heat_map(what: str, unit: str, names: list[str], values: list[list[float]]) -> str:
    """Return a text with a square for each pair of hosts. Higher values are darker, on a
    logarithmic scale. `values` has each pair once, with the lower index first."""
    found = [value for row in values for value in row if value]
    if not found:
        return f"{what}: only one host"
    low, high = min(found), max(found)
    spread = math.log(high / low) if high > low else 1.0
    width = max(len(name) for name in names)
    lines = [f"{what}, {unit}: ░ {_short(low)} to █ {_short(high)}"]
    for i, name in enumerate(names):
        cells = []
        for j in range(len(names)):
            value = values[min(i, j)][max(i, j)]
            shade = 1 + round(3 * math.log(value / low) / spread) if value else 0
            cells.append(2 * _SHADES[shade])
        lines.append(f"{name:>{width}} {''.join(cells)}")
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def plot(
    path: str, names: list[str], latency: list[list[float]], bandwidth: list[list[float]]
) -> None:
    """Write the two heat maps as a picture."""
    try:
        from matplotlib.colors import LogNorm
    except ImportError:
        sys.exit("--plot needs matplotlib, which is not installed: pip install 'libddl[plot]'")
    n = len(names)
    if n == 1:
        sys.exit("--plot needs at least two hosts: there is only one")
    back = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}
    side = max(2.5, 0.6 + 0.4 * n)
    both = (("one way, us", latency, 1e6), ("bandwidth, Gbit/s", bandwidth, 8e-9))
    try:
        with picture(Path(path), [side, side], width=side + 1.5) as all_axes:
            for axes, (title, values, factor) in zip(all_axes, both, strict=True):
                square = np.array(values) * factor
                square = np.ma.masked_equal(square + square.T, 0)
                image = axes.imshow(square, norm=LogNorm(), cmap="viridis")
                bar = axes.figure.colorbar(image, ax=axes)
                logarithmic(bar.ax.yaxis, _short)
                axes.grid(visible=False)
                axes.set_xticks(range(n), names, rotation=90 if n > 8 else 0)
                axes.set_yticks(range(n), names)
                axes.set_title(title)
                for i, j in np.ndindex(n, n) if n <= 16 else ():
                    if i != j:
                        text = _short(square[i, j])
                        axes.text(j, i, text, ha="center", va="center", fontsize=8, bbox=back)
    except (OSError, ValueError) as error:
        sys.exit(f"--plot {path}: {error}")
    print(f"heat maps written to {path}")


def _print(
    facts: list[dict[str, Any]],
    ways: list[list[str]],
    latency: list[list[float]],
    bandwidth: list[list[float]],
) -> None:
    versions = facts[0]["versions"].items()
    missing = ", ".join(name for name, version in versions if not version)
    present = ", ".join(f"{name} {version}" for name, version in versions if version)
    print(f"{present}; not installed: {missing}" if missing else present)
    for fact, row in zip(facts, ways, strict=True):
        by = ", ".join(dict.fromkeys(way for way in row if way))
        print(
            f"{fact['host']:12} {fact['cores']:4} cores {fact['accelerators']:3} accelerators  {by}"
        )
    names = [fact["host"] for fact in facts]
    width = max(9, *(len(name) + 1 for name in names))
    print("one-way latency in us above the diagonal, bandwidth in Gbit/s below it:")
    print(" " * width + "".join(f"{name:>{width}}" for name in names))
    for i, name in enumerate(names):
        cells = []
        for j in range(len(names)):
            if i < j:
                cells.append(f"{1e6 * latency[i][j]:.1f}")
            elif i > j:
                cells.append(f"{8e-9 * bandwidth[j][i]:.2f}")
            else:
                cells.append("-")
        print(f"{name:{width}}" + "".join(f"{cell:>{width}}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
