# SPDX-License-Identifier: Apache-2.0
"""The process group, which ranks join through a store."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

import ddl_core
from ddl_torch.barriers import monitored_barrier
from ddl_torch.fallback.callbacks import Callbacks, current
from ddl_torch.fallback.tensors import (
    as_buffer,
    bytes_each,
    concatenated,
    contiguous,
    copy_into,
    reduction_of,
    require_alike,
    scaled,
    scratch_of,
    separate,
    writable,
)
from ddl_torch.fallback.work import (
    NO_TIMEOUT,
    Work,
    dist_errors,
    exclude_from_compilation,
    profiled,
)
from ddl_torch.options import Options

if TYPE_CHECKING:
    from ddl_core.base.names import Op

# a method of ddl_core.Comm, its arguments and its keywords
_Call: TypeAlias = "tuple[str, tuple[Any, ...], dict[str, Any]]"

# The profiler's names of ddl_core's operations, the same as for the native part.
_TITLES = {
    "allgather": "_all_gather_base",
    "allgatherv": "all_gather",
    "allreduce": "all_reduce",
    "allreduce_ordered": "all_reduce",
    "alltoallv": "all_to_all",
    "gatherv": "gather",
    "reduce_scatter": "_reduce_scatter_base",
    "reduce_scatter_ordered": "reduce_scatter",
    "reduce_scatterv": "reduce_scatter",
    "scatterv": "scatter",
}
# Older versions of PyTorch keep only the C++ object of a work that C++ waits for. Without the
# Python object the wait would never end, so the group keeps the last works.
_KEPT = 64 if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9) else 0

_endpoint: ddl_core.Endpoint | None = None
_endpoint_lock = threading.Lock()


class ProcessGroup(dist.ProcessGroup):
    """A process group over one ddl_core.Comm. Methods that newer versions of PyTorch have renamed
    have both names. As in c10d, callers may pass a root or a ReduceOp instead of options, and a
    tensor instead of a list with one tensor."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, options: Options
    ) -> None:
        super().__init__(rank, size)
        self._store = store
        self._own_options, self.invariant = options, options.number()
        self.options = dist._Backend.Options("ddl", timeout)
        self._name = self._description = ""
        self._window: Work | None = None
        self._kept: deque[Work] = deque(maxlen=_KEPT)
        self._callbacks = Callbacks()
        self._named: dict[
            str, int
        ] = {}  # number of operations that callbacks started, by the callbacks' group
        self._named_lock = threading.Lock()
        self._sequence = self._monitored = self._splits = 0
        with dist_errors():
            self._comm, self._number = _join(store, rank, size, timeout, options)

    # ---- about the group ----

    def getBackendName(self) -> str:
        return "ddl"

    name = getBackendName

    def getRank(self) -> int:
        return self._comm.rank

    def getSize(self) -> int:
        return self._comm.size

    def setGroupName(self, name: str) -> None:
        self._name = self._callbacks.group = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def _get_backend(self, device: Any) -> ProcessGroup:
        return self

    def local(self) -> tuple[int, int]:
        return self._comm.local_rank, self._comm.local_size

    @property
    def _timeout(self) -> timedelta:
        timeout: timedelta = self.options._timeout
        return timeout

    def set_timeout(self, timeout: timedelta) -> None:
        if timeout <= NO_TIMEOUT:
            raise ValueError(f"ddl set_timeout: timeout is {timeout}; must be positive")
        self.options._timeout = timeout

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        pass

    def abort(self) -> None:
        self._comm.abort(f"abort of the process group on rank {self._comm.rank}")

    def shutdown(self) -> None:
        self._comm.close()

    def splitGroup(
        self, ranks: list[int], timeout: timedelta | None = None, *rest: Any, **options: Any
    ) -> ProcessGroup | None:
        """Create a group of these ranks; return None on other ranks. All ranks of this group call
        this."""
        self._splits += 1
        if self._comm.rank not in ranks:
            return None
        store = dist.PrefixStore(f"split/{self._splits}/{ranks}", self._store)
        limit = self._timeout if timeout is None else timeout
        group = ProcessGroup(
            store, ranks.index(self._comm.rank), len(ranks), limit, self._own_options
        )
        group.setGroupName(f"{self._name}, split {self._splits}")
        return group

    split_group = splitGroup

    # ---- running ----

    def _run(
        self,
        calls: Sequence[_Call],
        outputs: Sequence[Tensor],
        options: Any = None,
        copies: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> Work:
        """Start operations of the comm as one work, which makes the copies at the end."""
        limit = getattr(options, "timeout", None) or self._timeout
        limit = limit if limit > NO_TIMEOUT else self._timeout
        self._sequence += 1
        works = []
        title = f"ddl:{_TITLES.get(calls[0][0], calls[0][0])}" if calls else ""
        with dist_errors(), profiled("" if self._window else title):
            for name, arguments, keywords in calls:
                start = getattr(self._comm, name + "_async")
                matching = {} if name in ("send", "recv") else self._matching()
                works.append(
                    start(*arguments, **keywords, **matching, timeout=limit.total_seconds())
                )
        finish: list[Callable[[], None]] = [
            functools.partial(copy_into, to, part) for to, part in copies
        ]
        work = Work(works, list(outputs), finish, self._callbacks, title)
        if self._window is None:
            self._kept.append(work)
            return work
        self._window._works += works
        self._window._finish += finish
        self._window._outputs += outputs
        return Work([], [], [], self._callbacks)

    def _matching(self) -> dict[str, str]:
        """Return the arguments for matching a collective: a name if a callback starts it, none if
        it matches by order."""
        group = current()
        if group is None:
            return {}
        with self._named_lock:
            number = self._named[group] = self._named.get(group, 0) + 1
        return {"name": f"callbacks of group {group}, operation {number}"}

    def _start_coalescing(self, device: Any = None) -> None:
        self._window = Work([], [], [], self._callbacks)

    def _end_coalescing(self, device: Any = None) -> Work | None:
        work, self._window = self._window, None
        return work

    # ---- reductions ----

    def allreduce(self, tensors: Any, options: Any = None) -> Work:
        tensors = _listed(tensors)
        if tensors[0].is_sparse:
            return self._allreduce_sparse(tensors[0], options)
        return self.allreduce_coalesced(tensors, options)

    def allreduce_coalesced(self, tensors: list[Tensor], options: Any = None) -> Work:
        calls: list[_Call] = []
        copies: list[tuple[Tensor, Tensor]] = []
        for tensor in tensors:
            keywords = reduction_of(options, tensor)
            memory = scaled(writable(tensor, copies, filled=True), keywords)
            calls.append(("allreduce", (as_buffer(memory),), keywords))
        return self._run(calls, tensors, options, copies)

    def reduce(self, tensors: Any, options: Any, op: Any = None) -> Work:
        (tensor,) = _listed(tensors)
        copies: list[tuple[Tensor, Tensor]] = []
        root = _root(options) == self._comm.rank
        reduction = reduction_of(op if isinstance(options, int) else options, tensor)
        keywords = {**reduction, "root": _root(options)}
        memory = writable(tensor, copies, filled=True)
        memory = scaled(memory if root else memory.detach().clone(), keywords)
        call = ("reduce", (as_buffer(memory),), keywords)
        return self._run([call], [tensor], options, copies if root else ())

    def reduce_scatter(self, outputs: Any, inputs: list[list[Tensor]], options: Any = None) -> Work:
        (output,), (parts,) = _listed(outputs), _nested(inputs)
        copies: list[tuple[Tensor, Tensor]] = []
        memory = writable(output, copies)
        keywords = {**reduction_of(options, output), "counts": [part.numel() for part in parts]}
        arguments = (as_buffer(scaled(concatenated(parts), keywords)), as_buffer(memory))
        call = ("reduce_scatterv", arguments, keywords)
        return self._run([call], [output], options, copies)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, options: Any = None) -> Work:
        return self.reduce_scatter_tensor_coalesced([output], [input], options)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None
    ) -> Work:
        calls: list[_Call] = []
        copies: list[tuple[Tensor, Tensor]] = []
        for output, input in zip(outputs, inputs, strict=True):
            memory = writable(output, copies)
            keywords = reduction_of(options, output)
            whole = separate(contiguous(input), memory)
            if keywords.get("prescale") == 0:
                whole = whole.detach().clone()
            arguments = (as_buffer(scaled(whole, keywords)), as_buffer(memory))
            calls.append(("reduce_scatter", arguments, keywords))
        return self._run(calls, outputs, options, copies)

    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def reduce_parts(
        self, parts: list[Tensor], output: Tensor, order: ddl_core.Order, op: Op, scatters: bool
    ) -> Work:
        """Set the output to the ordered sum of all ranks' parts, or with `scatters` to this rank's
        block of it. All tensors are contiguous, on the host."""
        name = "reduce_scatter_ordered" if scatters else "allreduce_ordered"
        arguments = (order, [as_buffer(part) for part in parts], as_buffer(output))
        return self._run([(name, arguments, {"op": op})], [output])

    def allreduce_packed(self, tensor: Tensor, residual: Tensor, op: Op, wire: str) -> Work:
        """Sum or average a tensor, sent between hosts in this wire format. `residual` has as many
        elements as `tensor`. Both are of float32, contiguous, on the host."""
        keywords = {"op": op, "residual": as_buffer(residual), "wire": wire}
        return self._run([("allreduce", (as_buffer(tensor),), keywords)], [tensor])

    def reduce_scatter_packed(
        self, input: Tensor, output: Tensor, residual: Tensor, op: Op, wire: str
    ) -> Work:
        """Set the output to this rank's block of the sum or average of the inputs, as
        `allreduce_packed`."""
        keywords = {"op": op, "residual": as_buffer(residual), "wire": wire}
        arguments = (as_buffer(input), as_buffer(output))
        return self._run([("reduce_scatter", arguments, keywords)], [output])

    def _allreduce_sparse(self, tensor: Tensor, options: Any) -> Work:
        """Gather all indices and values on all ranks, and add them up in the order of ranks."""
        op = reduction_of(options, tensor)["op"]
        if op not in ("sum", "average"):
            raise ValueError("ddl: only ReduceOp.SUM and AVG are possible for sparse tensors")
        own = tensor.detach().coalesce()
        counts = torch.empty(self._comm.size, dtype=torch.int64)
        elements = as_buffer(torch.tensor([own._nnz()]))
        self._comm.allgather(elements, as_buffer(counts), name=self._matching().get("name"))
        parts = []
        for mine in (own._indices().t().contiguous(), own._values().contiguous()):
            every = mine.new_empty(int(counts.sum()), *mine.shape[1:])
            row = every[0].numel() if len(every) else 0
            keywords = {"counts": (counts * row).tolist(), **self._matching()}
            self._comm.allgatherv(as_buffer(mine), as_buffer(every), **keywords)
            parts.append(every)
        total = torch.sparse_coo_tensor(
            parts[0].t(), parts[1], tensor.shape, check_invariants=False
        ).coalesce()
        if op == "average":
            total = total / self._comm.size
        with torch.no_grad():
            tensor.copy_(total)
        return self._run([], [tensor])

    # ---- movements ----

    def broadcast(self, tensors: Any, options: Any) -> Work:
        (tensor,) = _listed(tensors)
        copies: list[tuple[Tensor, Tensor]] = []
        memory = writable(tensor, copies, filled=True)
        call: _Call = ("broadcast", (as_buffer(memory), _root(options)), {})
        return self._run([call], [tensor], options, copies)

    def allgather(self, outputs: list[list[Tensor]], inputs: Any, options: Any = None) -> Work:
        (parts,), (input,) = _nested(outputs), _listed(inputs)
        copies: list[tuple[Tensor, Tensor]] = []
        call = self._allgatherv(parts, input, copies)
        work = self._run([call], parts, options, copies)
        work.is_all_gather = True
        return work

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None
    ) -> Work:
        copies: list[tuple[Tensor, Tensor]] = []
        # Check all arguments first. An error on all ranks then starts no operation on any rank, and
        # the group stays usable.
        if len(outputs) != self._comm.size:
            raise ValueError(f"ddl: there are {len(outputs)} lists, but {self._comm.size} ranks")
        for row in outputs:
            require_alike(row, inputs)
        columns = [[row[i] for row in outputs] for i in range(len(inputs))]
        calls = [self._allgatherv(c, x, copies) for c, x in zip(columns, inputs, strict=True)]
        return self._run(calls, [tensor for row in outputs for tensor in row], options, copies)

    def _allgatherv(
        self, parts: list[Tensor], input: Tensor, copies: list[tuple[Tensor, Tensor]]
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        whole = scratch_of(parts, copies)
        each = bytes_each(input)
        counts = [part.numel() * each for part in parts]
        return "allgatherv", (as_buffer(contiguous(input)), as_buffer(whole)), {"counts": counts}

    def _allgather_base(self, output: Tensor, input: Tensor, options: Any = None) -> Work:
        return self.allgather_into_tensor_coalesced([output], [input], options)

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None
    ) -> Work:
        calls: list[_Call] = []
        copies: list[tuple[Tensor, Tensor]] = []
        for output, input in zip(outputs, inputs, strict=True):
            memory = writable(output, copies)
            arguments = (as_buffer(separate(contiguous(input), memory)), as_buffer(memory))
            calls.append(("allgather", arguments, {}))
        return self._run(calls, outputs, options, copies)

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs: list[list[Tensor]], inputs: Any, options: Any) -> Work:
        (input,) = _listed(inputs)
        copies: list[tuple[Tensor, Tensor]] = []
        parts, counts, whole = [], None, None
        if _root(options) == self._comm.rank:
            (parts,) = _nested(outputs)
            counts = [part.numel() * bytes_each(input) for part in parts]
            whole = as_buffer(scratch_of(parts, copies))
        keywords = {"root": _root(options), "counts": counts}
        call = ("gatherv", (as_buffer(contiguous(input)), whole), keywords)
        return self._run([call], parts, options, copies)

    def scatter(self, outputs: Any, inputs: list[list[Tensor]], options: Any) -> Work:
        (output,) = _listed(outputs)
        copies: list[tuple[Tensor, Tensor]] = []
        memory = writable(output, copies)
        counts, whole = None, None
        if _root(options) == self._comm.rank:
            (parts,) = _nested(inputs)
            counts = [part.numel() * bytes_each(output) for part in parts]
            whole = as_buffer(concatenated(parts))
        keywords = {"root": _root(options), "counts": counts}
        call = ("scatterv", (whole, as_buffer(memory)), keywords)
        return self._run([call], [output], options, copies)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None) -> Work:
        copies: list[tuple[Tensor, Tensor]] = []
        each = bytes_each(outputs[0])
        sent = [part.numel() * each for part in inputs]
        taken = [part.numel() * each for part in outputs]
        whole = scratch_of(outputs, copies)
        keywords = {"send_counts": sent, "recv_counts": taken}
        call = ("alltoallv", (as_buffer(concatenated(inputs)), as_buffer(whole)), keywords)
        return self._run([call], outputs, options, copies)

    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        options: Any = None,
    ) -> Work:
        copies: list[tuple[Tensor, Tensor]] = []
        memory = writable(output, copies)
        keywords = {
            "send_counts": self._split("input", input, input_sizes),
            "recv_counts": self._split("output", output, output_sizes),
        }
        arguments = (as_buffer(separate(contiguous(input), memory)), as_buffer(memory))
        return self._run([("alltoallv", arguments, keywords)], [output], options, copies)

    all_to_all_single = alltoall_base

    def _split(self, argument: str, tensor: Tensor, sizes: list[int]) -> list[int]:
        size, rows = self._comm.size, len(tensor)  # TypeError if it has no dimension
        sizes = list(sizes) or [rows // size] * size
        if len(sizes) != size or min(sizes) < 0 or sum(sizes) != rows:
            raise ValueError(
                f"ddl alltoall: the split sizes of {argument} are {sizes}; must be {size} numbers"
                f" of at least 0 whose sum is its {rows} rows"
            )
        row = tensor.numel() // rows * bytes_each(tensor) if rows else 0
        return [count * row for count in sizes]

    # ---- messages and barriers ----

    def send(self, tensors: Any, to: int, tag: int = 0) -> Work:
        (tensor,) = _listed(tensors)
        return self._run([("send", (as_buffer(contiguous(tensor)), to), {"tag": tag})], [])

    def recv(self, tensors: Any, source: int | None, tag: int = 0) -> Work:
        (tensor,) = _listed(tensors)
        copies: list[tuple[Tensor, Tensor]] = []
        call = ("recv", (as_buffer(writable(tensor, copies)), source), {"tag": tag})
        return self._run([call], [tensor], None, copies)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self.recv(tensors, None, tag)

    def barrier(self, opts: Any = None) -> Work:
        return self._run([("barrier", (), {})], [], opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        limit = self._timeout if timeout is None or timeout < NO_TIMEOUT else timeout
        self._monitored += 1
        place = (str(self._number), self._monitored, self._comm.rank, self._comm.size)
        monitored_barrier(self._store, *place, limit, wait_all_ranks)


exclude_from_compilation(ProcessGroup)


def _join(
    store: Any, rank: int, size: int, timeout: timedelta, options: Options
) -> tuple[ddl_core.Comm, int]:
    """Exchange addresses through the store, as group.cpp does, and join. Return the comm, and the
    number that distinguishes successive groups on one store."""
    global _endpoint
    with _endpoint_lock:
        if _endpoint is None or _endpoint.closed:
            _endpoint = ddl_core.Endpoint()
    endpoint, seconds = _endpoint, timeout.total_seconds()
    addresses, number = _exchange(store, endpoint.address, rank, size, timeout)
    owned = addresses.index(endpoint.address) != rank  # an earlier rank is a thread of this process
    if len(set(addresses)) < size:
        endpoint = ddl_core.Endpoint() if owned else endpoint
        addresses, number = _exchange(store, endpoint.address, rank, size, timeout)
    config = ddl_core.Config(
        timeout=max(seconds, 1), operation_timeout=seconds, invariant=options.invariant
    )
    return endpoint.connect(addresses, rank, config, owned=owned), number


def _exchange(
    store: Any, address: bytes, rank: int, size: int, timeout: timedelta
) -> tuple[list[bytes], int]:
    """Return the addresses of all ranks, and the number of this exchange in the store."""
    number: int = store.add(f"python/{rank}", 1)
    keys = [f"python/{number}/{of}" for of in range(size)]
    store.set(keys[rank], address)
    try:
        store.wait(keys, timeout)
    except dist.DistError as error:
        try:
            missing = ", ".join(str(of) for of, key in enumerate(keys) if not store.check([key]))
        except dist.DistError:
            raise dist.DistBackendError(
                f"ddl: rank {rank} of {size} lost the store through which the ranks exchange"
                f" addresses ({str(error).partition(chr(10))[0]}): the process that serves it,"
                " usually rank 0, has exited or closed it"
            ) from error
        raise dist.DistBackendError(
            f"ddl: rank {rank} of {size} could not exchange addresses within"
            f" {timeout.total_seconds():g} s; missing: rank {missing}"
        ) from error
    return _get_all(store, keys), number


def _get_all(store: Any, keys: list[str]) -> list[bytes]:
    """Return the keys' values, in one request if the store supports it, as group.cpp does."""
    if store.has_extended_api():
        values: list[bytes] = store.multi_get(keys)
        return values
    return [store.get(key) for key in keys]


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _nested(lists: Any) -> list[list[Tensor]]:
    return [lists] if lists and isinstance(lists[0], Tensor) else lists


def _root(options: Any) -> int:
    root: int = options if isinstance(options, int) else options.rootRank
    return root
