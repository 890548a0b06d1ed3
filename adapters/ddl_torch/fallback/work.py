# SPDX-License-Identifier: Apache-2.0
"""Pending operations, and the conversion of ddl_core's errors to PyTorch's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddl_core.errors import DdlError, TimedOut, UsageError
from ddl_torch.fallback.callbacks import Callbacks
from ddl_torch.futures import Future

NO_TIMEOUT = timedelta(0)


class Work(dist.Work):
    """One operation of c10d, made of one or more operations of ddl_core."""

    def __init__(
        self,
        works: list[Any],
        outputs: list[Tensor],
        finish: list[Callable[[], None]],
        callbacks: Callbacks,
        title: str = "",
    ):
        super().__init__()
        self._works = works
        self._outputs = outputs
        self._finish = finish
        self._callbacks = callbacks
        self._title = title  # the profiler's name of the wait
        self._lock = threading.Lock()
        self._future: Future | None = None
        self.is_all_gather = False  # True for an all-gather into a list of tensors

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        limit = timeout.total_seconds() if timeout > NO_TIMEOUT else None
        with dist_errors(), profiled(self._title):
            for work in self._works:
                try:
                    work.wait(limit)
                except TimedOut:
                    raise dist.DistBackendError(
                        "ddl: the operation is not complete after"
                        f" {timeout // timedelta(milliseconds=1)} ms (timed out), and still pending"
                    ) from None
        with self._lock, torch.no_grad():
            while self._finish:
                self._finish.pop(0)()
        return True

    def get_future(self) -> Any:
        """Return the operation's future. A separate thread completes it, because callbacks may wait
        for other operations."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = Future(self._callbacks)
        if self.is_completed():
            self._complete(self._future)
        else:
            threading.Thread(target=self._complete, args=(self._future,), daemon=True).start()
        return self._future

    def _complete(self, future: Any) -> None:
        try:
            self.wait()
            value = self._value()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(value)

    def _value(self) -> list[Tensor]:
        """Return the future's value: Work::value() of csrc/work.cpp in Python."""
        if not self.is_all_gather or len({output.shape for output in self._outputs}) != 1:
            return self._outputs
        with torch.no_grad():
            return [torch.stack(self._outputs)]

    def is_completed(self) -> bool:
        if not all(work.done() for work in self._works):
            return False
        with suppress(Exception):  # a failed operation is complete, too
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


def exclude_from_compilation(cls: type) -> None:
    """Make torch.compile break its graph at each method of a class."""
    for name, method in list(vars(cls).items()):
        if callable(method) and not name.startswith("__"):
            setattr(cls, name, torch.compiler.disable(method))


exclude_from_compilation(Work)


def profiled(title: str) -> AbstractContextManager[Any]:
    """Record the body of this context as a slice if a profiler is active. Slices of a thread must
    nest, so an operation has one for its start and one for each wait."""
    if title and torch.autograd._profiler_enabled():
        return torch.autograd.profiler.record_function(title)
    return nullcontext()


@contextmanager
def dist_errors() -> Iterator[None]:
    """Convert ddl_core's errors to PyTorch's, except errors about arguments."""
    try:
        yield
    except UsageError as error:
        if isinstance(error, (ValueError, NotImplementedError)):
            raise
        raise dist.DistBackendError(f"ddl: {error}") from error
    except DdlError as error:
        raise dist.DistBackendError(f"ddl: {error}") from error
