# SPDX-License-Identifier: Apache-2.0
"""`ddl doctor`: checks whether this machine is suitable for libddl, and prints what to change."""

from __future__ import annotations

import argparse
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from ddl_core.errors import InvalidArgument
from ddl_core.joining.environment import detect
from ddl_launch.base.quantities import parse_count, show_bytes, show_seconds
from ddl_launch.commands import installation, machine, selftest
from ddl_launch.commands.finding import Finding, ok, wrong

_MARKS = {"ok": "    ", "note": "note", "wrong": "BAD "}


def add_doctor(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `doctor` to the commands of ddl. `add` creates its parser."""
    doctor = add(
        "doctor",
        help="check this machine",
        description="Check what libddl requires of this machine, and say what to change. The exit"
        " code is 1 if something is wrong. `ddlrun --check` checks several hosts and the network"
        " between them.",
        epilog="example: ddl doctor --ranks 8",
        allow_abbrev=False,
    )
    doctor.add_argument(
        "--ranks",
        metavar="N",
        type=parse_count,
        help="number of ranks on this machine (default: the job's number in the environment, else"
        " the number of cores)",
    )
    doctor.add_argument("--no-test", action="store_true", help="skip the test with two ranks")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)


def findings(ranks: int | None = None, test: bool = True) -> Iterator[Finding]:
    """Yield all findings."""
    size, sockets = _job()
    number = ranks or _ranks_here(size)
    yield from installation.library()
    yield from installation.environment(os.environ)
    yield from installation.network()
    yield from installation.libcrypto()
    yield from installation.ucx()
    yield from machine.cores(number)
    yield from machine.memory(number)
    yield from machine.limits(max(number, size), sockets)
    yield from machine.kernel()
    yield from machine.clock()
    yield from installation.frameworks()
    if test:
        yield from _two_ranks()


def _job() -> tuple[int, int]:
    """Return the size of this process's job, and the number of sockets between two ranks."""
    sockets = os.environ.get("DDL_SOCKETS", "")
    try:
        size = detect(os.environ).size
    except InvalidArgument:  # a finding of its own
        size = 1
    return max(size, 1), max(int(sockets) if sockets.isdecimal() else 1, 1)


def _ranks_here(size: int) -> int:
    """Return the number of ranks on this machine: the number that ddlrun has set, else the size of
    the job, else the number of usable cores."""
    local = os.environ.get("DDL_LOCAL_SIZE", "")
    if local.isdecimal() and int(local):
        return int(local)
    return size if size > 1 else len(os.sched_getaffinity(0))


def _two_ranks() -> Iterator[Finding]:
    try:
        times = selftest.run()
    except (selftest.SelfTestError, OSError) as error:
        yield wrong("two ranks", str(error), "first correct the errors above, if any")
        return
    for link, (small, large) in times.items():
        name = {"shm": "shared memory", "tcp": "loopback"}[link]
        yield ok(
            "two ranks",
            f"{name}: all-reduce of 8 B in {show_seconds(small)},"
            f" of {show_bytes(selftest.BYTES)} in {show_seconds(large)}",
        )


def as_text(found: Sequence[Finding]) -> str:
    """Return a text with a line for each finding, followed by the change that it suggests."""
    width = max(len(f.what) for f in found)
    lines = [f"{socket.gethostname()}:"]
    for f in found:
        lines.append(f"{_MARKS[f.level]} {f.what:{width}}  {f.told}")
        if f.change:
            lines.append(f"     {'':{width}}  -> {f.change}")
    bad, notes = (sum(f.level == level for f in found) for level in ("wrong", "note"))
    if bad or notes:
        lines.append(f"errors: {bad}, notes: {notes}")
    else:
        lines.append("no problem was found")
    return "\n".join(lines)


def as_json(found: Sequence[Finding]) -> str:
    """Return the findings as JSON for programs."""
    healthy = all(f.level != "wrong" for f in found)
    told = {"host": socket.gethostname(), "healthy": healthy}
    return json.dumps({**told, "findings": [asdict(f) for f in found]}, indent=1)


def _doctor(arguments: argparse.Namespace) -> int:
    found = list(findings(arguments.ranks, not arguments.no_test))
    print(as_json(found) if arguments.json else as_text(found))
    return int(any(f.level == "wrong" for f in found))
