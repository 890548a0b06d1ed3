# SPDX-License-Identifier: Apache-2.0
"""One rank: the cases of the covering array that have this number of ranks, against NumPy.

    DDL_LINKS=shm ddlrun -n 4 program.py [PARAMETER=VALUE ...]

DDL_MATRIX_BUFFERS=shared puts all arrays into memory that the other ranks can map, mixed only some
of them, others on each rank.

Data are such that no order of reduction rounds, so results are compared bit by bit.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from cases import Case, described, matching, pairwise

import ddl_core

# The largest integers whose sum over eight ranks is exact.
SUMMABLE = {"float8_e5m2": 1, "float8_e4m3fn": 2, "bfloat16": 16, "float16": 128}
REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.add.reduce,
    "average": np.add.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "product": np.multiply.reduce,
    "bit_and": np.bitwise_and.reduce,
    "bit_or": np.bitwise_or.reduce,
    "bit_xor": np.bitwise_xor.reduce,
    "logical_and": np.logical_and.reduce,
    "logical_or": np.logical_or.reduce,
}

# Corrupt one element of every result, for the test that failures are found.
BREAK = "DDL_MATRIX_BREAK" in os.environ
BUFFERS = os.environ.get("DDL_MATRIX_BUFFERS", "private")

Data = np.ndarray[Any, Any]
comm = ddl_core.init(ddl_core.Config(operation_timeout=60))
rank, size = comm.rank, comm.size


@dataclass
class Plan:
    """Calls of one operation, and the expected contents of arrays afterwards."""

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    checks: list[tuple[str, Data, Data]] = field(default_factory=list)
    source: int | None = None

    def call(self, name: str, *arguments: Any, **options: Any) -> None:
        self.calls.append((name, arguments, options))

    def expect(self, what: str, found: Data, wanted: Data) -> None:
        self.checks.append((what, found, wanted.copy()))

    def share(self, memory: Shared, draw: random.Random) -> None:
        """Put the arrays of all calls into shared memory, or a random choice of them."""
        moved: dict[int, Data] = {}

        def move(value: Any) -> Any:
            if not isinstance(value, np.ndarray):
                return value
            if id(value) not in moved:
                shared = BUFFERS == "shared" or draw.random() < 0.5
                moved[id(value)] = memory.copy(value) if shared else value
            return moved[id(value)]

        self.calls = [
            (name, tuple(map(move, given)), options) for name, given, options in self.calls
        ]
        self.checks = [(what, move(found), wanted) for what, found, wanted in self.checks]


# ---- data ----


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def drawn(case: Case, owner: int, count: int) -> Data:
    """Return the input of rank `owner`."""
    dtype, name, op = dtype_of(case["dtype"]), case["dtype"], case["op"]
    draw = np.random.default_rng([owner, count])
    if dtype.kind in "biu" or op == "none":  # any bytes
        raw = draw.integers(0, 2 if name == "bool" else 256, (count, dtype.itemsize), np.uint8)
        return raw.reshape(-1).view(dtype)
    if op == "product":
        return (draw.choice([0.5, 1, 2], count) * draw.choice([-1, 1], count)).astype(dtype)
    most = SUMMABLE.get(name, 1000)
    values = draw.integers(-most, most + 1, count)
    if dtype.kind == "c":
        return (values + 1j * draw.integers(-most, most + 1, count)).astype(dtype)
    return values.astype(dtype)


def reduced(case: Case, contributions: list[Data]) -> Data:
    op, dtype = case["op"], contributions[0].dtype
    stack = np.stack(contributions)
    exact = dtype if dtype.kind in "biu" else np.dtype(complex if dtype.kind == "c" else float)
    with np.errstate(over="ignore"):
        if op in ("sum", "average", "product") and dtype.kind in "iu":
            total = REDUCE[op](stack, axis=0, dtype=dtype)  # wraps around
        elif op in ("sum", "product") and dtype.kind == "b":
            total = (stack.any if op == "sum" else stack.all)(axis=0)
        else:
            total = REDUCE[op](stack.astype(exact), axis=0)
    if op == "average" and dtype.kind in "iu":  # toward zero
        quotient = np.abs(total.astype(object)) // size * np.sign(total.astype(object))
        return quotient.astype(dtype)
    if op == "average":
        # In f32 below 64 bits; a complex number by its parts.
        wide = np.dtype({"complex128": "f8", "float64": "f8"}.get(case["dtype"], "f4"))
        parts = total.view(np.float64).astype(wide) / wide.type(size)
        return (parts.view(f"c{2 * wide.itemsize}") if dtype.kind == "c" else parts).astype(dtype)
    return total.astype(dtype)


def garbage(count: int, dtype: np.dtype[Any]) -> Data:
    return np.full(count * dtype.itemsize, 1 if dtype.kind == "b" else 0x2B, np.uint8).view(dtype)


class Shared:
    """Memory that the other ranks can map. It is kept from case to case, since a rank maps it at
    its second use."""

    def __init__(self) -> None:
        self._memory = ddl_core.empty(64 << 20, np.uint8)
        self._used = 0

    def copy(self, array: Data) -> Data:
        begin, self._used = self._used, self._used + -(-array.nbytes // 64) * 64
        copy = self._memory[begin:][: array.nbytes].view(array.dtype)
        copy[:] = array
        return copy

    def clear(self) -> None:
        self._used = 0


def cut(whole: Data, counts: list[int], at: int) -> Data:
    start = sum(counts[:at])
    return whole[start : start + counts[at]]


# ---- the operations ----


def reduce_all(plan: Plan, case: Case, n: int) -> None:
    everybody = [drawn(case, r, n) for r in range(size)]
    wanted, send = reduced(case, everybody), everybody[rank].copy()
    options: dict[str, Any] = {"op": case["op"]}
    root = None
    if case["operation"] == "reduce":
        options["root"] = root = n % size
    name = "reduce" if root is not None else "allreduce"
    if case["place"] == "in":
        plan.call(name, send, **options)
        plan.expect("result", send, wanted if root in (None, rank) else everybody[rank])
        return
    recv = garbage(n, send.dtype)
    plan.call(name, send, recv, **options)
    plan.expect("result", recv, wanted if root in (None, rank) else recv)
    plan.expect("send", send, everybody[rank])


def reduce_named(plan: Plan, case: Case, n: int) -> None:
    """Two operations, which ranks start in different orders."""
    reduce_all(plan, case, n)
    reduce_all(plan, case, n + 1)
    for i, (_, _, options) in enumerate(plan.calls):
        options["name"] = f"sum {i}"
    if rank % 2 and case["mode"] != "blocking":
        plan.calls.reverse()


def reduce_scattered(plan: Plan, case: Case, n: int) -> None:
    uneven = case["operation"] == "reduce_scatterv"
    counts = [n + r % 3 * uneven for r in range(size)]
    everybody = [drawn(case, r, sum(counts)) for r in range(size)]
    wanted, send = cut(reduced(case, everybody), counts, rank), everybody[rank].copy()
    options = {"op": case["op"]} | ({"counts": counts} if uneven else {})
    if case["place"] == "in":
        plan.call(case["operation"], send, **options)
        everything = everybody[rank].copy()
        cut(everything, counts, rank)[:] = wanted
        plan.expect("result", send, everything)
        return
    recv = garbage(counts[rank], send.dtype)
    plan.call(case["operation"], send, recv, **options)
    plan.expect("result", recv, wanted)
    plan.expect("send", send, everybody[rank])


def broadcast(plan: Plan, case: Case, n: int) -> None:
    root = n % size
    array = drawn(case, rank, n)
    plan.call("broadcast", array, root)
    plan.expect("result", array, drawn(case, root, n))


def gathered(plan: Plan, case: Case, n: int) -> None:
    """All four: allgather and gather, with equal and with unequal counts."""
    name = case["operation"]
    uneven, rooted = name[-1] == "v", not name.startswith("all")
    counts = [n + r % 3 * uneven for r in range(size)]
    blocks = [drawn(case, r, counts[r]) for r in range(size)]
    wanted = np.concatenate(blocks)
    root = n % size
    takes = not rooted or rank == root
    options: dict[str, Any] = {"root": root} if rooted else {}
    if uneven and takes:
        options["counts"] = counts
    if case["place"] == "in" and takes:
        whole = garbage(sum(counts), wanted.dtype)
        cut(whole, counts, rank)[:] = blocks[rank]
        plan.call(name, whole, **options)
        plan.expect("result", whole, wanted)
        return
    send, recv = blocks[rank].copy(), garbage(sum(counts), wanted.dtype) if takes else None
    plan.call(name, send, recv, **options)
    plan.expect("send", send, blocks[rank])
    if recv is not None:
        plan.expect("result", recv, wanted)


def scattered(plan: Plan, case: Case, n: int) -> None:
    name = case["operation"]
    counts = [n + r % 3 * (name == "scatterv") for r in range(size)]
    root = n % size
    whole = drawn(case, root, sum(counts))
    options: dict[str, Any] = {"root": root}
    if name == "scatterv" and rank == root:
        options["counts"] = counts
    send = whole.copy() if rank == root else None
    if case["place"] == "in" and send is not None:
        plan.call(name, send, **options)
    else:
        recv = garbage(counts[rank], whole.dtype)
        plan.call(name, send, recv, **options)
        plan.expect("result", recv, cut(whole, counts, rank))
    if send is not None:
        plan.expect("send", send, whole)


def exchanged(plan: Plan, case: Case, n: int) -> None:
    """alltoall, and alltoallv with counts that depend only on the sum of both ranks, and hence fit
    in place."""
    uneven = case["operation"] == "alltoallv"
    table = [[n + (r + q) % 3 * uneven for q in range(size)] for r in range(size)]
    everybody = [drawn(case, r, sum(table[r])) for r in range(size)]
    wanted = np.concatenate([cut(everybody[r], table[r], rank) for r in range(size)])
    send = everybody[rank].copy()
    options = {"send_counts": table[rank]} if uneven else {}
    if case["place"] == "in":
        plan.call(case["operation"], send, **options)
        plan.expect("result", send, wanted)
        return
    if uneven:  # with gaps
        gaps = [sum(table[rank][:r]) + r for r in range(size)]
        options |= {"recv_counts": table[rank], "recv_displs": gaps}
        recv = garbage(len(wanted) + size, send.dtype)
        spread = recv.copy()
        for r, gap in enumerate(gaps):
            spread[gap : gap + table[rank][r]] = cut(wanted, table[rank], r)
        wanted = spread
    else:
        recv = garbage(len(wanted), send.dtype)
    plan.call(case["operation"], send, recv, **options)
    plan.expect("result", recv, wanted)
    plan.expect("send", send, everybody[rank])


def messages(plan: Plan, case: Case, n: int) -> None:
    """Messages around the ring, to the next rank but one; from any source if the sender can be
    determined."""
    dest, source = (rank + 2) % size, (rank - 2) % size
    send, recv = drawn(case, rank, n), garbage(n, dtype_of(case["dtype"]))
    if case["operation"] == "sendrecv":
        tags = {"send_tag": dest, "recv_tag": rank}
        plan.call("sendrecv", send, recv, dest=dest, source=source, **tags)
    else:
        plan.call("recv", recv, None if n % 2 else source, tag=7)
        plan.call("send", send, dest, tag=7)
        plan.source = source
    plan.expect("result", recv, drawn(case, source, n))


BUILDERS: dict[str, Callable[[Plan, Case, int], None]] = {
    **dict.fromkeys(["allreduce", "reduce"], reduce_all),
    "named": reduce_named,
    **dict.fromkeys(["reduce_scatter", "reduce_scatterv"], reduce_scattered),
    "broadcast": broadcast,
    **dict.fromkeys(["allgather", "allgatherv", "gather", "gatherv"], gathered),
    **dict.fromkeys(["scatter", "scatterv"], scattered),
    **dict.fromkeys(["alltoall", "alltoallv"], exchanged),
    **dict.fromkeys(["message", "sendrecv"], messages),
}


# ---- running the operations ----


def run_blocking(plan: Plan) -> int | None:
    """Start a receive first, so that sends that wait for it complete."""
    received = None
    for name, arguments, options in plan.calls:
        if name == "recv":
            received = comm.recv_async(*arguments, **options)
        else:
            getattr(comm, name)(*arguments, **options)
    if received is None:
        return None
    received.wait()
    return received.source


def run_async(plan: Plan) -> int | None:
    works = [getattr(comm, f"{name}_async")(*a, **options) for name, a, options in plan.calls]
    for work in reversed(works):
        result = work.wait()
        assert work.done()
        assert work.wait(0) is result
    return works[0].source


def run_grouped(plan: Plan) -> int | None:
    """Run all calls in one group, between two small all-reduces, but named ones in a group each."""
    small = [np.full(3, rank, np.int32) for _ in range(2)]
    received, works, groups = None, [], []
    if "name" in plan.calls[0][2]:
        for name, arguments, options in plan.calls:
            label = options.pop("name")
            groups.append(comm.group())
            getattr(groups[-1], name)(*arguments, **options)
            works.append(groups[-1].submit_async(name=label))
        for work in works:
            work.wait()
        return None
    with comm.group() as group:
        group.allreduce(small[0])
        for name, arguments, options in plan.calls:
            result = getattr(group, name)(*arguments, **options)
            received = result if name == "recv" else received
        group.allreduce(small[1], op="max")
    assert small[0].tolist() == [size * (size - 1) // 2] * 3
    assert small[1].tolist() == [size - 1] * 3
    return received.source if received else None


RUN = {"blocking": run_blocking, "async": run_async, "grouped": run_grouped}


def same(found: Data, wanted: Data) -> bool:
    return found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


def run_case(case: Case, memory: Shared | None) -> None:
    counts = {"p-1": size - 1, "p": size}
    plan = Plan()
    n = counts[case["count"]] if case["count"] in counts else int(case["count"])
    BUILDERS[case["operation"]](plan, case, n)
    if memory:
        memory.clear()
        plan.share(memory, random.Random(f"{rank} {described(case)}"))
    source = RUN[case["mode"]](plan)
    if BREAK and n > 7:
        plan.checks[0][1].view(np.uint8)[7 * plan.checks[0][1].itemsize] ^= 1
    assert plan.source is None or source == plan.source, f"came from {source}, not {plan.source}"
    for what, found, wanted in plan.checks:
        if not same(found, wanted):
            at = next(
                i for i in range(len(wanted)) if not same(found[i : i + 1], wanted[i : i + 1])
            )
            raise AssertionError(
                f"{what}: element {at} of {len(wanted)} is {found[at]!r}, expected {wanted[at]!r}"
            )


def main(filters: list[str]) -> None:
    cases = matching(pairwise(), [*filters, f"size={size}"])
    memory = None if BUFFERS == "private" else Shared()
    for case in cases:
        try:
            run_case(case, memory)
        except Exception as error:
            links = os.environ.get("DDL_LINKS", "")
            buffers = "" if BUFFERS == "private" else f"DDL_MATRIX_BUFFERS={BUFFERS} "
            again = f"{buffers}DDL_LINKS={links} ddlrun -n {size} {sys.argv[0]} {described(case)}"
            sys.exit(f"rank {rank}: {type(error).__name__}: {error}\n  again: {again}")
    lent = np.array([comm.report()["lent_bytes"]])
    comm.allreduce(lent)
    # A region is lent from its second use on. With mixed buffers there may be no second use.
    if not filters and BUFFERS != "mixed":
        assert (lent[0] > 0) == (size > 1 and memory is not None), f"{lent} bytes were lent"
    # In one write, since not every launcher keeps lines whole.
    told = f"{len(cases)} cases\n" if rank == 0 else ""
    sys.stdout.write(f"{told}local {comm.local_rank} {comm.local_size}\n")
    ddl_core.finalize()


if __name__ == "__main__":
    main(sys.argv[1:])
