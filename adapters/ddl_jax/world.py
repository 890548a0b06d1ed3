# SPDX-License-Identifier: Apache-2.0
"""Joining and leaving the job."""

from __future__ import annotations

from collections.abc import Callable

import ddl_core
from ddl_core import adapter
from ddl_core.errors import InvalidState


class _World(adapter.World):
    def __init__(self) -> None:
        super().__init__("ddl_jax")
        self.at_shutdown: list[Callable[[], bool]] = []
        self.parts: list[ddl_core.Comm] = []  # communicators of some ranks
        self.epoch = 0  # how often the world was left
        self._traced: tuple[int, int] | None = None  # rank and size in traced programs

    def _prepare(self) -> None:
        from ddl_jax import _build

        _build.handler()

    def _opened(self, comm: ddl_core.Comm) -> None:
        import jax

        from ddl_jax import _build, programs

        own = comm.rank, comm.size
        if self._traced not in (None, own):
            jax.clear_caches()  # programs contain their rank and size
        self._traced = own
        programs.forget()
        _build.handler().ddl_jax_open(adapter.address(comm))

    def _closing(self) -> bool:
        """Wait for this thread's operations and programs of jax's own collectives, and a few
        seconds for other threads' operations. Then abort the operations that are still pending.
        Errors of operations are dropped."""
        import jax

        from ddl_jax import _build, programs

        try:
            jax.effects_barrier()
        except jax.errors.JaxRuntimeError:
            programs.forget()
        self.epoch += 1
        unused = [self.at_shutdown.pop()() for _ in range(len(self.at_shutdown))]
        # A thread of XLA may stay in an aborted operation; then its comm must not be freed.
        ended = bool(_build.handler().ddl_jax_close())
        while ended and self.parts:  # otherwise a thread may use them
            self.parts.pop().close()
        return ended and all(unused)


joined = _World()
init = joined.init
is_initialized = joined.is_initialized
shutdown = joined.shutdown
rank = joined.rank
size = joined.size
local_rank = joined.local_rank
local_size = joined.local_size
world = joined.comm


def add(comm: ddl_core.Comm) -> tuple[int, int]:
    """Make a comm usable by operations, until `shutdown` closes it. Return its number, and the
    epoch. Raises InvalidState if there are too many."""
    from ddl_jax import _build

    number = int(_build.handler().ddl_jax_add(adapter.address(comm)))
    if not number:
        comm.close()
        raise InvalidState("ddl_jax cannot create another communicator; reuse the existing ones")
    joined.parts.append(comm)
    return number, joined.epoch


def epoch() -> int:
    """Return the number of times that the world was left."""
    return joined.epoch


def at_shutdown(call: Callable[[], bool]) -> None:
    """Register a function to call before the world is left. If it returns False, something
    still uses the world, and the world's comm is kept."""
    joined.at_shutdown.append(call)
