# SPDX-License-Identifier: Apache-2.0
"""PyTorch's loader processes, for the shares of an elastic job."""

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
    """What ddl_elastic.frameworks.protocol.Framework has of reading samples."""

    model: nn.Module
    collate = staticmethod(default_collate)

    def prefetch(self, batches: Batches, keys: Iterable[Key], processes: int) -> Iterator[Any]:
        loader: DataLoader[Any] = DataLoader(
            batches,  # type: ignore[arg-type]
            sampler=keys,
            batch_size=None,  # what is read is a batch already
            collate_fn=unchanged,
            num_workers=processes,
            worker_init_fn=start,
            pin_memory=any(parameter.is_cuda for parameter in self.model.parameters()),
        )
        with keeping_child_handler():
            return iter(loader)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Samples are read with one thread, as in loader processes: with several, sums in a data
        set would have other bits."""
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
        """Without gradients, and with all modules in evaluation mode."""
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
    """PyTorch's handler of SIGCHLD raises an error wherever the program is when a loader process
    has been killed. Without it the next batch has that error, and a LoadingError tells whose."""
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
    """A loader process starts. It ends with its parent, also while it reads a sample: PyTorch's own
    watchdog looks only between two of them, each five seconds."""
    end_with_parent()
