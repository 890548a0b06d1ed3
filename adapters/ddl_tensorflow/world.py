# SPDX-License-Identifier: Apache-2.0
"""Joining and leaving the job.

Functions that XLA compiles contain rank and size. So call `init` before they are compiled. After
`shutdown` they may be called only in a world of the same size.
"""

from __future__ import annotations

import logging
from itertools import count

import ddl_core
from ddl_core import adapter
from ddl_core.errors import InvalidState

_log = logging.getLogger("ddl_tensorflow")


class _World(adapter.World):
    def __init__(self) -> None:
        super().__init__("ddl_tensorflow", keeps_job=False)
        self.parts: dict[int, ddl_core.Comm] = {}  # communicators of some ranks, by number

    def _prepare(self) -> None:
        from ddl_tensorflow import _build

        _build.load()

    def _opened(self, comm: ddl_core.Comm) -> None:
        from ddl_tensorflow import _build

        _build.load().open(0, comm)
        _tell_of_gpus()

    def _closing(self) -> bool:
        from ddl_tensorflow import _build, naming

        _build.load().close()
        naming.forget()
        while self.parts:
            self.parts.popitem()[1].close()
        return True


def _tell_of_gpus() -> None:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        _log.info("tensors on the %d GPU(s) are copied through host memory", len(gpus))


joined = _World()
_numbers = count(1)  # never reused, since functions keep the numbers of former worlds
init = joined.init
is_initialized = joined.is_initialized
shutdown = joined.shutdown
rank = joined.rank
size = joined.size
local_rank = joined.local_rank
local_size = joined.local_size
comm = joined.comm


def add(comm: ddl_core.Comm) -> int:
    """Make a comm of some ranks usable by operations, until `shutdown` closes it. Return its
    number."""
    from ddl_tensorflow import _build

    number = next(_numbers)
    _build.load().open(number, comm)
    joined.parts[number] = comm
    return number


def part(number: int) -> ddl_core.Comm:
    """Return the comm of this number; 0 has all ranks. Raises InvalidState after `shutdown`."""
    if not number:
        return comm()
    if number not in joined.parts:
        raise InvalidState("comm was created before ddl_tensorflow.shutdown(); create it again")
    return joined.parts[number]
