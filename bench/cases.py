# SPDX-License-Identifier: Apache-2.0
"""The measured cases: operations, element types and sizes, and their form on a command line."""

import argparse
import re
import socket
from dataclasses import dataclass

OPERATIONS = ("allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall", "barrier")

# The name on a command line, and the name in NumPy and PyTorch.
DTYPES = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
}

_UNITS = {"": 1, "B": 1, "Ki": 2**10, "KiB": 2**10, "Mi": 2**20, "MiB": 2**20, "Gi": 2**30}


class UsageError(Exception):
    """A wrong command line, or a request for something that is not available."""


@dataclass(frozen=True)
class Case:
    """An operation to measure. `bytes` is the size of the whole buffer of all-reduce, broadcast and
    all-to-all, of the send buffer of reduce-scatter and of the receive buffer of all-gather. A
    barrier has no buffer: its size is not used."""

    operation: str
    dtype: str  # a key of DTYPES
    bytes: int

    def bus_factor(self, ranks: int) -> float:
        """Return the bytes that each rank must at least send, as a factor of `bytes`."""
        if self.operation == "allreduce":
            return 2 * (ranks - 1) / ranks
        return 1.0 if self.operation == "broadcast" else (ranks - 1) / ranks


@dataclass(frozen=True)
class Candidate:
    """A library, and a way to call it.

    ""            blocking "async"       submitted, then waited for "named"       matched by name
    "c"           from C, without Python between the calls "shared"      with buffers of ddl_alloc
    "burst"       from C, BURST calls after half a millisecond of computing
    "late"        from C, a call that rank 0 makes long before the others do
    "apart", "shared apart"   out of place (all-reduce) "ordered"     the ordered sum with a logical
    worker for each rank, out of place (all-reduce)
    """

    library: str
    way: str = ""

    def __str__(self) -> str:
        return f"{self.library} {'from C' if self.way == 'c' else self.way}".rstrip()


IN_C = ("c", "burst", "late")  # the ways whose calls are made from C
BURST = 5


def parse_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([KMG]?i?B?)", text.strip())
    if not match or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a number of bytes such as 8, 4KiB or 64MiB")
    return int(match[1]) * _UNITS[match[2]]


def parse_sizes(text: str) -> list[int]:
    """Return the bytes of each size in "8,4KiB,64MiB". A range "1KiB-1MiB" has steps of a factor of
    four."""
    sizes: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        at, end = parse_bytes(first), parse_bytes(last if dash else first)
        if at > end or at == 0:
            raise UsageError(f"{part!r} is not a size of at least 1 byte, or a range of sizes")
        while at < end:
            sizes.append(at)
            at *= 4
        sizes.append(end)
    return sorted(set(sizes))


def parse_list(text: str, known: tuple[str, ...] | dict[str, str], what: str) -> list[str]:
    """Return the items of "a,b". Raises UsageError for an item that is not in `known`."""
    chosen = text.split(",")
    for one in chosen:
        if one not in known:
            raise UsageError(f"{what} {one!r} must be one of {', '.join(known)}")
    return chosen


def make_parser(command: str, description: str | None, epilog: str = "") -> argparse.ArgumentParser:
    """Return the parser of `python -m bench COMMAND`."""
    return argparse.ArgumentParser(
        prog=f"python -m bench {command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
