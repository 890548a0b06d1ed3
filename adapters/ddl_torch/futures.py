# SPDX-License-Identifier: Apache-2.0
"""Futures whose callbacks run in the same order on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Future(torch.futures.Future[Any]):
    """The future of an operation, or of a callback.

    The callbacks of a group's futures run one at a time, in the order in which the program added
    them. Collectives that callbacks start match in this order, independent of other operations of
    the program. A callback that is added within a callback, to the future of a callback's result,
    runs when that future is complete.
    """

    def __init__(self, callbacks: Any, of_callback: bool = False) -> None:
        super().__init__()
        self._callbacks = callbacks
        self._of_callback = of_callback

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """Return the future of the callback's result."""
        return self._callbacks.then(self, callback, self._of_callback)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call the callback when the future is complete."""
        self._callbacks.add_done_callback(self, callback, self._of_callback)
