# SPDX-License-Identifier: Apache-2.0
"""Joining and leaving.

Functions that XLA compiles contain rank and size. So `init` comes before they are compiled, and
after `shutdown` they may be called only in a world of the same size.
"""

from __future__ import annotations

import ddl_core
from ddl_core import adapter


class _World(adapter.World):
    def _prepare(self) -> None:
        from ddl_tensorflow import _build

        _build.load()

    def _opened(self, comm: ddl_core.Comm) -> None:
        from ddl_tensorflow import _build

        _build.load().open(comm)

    def _closing(self) -> bool:
        from ddl_tensorflow import _build

        _build.load().close()
        return True


_world = _World("ddl_tensorflow", keeps_job=False)
init = _world.init
is_initialized = _world.is_initialized
shutdown = _world.shutdown
rank = _world.rank
size = _world.size
local_rank = _world.local_rank
local_size = _world.local_size
comm = _world.comm
