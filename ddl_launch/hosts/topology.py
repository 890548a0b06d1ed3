# SPDX-License-Identifier: Apache-2.0
"""Conversion of PowerAI DDL's mode, nodes, racks and aisles to DDL_OPTIONS and DDL_TOPOLOGY.
Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ddl_launch.errors import USAGE, LaunchError

_MODES = {
    "b": "NCCL where it is possible",
    "n": "NCCL",
}
_OWN = "rdthp"  # the modes of libddl itself
_REFUSED = {
    "m": "MPI's own collectives",
    "c": "RCS",
}
_LEVELS = {"0": "warn", "1": "plan", "2": "debug"}


def count_hosts(nodes: int | None, racks: int | None, aisles: int | None) -> int | None:
    """Return the number of hosts by -nodes (in each rack), -racks (in each aisle) and -aisles.
    None: not given."""
    return None if nodes is None else nodes * (racks or 1) * (aisles or 1)


def describe(hosts: int, nodes: int | None, racks: int | None, aisles: int | None) -> str:
    """Return DDL_TOPOLOGY: "4x8;4x8" for 2 aisles of 8 racks of 4 hosts; "" for a single rack."""
    groups = (racks or 1) * (aisles or 1)
    said = f"-nodes {nodes or '?'} -racks {racks or 1} -aisles {aisles or 1}"
    wanted = count_hosts(nodes, racks, aisles)
    if wanted is not None and wanted != hosts:
        raise LaunchError(USAGE, f"{said} describes {wanted} hosts, but there are {hosts}")
    if hosts % groups:
        raise LaunchError(
            USAGE, f"{said}: {hosts} hosts cannot be divided into {groups} equal racks"
        )
    if groups == 1:
        return ""
    return ";".join([f"{hosts // groups}x{racks or 1}"] * (aisles or 1))


def mode_option(mode: str | None, size: int) -> tuple[str, str]:
    """Return DDL_OPTIONS for -mode, or "" if libddl chooses; and a remark for the user."""
    if mode is None:
        return "", ""
    found = re.fullmatch(r"([a-z])(?::(\d+(?:x\d+){0,3}))?", mode)
    if not found or found[1] not in (*_MODES, *_REFUSED, *_OWN):
        raise LaunchError(
            USAGE,
            f"-mode {mode}: expected A or A:XxY with up to four numbers, where A is r (one ring), d"
            " (hierarchical), t (trees), h (halving), p (try all, keep the fastest), or b or n of"
            " PowerAI DDL",
        )
    letter, numbers = found[1], found[2]
    if letter in _REFUSED:
        raise LaunchError(
            USAGE,
            f"-mode {mode}: libddl has no mode {letter} ({_REFUSED[letter]}); omit it",
        )
    if numbers:
        product = math.prod(map(int, numbers.split("x")))
        if product != size:
            raise LaunchError(USAGE, f"-mode {mode} is for {product} ranks, but there are {size}")
    if letter == "d" and not numbers:
        raise LaunchError(USAGE, "-mode d requires numbers, such as d:2x3")
    if letter in _OWN:
        return f"-mode {letter}:{numbers or size}", ""
    taken = f"it is taken as d:{numbers}" if numbers else "libddl chooses by itself"
    remark = f"-mode {mode}: {letter} was {_MODES[letter]}; {taken}"
    return (f"-mode d:{numbers}" if numbers else ""), remark


def library_options(words: Sequence[str]) -> tuple[str | None, str, dict[str, str]]:
    """Convert PowerAI DDL's library options to a -mode or None, further DDL_OPTIONS, and
    variables to set."""
    mode, others, variables = None, [], {}
    rest = [word for text in words for word in text.split()]
    while rest:
        name, value = rest[0], rest[1] if len(rest) > 1 else ""
        if name == "-mode" and value:
            mode = value
        elif name == "-dbg_level" and value in _LEVELS:
            variables["DDL_LOG"] = _LEVELS[value]
        elif name in ("-dump_iter", "-dev_sync", "-rebind_iter") and value.isdecimal():
            others += [name, value]  # libddl logs which of them it ignores
        else:
            raise LaunchError(
                USAGE,
                f"-ddlarg {name} {value}".strip()
                + ": expected -mode A:XxY, -dump_iter N or -dbg_level 0|1|2",
            )
        rest = rest[2:]
    return mode, " ".join(others), variables
