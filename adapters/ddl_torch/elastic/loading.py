# SPDX-License-Identifier: Apache-2.0
"""Data loading with PyTorch's loader processes, for the shares of an elastic job."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

from ddl_elastic.engines.agent import end_with_parent
from ddl_elastic.frameworks.protocol import Batches, Key


class Loading:
    """The methods of ddl_elastic.frameworks.protocol.Framework that read samples."""

    model: nn.Module
    collate = staticmethod(default_collate)

    def prefetch(self, batches: Batches, keys: Iterable[Key], processes: int) -> Iterator[Any]:
        loader: DataLoader[Any] = DataLoader(
            batches,
            sampler=keys,
            batch_size=None,  # `batches` returns whole batches
            collate_fn=unchanged,
            num_workers=processes,
            worker_init_fn=start,
            pin_memory=any(parameter.is_cuda for parameter in self.model.parameters()),
        )
        with keeping_child_handler():
            return iter(loader)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read samples with one PyTorch thread in this context, as loader processes do. With more
        threads, sums in a data set would have different bits."""
        threads = torch.get_num_threads()
        if threads == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Disable gradients, and put all modules into evaluation mode, in this context."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, mode in modes.items():
                module.training = mode


@contextmanager
def keeping_child_handler() -> Iterator[None]:
    """Keep the SIGCHLD handler: if PyTorch replaces it in this context, restore it at the end. When
    a loader process is killed, PyTorch's handler raises an error anywhere in the program. Without
    PyTorch's handler, the next batch raises the error, as a LoadingError that names the process."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD) if is_main else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGCHLD, before)


def unchanged(batch: Any) -> Any:
    return batch


def start(_number: int) -> None:
    """Make a loader process exit with its parent, even while it reads a sample. PyTorch's watchdog
    checks only between samples, every five seconds."""
    end_with_parent()
