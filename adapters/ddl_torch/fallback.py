"""The backend "ddl" without a compiler: a process group in Python over ddl_core.

Its results are those of the native part. It is slower by some tenths of a millisecond for each
operation, and these need the native part: DDP's built-in hooks in C++, and coalescing into one
operation.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import ddl_core
from ddl_core import dtypes
from ddl_core.buffer import Buffer
from ddl_core.errors import DdlError, TimedOut, UsageError

_OPS = {
    "SUM": "sum",
    "AVG": "average",
    "PRODUCT": "product",
    "MIN": "min",
    "MAX": "max",
    "BAND": "bit_and",
    "BOR": "bit_or",
    "BXOR": "bit_xor",
}
# What the profiler calls the operations of ddl_core, as for the native part.
_TITLES = {
    "allgather": "_all_gather_base",
    "allgatherv": "all_gather",
    "allreduce": "all_reduce",
    "alltoallv": "all_to_all",
    "gatherv": "gather",
    "reduce_scatter": "_reduce_scatter_base",
    "reduce_scatterv": "reduce_scatter",
    "scatterv": "scatter",
}
_DTYPES = {
    getattr(torch, dtype.name): dtype for dtype in dtypes.TABLE if hasattr(torch, dtype.name)
}
_NO_TIMEOUT = timedelta(0)
# Older versions of PyTorch hold but the C++ half of a work that C++ waits for; without the other
# half that would never end. So here the last works are kept.
_KEPT = 64 if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9) else 0

_endpoint: ddl_core.Endpoint | None = None
_endpoint_lock = threading.Lock()


class Work(dist.Work):
    """One operation, which may be several of ddl_core's."""

    def __init__(
        self,
        works: list[Any],
        outputs: list[Tensor],
        finish: list[Callable[[], None]],
        profiled: Any = None,
    ):
        super().__init__()
        self._works = works
        self._outputs = outputs
        self._finish = finish
        self._profiled = profiled  # a range of the profiler that has begun, and ends with this
        self._lock = threading.Lock()
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        limit = timeout.total_seconds() if timeout > _NO_TIMEOUT else None
        with _dist_errors():
            for work in self._works:
                try:
                    work.wait(limit)
                except TimedOut:
                    raise dist.DistBackendError(
                        f"ddl: not complete after {timeout // timedelta(milliseconds=1)} ms (timed"
                        " out), and still pending"
                    ) from None
        with self._lock, torch.no_grad():
            while self._finish:
                self._finish.pop(0)()
            if self._profiled is not None:
                self._profiled.__exit__(None, None, None)
                self._profiled = None
        return True

    def get_future(self) -> Any:
        """Completed by a thread of its own, since callbacks may wait for other operations."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = torch.futures.Future()
        if self.is_completed():
            self._complete(self._future)
        else:
            threading.Thread(target=self._complete, args=(self._future,), daemon=True).start()
        return self._future

    def _complete(self, future: Any) -> None:
        try:
            self.wait()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(self._outputs)

    def is_completed(self) -> bool:
        if not all(work.done() for work in self._works):
            return False
        with suppress(Exception):  # it is completed nevertheless
            self.wait()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> list[Tensor]:
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        source: int = self._works[0].source
        return source

    _source_rank = source_rank


class ProcessGroup(dist.ProcessGroup):
    """A process group over one ddl_core.Comm. What c10d calls by two names, in older and in newer
    versions of PyTorch, is here by both. Where c10d takes a root or a ReduceOp in the place of
    options, and a list in the place of a list of one, so do these."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store = store
        self._timeout = timeout
        self._name = self._description = ""
        self._window: Work | None = None
        self._kept: deque[Work] = deque(maxlen=_KEPT)
        self._sequence = self._monitored = self._splits = 0
        with _dist_errors():
            self._comm, self._number = _join(store, rank, size, timeout)

    # ---- about the group ----

    def getBackendName(self) -> str:
        return "ddl"

    name = getBackendName

    def getRank(self) -> int:
        return self._comm.rank

    def getSize(self) -> int:
        return self._comm.size

    def setGroupName(self, name: str) -> None:
        self._name = name

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

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

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
        """A group of these ranks, for those of them; all ranks of this group call it."""
        self._splits += 1
        if self._comm.rank not in ranks:
            return None
        store = dist.PrefixStore(f"split/{self._splits}/{ranks}", self._store)
        limit = self._timeout if timeout is None else timeout
        return ProcessGroup(store, ranks.index(self._comm.rank), len(ranks), limit)

    split_group = splitGroup

    # ---- running ----

    def _run(
        self,
        calls: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]],
        outputs: Sequence[Tensor],
        options: Any = None,
        copies: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> Work:
        """Start operations of the comm, as one; then, when they are complete, copy."""
        limit = getattr(options, "timeout", None) or self._timeout
        limit = limit if limit > _NO_TIMEOUT else self._timeout
        self._sequence += 1
        works, profiled = [], None
        if calls and self._window is None and torch.autograd._profiler_enabled():
            name = calls[0][0]
            profiled = torch.autograd.profiler.record_function(f"ddl:{_TITLES.get(name, name)}")
            profiled.__enter__()
        with _dist_errors():
            for name, arguments, keywords in calls:
                start = getattr(self._comm, name + "_async")
                works.append(start(*arguments, **keywords, timeout=limit.total_seconds()))
        finish = [functools.partial(_copy, to, part) for to, part in copies]
        work = Work(works, list(outputs), finish, profiled)
        if self._window is None:
            self._kept.append(work)
            return work
        self._window._works += works
        self._window._finish += finish
        self._window._outputs += outputs
        return Work([], [], [])

    def _start_coalescing(self, device: Any = None) -> None:
        self._window = Work([], [], [])

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
        calls, copies = [], []
        for tensor in tensors:
            keywords = _reduction(options, tensor)
            memory = _scaled(_writable(tensor, copies, filled=True), keywords)
            calls.append(("allreduce", (_array(memory),), keywords))
        return self._run(calls, tensors, options, copies)

    def reduce(self, tensors: Any, options: Any, op: Any = None) -> Work:
        (tensor,) = _listed(tensors)
        copies: list[tuple[Tensor, Tensor]] = []
        root = _root(options) == self._comm.rank
        reduction = _reduction(op if isinstance(options, int) else options, tensor)
        keywords = {**reduction, "root": _root(options)}
        memory = _writable(tensor, copies, filled=True)
        memory = _scaled(memory if root else memory.detach().clone(), keywords)
        call = ("reduce", (_array(memory),), keywords)
        return self._run([call], [tensor], options, copies if root else ())

    def reduce_scatter(self, outputs: Any, inputs: list[list[Tensor]], options: Any = None) -> Work:
        (output,), (parts,) = _listed(outputs), _nested(inputs)
        copies: list[tuple[Tensor, Tensor]] = []
        memory = _writable(output, copies)
        keywords = {**_reduction(options, output), "counts": [part.numel() for part in parts]}
        arguments = (_array(_scaled(_joined(parts), keywords)), _array(memory))
        call = ("reduce_scatterv", arguments, keywords)
        return self._run([call], [output], options, copies)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, options: Any = None) -> Work:
        return self.reduce_scatter_tensor_coalesced([output], [input], options)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None
    ) -> Work:
        calls, copies = [], []
        for output, input in zip(outputs, inputs, strict=True):
            memory = _writable(output, copies)
            keywords = _reduction(options, output)
            whole = _apart(_readable(input), memory)
            if keywords.get("prescale") == 0:
                whole = whole.detach().clone()
            arguments = (_array(_scaled(whole, keywords)), _array(memory))
            calls.append(("reduce_scatter", arguments, keywords))
        return self._run(calls, outputs, options, copies)

    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _allreduce_sparse(self, tensor: Tensor, options: Any) -> Work:
        """Everybody gets all indices and values, and adds them up in the order of ranks."""
        op = _reduction(options, tensor)["op"]
        if op not in ("sum", "average"):
            raise ValueError("ddl: only ReduceOp.SUM and AVG are possible for sparse tensors")
        own = tensor.detach().coalesce()
        counts = torch.empty(self._comm.size, dtype=torch.int64)
        self._comm.allgather(_array(torch.tensor([own._nnz()])), _array(counts))
        parts = []
        for mine in (own._indices().t().contiguous(), own._values().contiguous()):
            every = mine.new_empty(int(counts.sum()), *mine.shape[1:])
            row = every[0].numel() if len(every) else 0
            self._comm.allgatherv(_array(mine), _array(every), counts=(counts * row).tolist())
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
        memory = _writable(tensor, copies, filled=True)
        call = ("broadcast", (_array(memory), _root(options)), {})
        return self._run([call], [tensor], options, copies)

    def allgather(self, outputs: list[list[Tensor]], inputs: Any, options: Any = None) -> Work:
        (parts,), (input,) = _nested(outputs), _listed(inputs)
        copies: list[tuple[Tensor, Tensor]] = []
        call = self._allgatherv(parts, input, copies)
        return self._run([call], parts, options, copies)

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None
    ) -> Work:
        copies: list[tuple[Tensor, Tensor]] = []
        # All, so that what is wrong on all ranks is refused on all, and the group lives on.
        if len(outputs) != self._comm.size:
            raise ValueError(f"ddl: there are {len(outputs)} lists, but {self._comm.size} ranks")
        for row in outputs:
            _require_alike(row, inputs)
        columns = [[row[i] for row in outputs] for i in range(len(inputs))]
        calls = [self._allgatherv(c, x, copies) for c, x in zip(columns, inputs, strict=True)]
        return self._run(calls, [tensor for row in outputs for tensor in row], options, copies)

    def _allgatherv(
        self, parts: list[Tensor], input: Tensor, copies: list[tuple[Tensor, Tensor]]
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        whole = _whole(parts, copies)
        each = _bytes_each(input)
        counts = [part.numel() * each for part in parts]
        return "allgatherv", (_array(_readable(input)), _array(whole)), {"counts": counts}

    def _allgather_base(self, output: Tensor, input: Tensor, options: Any = None) -> Work:
        return self.allgather_into_tensor_coalesced([output], [input], options)

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None
    ) -> Work:
        calls, copies = [], []
        for output, input in zip(outputs, inputs, strict=True):
            memory = _writable(output, copies)
            arguments = (_array(_apart(_readable(input), memory)), _array(memory))
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
            counts = [part.numel() * _bytes_each(input) for part in parts]
            whole = _array(_whole(parts, copies))
        keywords = {"root": _root(options), "counts": counts}
        call = ("gatherv", (_array(_readable(input)), whole), keywords)
        return self._run([call], parts, options, copies)

    def scatter(self, outputs: Any, inputs: list[list[Tensor]], options: Any) -> Work:
        (output,) = _listed(outputs)
        copies: list[tuple[Tensor, Tensor]] = []
        memory = _writable(output, copies)
        counts, whole = None, None
        if _root(options) == self._comm.rank:
            (parts,) = _nested(inputs)
            counts = [part.numel() * _bytes_each(output) for part in parts]
            whole = _array(_joined(parts))
        keywords = {"root": _root(options), "counts": counts}
        call = ("scatterv", (whole, _array(memory)), keywords)
        return self._run([call], [output], options, copies)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], options: Any = None) -> Work:
        copies: list[tuple[Tensor, Tensor]] = []
        each = _bytes_each(outputs[0])
        sent = [part.numel() * each for part in inputs]
        taken = [part.numel() * each for part in outputs]
        whole = _whole(outputs, copies)
        keywords = {"send_counts": sent, "recv_counts": taken}
        call = ("alltoallv", (_array(_joined(inputs)), _array(whole)), keywords)
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
        memory = _writable(output, copies)
        keywords = {
            "send_counts": self._split(input, input_sizes),
            "recv_counts": self._split(output, output_sizes),
        }
        arguments = (_array(_apart(_readable(input), memory)), _array(memory))
        return self._run([("alltoallv", arguments, keywords)], [output], options, copies)

    all_to_all_single = alltoall_base

    def _split(self, tensor: Tensor, sizes: list[int]) -> list[int]:
        rows = len(tensor)
        sizes = list(sizes) or [rows // self._comm.size] * self._comm.size
        if len(sizes) != self._comm.size or sum(sizes) != rows:
            raise RuntimeError(f"ddl: splits {sizes} do not fit {rows} rows")
        row = tensor.numel() // rows * _bytes_each(tensor) if rows else 0
        return [count * row for count in sizes]

    # ---- messages and barriers ----

    def send(self, tensors: Any, to: int, tag: int = 0) -> Work:
        (tensor,) = _listed(tensors)
        return self._run([("send", (_array(_readable(tensor)), to), {"tag": tag})], [])

    def recv(self, tensors: Any, source: int | None, tag: int = 0) -> Work:
        (tensor,) = _listed(tensors)
        copies: list[tuple[Tensor, Tensor]] = []
        call = ("recv", (_array(_writable(tensor, copies)), source), {"tag": tag})
        return self._run([call], [tensor], None, copies)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self.recv(tensors, None, tag)

    def barrier(self, opts: Any = None) -> Work:
        return self._run([("barrier", (), {})], [], opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """As barriers.cpp has it: through the store."""
        limit = self._timeout if timeout is None or timeout < _NO_TIMEOUT else timeout
        self._monitored += 1
        barrier = f"monitored_barrier/{self._number}/{self._monitored}"
        marks = [f"{barrier}/{of}" for of in range(self._comm.size)]
        rank = self._comm.rank
        self._store.set(marks[rank], "here")
        if rank:
            try:
                self._store.wait([f"{barrier}/verdict"], limit + timedelta(seconds=1))
                reason = self._store.get(f"{barrier}/verdict").decode()
            except dist.DistError:
                reason = f"no answer within {limit}"
            if reason != "passed":
                raise dist.DistBackendError(
                    f"ddl: [Rank {rank}]: Rank {rank} successfully reached monitoredBarrier, but"
                    f" received errors while waiting for send/recv from rank 0: {reason}"
                )
            return
        try:
            self._store.wait(marks, max(limit, timedelta(milliseconds=1)))
        except dist.DistError:
            missing = [str(of) for of, mark in enumerate(marks) if not self._store.check([mark])]
            named = missing if wait_all_ranks else missing[:1]
            milliseconds = limit // timedelta(milliseconds=1)
            reason = (
                f"Rank{'s' * (len(named) != 1)} {', '.join(named)} failed to pass monitoredBarrier"
                f" in {milliseconds} ms"
            )
            self._store.set(f"{barrier}/verdict", reason)
            raise dist.DistBackendError(
                f"ddl: [Rank 0]: Rank 0 timed out in monitoredBarrier after {milliseconds} ms:"
                f" {reason}"
            ) from None
        self._store.set(f"{barrier}/verdict", "passed")


# torch.compile must neither trace nor compile these: a graph ends before them and goes on behind.
for _class in (ProcessGroup, Work):
    for _name, _method in list(vars(_class).items()):
        if callable(_method) and not _name.startswith("__"):
            setattr(_class, _name, torch.compiler.disable(_method))


def _join(store: Any, rank: int, size: int, timeout: timedelta) -> tuple[ddl_core.Comm, int]:
    """Exchange addresses through the store, as group.cpp does, and join. Groups that use one store
    in succession are told apart by the number that is returned with the comm."""
    global _endpoint
    with _endpoint_lock:
        if _endpoint is None or _endpoint.closed:
            _endpoint = ddl_core.Endpoint()
    number: int = store.add(f"python/{rank}", 1)
    keys = [f"python/{number}/{of}" for of in range(size)]
    store.set(keys[rank], _endpoint.address)
    try:
        store.wait(keys, timeout)
    except dist.DistError as error:
        missing = ", ".join(str(of) for of, key in enumerate(keys) if not store.check([key]))
        raise dist.DistBackendError(
            f"ddl: rank {rank} of {size} could not exchange addresses within"
            f" {timeout.total_seconds():g} s; missing: rank {missing}"
        ) from error
    seconds = timeout.total_seconds()
    config = ddl_core.Config(timeout=max(seconds, 1), operation_timeout=seconds)
    return _endpoint.connect(_get_all(store, keys), rank, config), number


def _get_all(store: Any, keys: list[str]) -> list[bytes]:
    """In one request where the store can, as in group.cpp."""
    if store.has_extended_api():
        values: list[bytes] = store.multi_get(keys)
        return values
    return [store.get(key) for key in keys]


@contextmanager
def _dist_errors() -> Iterator[None]:
    """ddl_core's errors as PyTorch's, but for those about arguments."""
    try:
        yield
    except UsageError as error:
        if isinstance(error, (ValueError, NotImplementedError)):
            raise
        raise dist.DistBackendError(f"ddl: {error}") from error
    except DdlError as error:
        raise dist.DistBackendError(f"ddl: {error}") from error


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _nested(lists: Any) -> list[list[Tensor]]:
    return [lists] if lists and isinstance(lists[0], Tensor) else lists


def _root(options: Any) -> int:
    root: int = options if isinstance(options, int) else options.rootRank
    return root


def _reduction(options: Any, tensor: Tensor) -> dict[str, Any]:
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"ddl: cannot reduce tensors of type {tensor.dtype}")
    op = dist.ReduceOp.SUM if options is None else getattr(options, "reduceOp", options)
    op = dist.ReduceOp(op) if isinstance(op, dist.ReduceOp.RedOpType) else op
    for name, ours in _OPS.items():
        if op == getattr(dist.ReduceOp, name):
            return {"op": ours}
    if op != dist.ReduceOp.PREMUL_SUM:
        raise ValueError(f"ddl: {op} is no ReduceOp")
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise NotImplementedError(
            f"ddl: ReduceOp.PREMUL_SUM of {tensor.dtype}; only floats and complex can be scaled"
        )
    _, factor = op.__getstate__()  # a number, or a tensor of one; there is no other way to it
    return {"op": "sum", "prescale": float(factor)}


def _scaled(memory: Tensor, keywords: dict[str, Any]) -> Tensor:
    """The memory, multiplied by 0 if that is the factor, which ddl_core does not take."""
    if keywords.get("prescale") == 0:
        del keywords["prescale"]
        own = memory.detach()
        with torch.inference_mode(own.is_inference()):
            own.copy_(own.to(torch.float32).mul_(0) if own.element_size() == 1 else own * 0)
    return memory


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _bytes_each(tensor: Tensor) -> int:
    """How many elements of what ddl_core moves one element is."""
    return 1 if tensor.dtype in _DTYPES else tensor.element_size()


def _array(tensor: Tensor) -> Buffer:
    """The memory of a contiguous tensor. Not by DLPack, which older versions of PyTorch lack for
    some types."""
    count = tensor.numel() * _bytes_each(tensor)
    dtype = _DTYPES.get(tensor.dtype, _DTYPES[torch.uint8])
    return Buffer(tensor.data_ptr(), count, dtype, True, tensor)


def _readable(tensor: Tensor) -> Tensor:
    if _is_plain(tensor):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def _writable(tensor: Tensor, copies: list[tuple[Tensor, Tensor]], filled: bool = False) -> Tensor:
    """The tensor's memory, or scratch that is copied to it in the end."""
    if _is_plain(tensor):
        return tensor
    scratch = torch.empty(tensor.shape, dtype=tensor.dtype)
    if filled:
        scratch.copy_(tensor.detach())
    copies.append((tensor, scratch))
    return scratch


def _apart(input: Tensor, output: Tensor) -> Tensor:
    """The input, or a copy of it if it shares memory with the output."""
    begin, end = input.data_ptr(), input.data_ptr() + input.nbytes
    shared = begin < output.data_ptr() + output.nbytes and output.data_ptr() < end
    return input.detach().clone() if shared else input


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([_readable(part).detach().reshape(-1) for part in parts])


def _require_alike(outputs: list[Tensor], inputs: list[Tensor]) -> None:
    if len(outputs) != len(inputs):
        raise ValueError(f"ddl: there are {len(outputs)} outputs, but {len(inputs)} inputs")
    for output, input in zip(outputs, inputs, strict=True):
        if output.dtype != input.dtype:
            raise TypeError(f"ddl: an output is of type {output.dtype}, its input {input.dtype}")
        if output.numel() != input.numel():
            raise ValueError(
                f"ddl: an output has {output.numel()} elements, but its input has {input.numel()}"
            )


def _copy(to: Tensor, part: Tensor) -> None:
    with torch.inference_mode(to.is_inference()):
        to.detach().copy_(part)


def _whole(parts: list[Tensor], copies: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Scratch for all parts, which are copied from it in the end."""
    counts = [part.numel() for part in parts]
    whole = torch.empty(sum(counts), dtype=parts[0].dtype)
    rows = whole.split(counts)
    copies += [(part, row.view(part.shape)) for part, row in zip(parts, rows, strict=True)]
    return whole
