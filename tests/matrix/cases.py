# SPDX-License-Identifier: Apache-2.0
"""The parameters of the matrix, and a covering array over all pairs of their values.

Used by the program that runs the cases on each rank, so it is the same everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
COMPLEX = ["complex64", "complex128"]
DTYPES = ["bool", *SIGNED, *UNSIGNED, *FLOATS, *COMPLEX]

LOGIC = ["bit_and", "bit_or", "bit_xor", "logical_and", "logical_or"]
OPS = ["none", "sum", "average", "min", "max", "product", *LOGIC]

REDUCTIONS = ["allreduce", "named", "reduce", "reduce_scatter", "reduce_scatterv"]
MOVES = [
    *("broadcast", "allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv"),
    *("alltoall", "alltoallv", "message", "sendrecv"),
]
ONE_PLACE = {"broadcast": "in", "message": "out", "sendrecv": "out"}

PARAMETERS = {
    "operation": [*REDUCTIONS, *MOVES],
    "dtype": DTYPES,
    "op": OPS,
    "size": ["1", "2", "3", "4", "5", "8"],
    "count": ["0", "1", "p-1", "p", "1000", "100003"],
    "place": ["out", "in"],
    "mode": ["blocking", "async", "grouped"],
}
SIZES = [int(size) for size in PARAMETERS["size"]]

Case = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def reducible(dtype: str, op: str) -> bool:
    if dtype == "bool":
        return op != "average"
    if dtype in COMPLEX:
        return op in ("sum", "average")
    return dtype not in FLOATS or op not in LOGIC


def sensible(case: Case) -> bool:
    """Return whether such a case exists; parameters may be left out."""
    operation = case.get("operation", "")
    if "op" in case and operation and (case["op"] == "none") != (operation in MOVES):
        return False
    if "op" in case and "dtype" in case and case["op"] != "none":
        return reducible(case["dtype"], case["op"])
    return case.get("place", "") in ("", ONE_PLACE.get(operation, case.get("place", "")))


def pairs(case: Case) -> Iterator[Pair]:
    return combinations(sorted(case.items()), 2)


def possible_pairs() -> set[Pair]:
    """Return all pairs of values that occur in some case."""
    return {
        pair
        for a, b in combinations(sorted(PARAMETERS), 2)
        for x in PARAMETERS[a]
        for y in PARAMETERS[b]
        if sensible(dict(pair := ((a, x), (b, y))))
    }


def _completed(pair: Pair, draw: random.Random) -> Case:
    """Return a random case with this pair."""
    while True:
        case = {name: draw.choice(values) for name, values in PARAMETERS.items()} | dict(pair)
        if sensible(case):
            return case


def pairwise() -> list[Case]:
    """Return few cases in which each possible pair occurs. For a missing pair, of several random
    cases, choose the one with the most missing pairs."""
    draw = random.Random(1)
    missing = possible_pairs()
    chosen = []
    while missing:
        pair = min(missing)
        candidates = (_completed(pair, draw) for _ in range(40))
        best = max(candidates, key=lambda case: sum(p in missing for p in pairs(case)))
        missing.difference_update(pairs(best))
        chosen.append(best)
    return chosen


def matching(cases: list[Case], filters: list[str]) -> list[Case]:
    """Return the cases with all these "parameter=value"; if they describe one case, only this."""
    wanted = dict(filter_.split("=", 1) for filter_ in filters)
    assert wanted.keys() <= PARAMETERS.keys(), f"{filters}: parameters are {list(PARAMETERS)}"
    if wanted.keys() == PARAMETERS.keys():
        return [wanted]
    return [case for case in cases if wanted.items() <= case.items()]


def described(case: Case) -> str:
    return " ".join(f"{name}={value}" for name, value in case.items())
